"""Batches that lie on the towers' devices before their step: the same numbers, one step ahead."""

import threading

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf
import toys

from towers import prefetch
from towers.runs import loop
from towers.support import first_layers, shares

BATCH, STEPS = 8, 3


def batches(log: list | None = None):
    for seed in range(STEPS):
        if log is not None:
            log.append(seed)
        images, labels = toys.batch(BATCH, seed=seed)
        yield tf.constant(images), tf.constant(labels)


@pytest.mark.parametrize("num_towers", [1, 3, 4])
def test_each_tower_has_its_part_on_its_device(num_towers):
    tower_devices = toys.cpus(num_towers)
    sizes = shares.Shares(BATCH, BATCH, [num_towers]).tower_batch_sizes
    placed = list(prefetch.to_towers(batches(), tower_devices, sizes))
    assert len(placed) == STEPS
    for (images, labels, parts), (expected, classes) in zip(placed, batches(), strict=True):
        np.testing.assert_array_equal(images, expected)
        np.testing.assert_array_equal(labels, classes)
        assert [len(part[0]) for part in parts] == sizes
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), expected)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), classes)
        for part, device in zip(parts, tower_devices, strict=True):
            assert part[0].device.endswith(device.replace("/CPU", "CPU"))
            assert part[1].device == part[0].device


def test_no_batches_are_none():
    assert list(prefetch.to_towers([], toys.cpus(1), [8])) == []


@pytest.mark.parametrize("num_towers", [1, pytest.param(3, marks=pytest.mark.long), 4])
def test_the_weights_are_those_of_batches_cut_within_the_step(num_towers):
    hashes = set()
    for ahead in (False, True):
        made = toys.trainer(
            toys.small_cifarnet(),
            keras.optimizers.SGD(0.1, momentum=0.9),
            num_towers=num_towers,
            global_batch_size=BATCH,
            num_microbatches=4,
            weight_decay=0.01,
        )
        source = (
            prefetch.to_towers(batches(), made.tower_devices, made.shares.tower_batch_sizes)
            if ahead
            else ((images, labels, None) for images, labels in batches())
        )
        for images, labels, parts in source:
            made.train_step(images, labels, parts=parts)
        assert int(made.state.examples_seen) == STEPS * BATCH
        hashes.add(made.state.sha256())
    assert len(hashes) == 1


@pytest.mark.parametrize("compute_dtype", ["bfloat16", "float16"])
def test_inputs_are_copied_in_the_type_of_the_first_layer(compute_dtype):
    """Half the bytes, and the same bits: the layer would have converted them to it."""
    hashes = set()
    for converted in (False, True):
        made = toys.trainer(
            toys.small_cifarnet(f"mixed_{compute_dtype}"),
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
            num_towers=2,
            global_batch_size=BATCH,
        )
        inputs_type = first_layers.inputs_type(made.state.model) if converted else None
        assert inputs_type == (compute_dtype if converted else None)
        sizes = made.shares.tower_batch_sizes
        for images, labels, parts in prefetch.to_towers(
            batches(), made.tower_devices, sizes, inputs_type
        ):
            assert (images.dtype, labels.dtype) == (tf.float32, tf.int64)
            for part, classes in parts:
                assert (part.dtype, classes.dtype) == (inputs_type or tf.float32, tf.int64)
            made.train_step(images, labels, parts=parts)
        hashes.add(made.state.sha256())
    assert len(hashes) == 1


@pytest.mark.usefixtures("cache")
def test_a_run_that_prefetches_is_the_same_run(tmp_path, monkeypatch):
    """As it does on devices other than the CPU."""
    flags = (
        "--compute_dtype=bfloat16", "--num_towers=2", "--max_steps=2",
        "--summary_every_steps=1", "--checkpoint_every_steps=1",
    )  # fmt: skip
    assert scripts.train(tmp_path / "cut_in_the_step", *flags).returncode == 0
    monkeypatch.setattr(loop.machine, "are_cpus", lambda _: False)
    makers, types = set(), set()
    original = prefetch.to_towers

    def watched(*arguments):
        for batch in original(*arguments):
            makers.add(threading.current_thread().name)
            types.update(part.dtype for part, _ in batch[-1])
            yield batch

    monkeypatch.setattr(prefetch, "to_towers", watched)
    done = scripts.train(tmp_path / "ahead", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert (makers, types) == ({"batches_0"}, {tf.bfloat16})
    scripts.assert_same_run(tmp_path / "ahead", tmp_path / "cut_in_the_step")
