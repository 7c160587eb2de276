"""What crosses to GPUs and back, counted where there is none."""

import argparse

import pytest
import tensorflow as tf

import towers
from benchmarks import gpus

FLAGS = argparse.Namespace(
    global_batch_size=16, num_microbatches=4, steps=2, towers=2, num_gpus=2, parameter_device="cpu",
    jit_compile=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "model", ["cifarnet", *(pytest.param(n, marks=pytest.mark.long) for n in ("resnet", "fastnet"))]
)
def test_weights_go_to_each_tower_once_and_their_gradients_come_back(model):
    row = gpus.counted(model, "float32", FLAGS)
    images = 2 * 16 * 32 * 32 * 3 * 4  # of both towers, at most, with room for labels and draws
    statistics = {"cifarnet": 0, "resnet": 2 * 784 * 4, "fastnet": 2 * 1216 * 4}[model]
    weights = 2 * row["bytes_of_weights"]
    assert weights < row["bytes_to_gpus"] < weights + images + 4 * statistics
    assert weights < row["bytes_back"] < weights + 4 * statistics + 4096
    assert f"| {row['copies_to_gpus']} |" in gpus.as_row(row)
    assert row["update_ms"] > 0


@pytest.mark.parametrize(
    "model", ["cifarnet", *(pytest.param(n, marks=pytest.mark.long) for n in ("resnet", "fastnet"))]
)
def test_parameters_on_the_first_gpu_go_to_the_other_towers_alone(model):
    flags = argparse.Namespace(**vars(FLAGS) | {"parameter_device": "gpu"})
    row = gpus.counted(model, "float32", flags)
    weights, images = row["bytes_of_weights"], 2 * 16 * 32 * 32 * 3 * 4
    statistics = {"cifarnet": 0, "resnet": 2 * 784 * 4, "fastnet": 2 * 1216 * 4}[model]
    # To the second tower its weights, to the first the second one's gradients; to both images.
    assert 2 * weights < row["bytes_to_gpus"] < 2 * weights + images + 8 * statistics + 8192
    assert row["bytes_back"] < 4096  # losses and counts
    flags.num_gpus = 1
    row = gpus.counted(model, "float32", flags)
    assert row["bytes_to_gpus"] < images and row["bytes_back"] < 4096  # no weights at all


@pytest.mark.parametrize("model", ["cifarnet", pytest.param("resnet", marks=pytest.mark.long)])
def test_compiled_a_step_launches_few_programs_whatever_its_layers(model):
    flags = argparse.Namespace(
        **vars(FLAGS)
        | {"parameter_device": "gpu", "jit_compile": True, "num_gpus": 1, "num_microbatches": 1}
    )
    # Three programs; two cuts of a batch that is whole, and the number of a microbatch.
    assert gpus.counted(model, "float32", flags)["launches_of_a_tower"] == 3 + 3


def test_a_tensor_is_copied_to_a_device_once():
    with tf.Graph().as_default() as graph:
        with tf.device("/CPU:0"):
            weight = tf.ones([3, 5])
            other = tf.identity(weight)  # stays
        with tf.device("/GPU:0"):
            first = weight * weight + other
        with tf.device("/GPU:1"):
            second = tf.cast(weight, tf.float16)
        tf.add(tf.cast(second, tf.float32), first)  # without a device: on the CPU
    to, back = gpus.traffic(graph)
    assert sorted(device for _, device in to) == ["/GPU:0", "/GPU:0", "/GPU:1"]
    assert set(to.values()) == {60}
    assert sorted(back.values()) == [30, 60]
    # Mul, add and the cast of one half; the other Cast is on the CPU.
    assert gpus.launches(graph) == 3


@pytest.mark.long
def test_towers_are_measured_by_their_bits():
    rows = []
    for FLAGS.towers in (1, 2):
        rows.append(gpus.measured("cifarnet", "float32", FLAGS))
    assert rows[0]["sha256"] == rows[1]["sha256"]
    assert gpus.that_differ(rows) == []
    assert gpus.that_differ([*rows, rows[0] | {"sha256": "0"}]) == ["cifarnet float32"]
    assert rows[0]["device"] == "CPU" and rows[0]["peak_bytes_of_device"] is None
    assert f"| CPU | 2 | {rows[1]['images_per_second']:,.0f} |  |" in gpus.as_measured_row(rows[1])
    assert towers.devices.choose(2) == ("/CPU:0", "/CPU:1")
