"""Batches that a thread makes while a step is at work."""

import itertools
import threading

import pytest
import tensorflow as tf
import toys

from towers import devices, prefetch
from towers.runs import ahead

BATCH, STEPS = 8, 4


def batches():
    for seed in range(STEPS):
        yield tuple(map(tf.constant, toys.batch(BATCH, seed=seed)))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_two_batches_are_copied_while_a_step_is_at_work(monkeypatch):
    """As to a GPU, where a copy that begins during a step ends during the next one."""
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
        in_step[step].set()
        if step + 2 < STEPS:
            assert begun[step + 2].wait(timeout=30)
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


def test_a_batch_that_nobody_waits_for_any_more_is_not_taken():
    begun, goes_on, taken = threading.Event(), threading.Event(), []

    def slow():
        for number in range(STEPS):
            taken.append(number)
            if number == 1:
                begun.set()
                assert goes_on.wait(timeout=30)
            yield number

    ahead_of_time = ahead.taken_ahead(slow())
    assert next(ahead_of_time) == 0
    assert begun.wait(timeout=30)
    threading.Timer(0.2, goes_on.set).start()
    ahead_of_time.close()
    assert taken == [0, 1] and threads() == []


def test_what_names_no_device_is_on_the_host_also_in_the_thread(monkeypatch):
    monkeypatch.setattr(devices, "HOST", "/CPU:1")
    [made] = ahead.taken_ahead(tf.ones([2]) + 1 for _ in range(1))
    assert made.device.endswith("CPU:1")
