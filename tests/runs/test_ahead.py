"""Batches that a thread makes while a step is at work."""

import itertools
import threading

import pytest
import tensorflow as tf
import toys

from towers import devices, prefetch
from towers.runs import ahead

BATCH, STEPS = 8, 3


def batches():
    for seed in range(STEPS):
        yield tuple(map(tf.constant, toys.batch(BATCH, seed=seed)))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_the_next_batch_is_copied_while_a_step_is_at_work(monkeypatch):
    """A copy that waits for the step before it, and a step that waits for the copy behind it."""
    begun = [threading.Event() for _ in range(STEPS)]
    in_step = [threading.Event() for _ in range(STEPS)]
    numbers, identity = itertools.count(), tf.identity

    def slow_copy(tensor):
        if tensor.dtype == tf.float32:  # the images
            begun[number := next(numbers)].set()
            assert number == 0 or in_step[number - 1].wait(timeout=30)
        return identity(tensor)

    monkeypatch.setattr(tf, "identity", slow_copy)
    taken = ahead.taken_ahead(prefetch.to_towers(batches(), toys.cpus(1), [BATCH]))
    assert not begun[0].is_set()
    for step in range(STEPS):
        _, _, parts = next(taken)
        assert parts[0][0].shape[0] == BATCH
        if step + 1 < STEPS:
            assert begun[step + 1].wait(timeout=30)
        in_step[step].set()
    assert next(taken, None) is None
    assert threads() == []


def test_an_error_of_the_data_comes_after_the_batches_before_it():
    def failing():
        yield from batches()
        raise OSError("the disk is gone")

    taken = ahead.taken_ahead(failing())
    assert len(list(itertools.islice(taken, STEPS))) == STEPS
    with pytest.raises(OSError, match="the disk is gone"):
        next(taken)
    assert threads() == []


def test_no_thread_stays_where_a_loop_ends_early():
    taken = ahead.taken_ahead(batches())
    next(taken)
    assert threads() != []
    taken.close()
    assert threads() == []


def test_what_names_no_device_is_on_the_host_also_in_the_thread(monkeypatch):
    monkeypatch.setattr(devices, "HOST", "/CPU:1")
    [made] = ahead.taken_ahead(tf.ones([2]) + 1 for _ in range(1))
    assert made.device.endswith("CPU:1")
