"""The first weights: of each seed its own, drawn on the CPU, on the device of the parameters."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from towers import devices, networks, weight_decay
from towers.networks import seeds


def drawn(kernel) -> tuple:
    """The first draws of a kernel, at any scale; `fastnet` overwrites those of a diagonal."""
    values = kernel.numpy().ravel().astype(np.float64)
    values = values[~np.isin(values, (0.0, 1.0))][:9]
    return tuple(np.round(values / np.linalg.norm(values), 6))


@pytest.mark.parametrize("name", ["cifarnet", "resnet", "fastnet"])
def test_no_kernel_of_several_seeds_has_the_values_of_another(name):
    kernels = [
        weight
        for seed in range(3)
        for weight in networks.build(name, (32, 32, 3), 10, seed=seed).trainable_variables
        if weight.name == "kernel"
    ]
    assert seeds.derive(3, "conv1") == 618_319_529  # 31 bits of the sha256 of "3/conv1"
    draws = [values for values in map(drawn, kernels) if values]
    assert len(set(draws)) == len(draws) >= 9


@pytest.mark.parametrize("device", [None, devices.HOST, "/CPU:2"])
def test_the_first_weights_are_those_drawn_on_the_cpu(device):
    drawn_on = []

    def draw(shape, dtype):
        drawn_on.append(tf.zeros([]).device[-5:])
        return tf.fill(shape, tf.cast(len(drawn_on), dtype))

    def build(image_shape, num_classes, policy, seed):
        flat = keras.layers.Flatten()
        dense = keras.layers.Dense(num_classes, use_bias=False, kernel_initializer=draw)
        return keras.Sequential([keras.Input(image_shape), flat, dense])

    network = networks.Network(build, 0.0, weight_decay.kernels, "pad_crop_flip")
    model = networks.build(network, (2, 2, 1), 3, parameter_device=device)
    [kernel] = model.variables
    assert "/" + kernel.value.device[-5:] == (device or devices.HOST)
    assert kernel.numpy().tolist() == [[1.0] * 3] * 4  # of the first draw
    assert drawn_on[0] == "CPU:0"
