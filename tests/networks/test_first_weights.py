"""Networks are built on the device of their parameters, with the weights that the CPU draws."""

import keras
import pytest
import tensorflow as tf

from towers import devices, networks, weight_decay


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
