"""The residual network of 50 layers."""

import keras
import numpy as np

from towers import networks


def test_a_block_begins_as_its_shortcut():
    network = networks.build("resnet50", (64, 96, 3), 7)
    images = np.random.default_rng(0).normal(size=(1, 64, 96, 3)).astype(np.float32)
    names = ["stage2_block1_relu3", "stage2_block4_relu3"]
    watched = keras.Model(network.input, [network.get_layer(name).output for name in names])
    before, after = watched(images)
    np.testing.assert_array_equal(before, after)
