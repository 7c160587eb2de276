"""The residual network of 50 layers."""

import keras
import numpy as np
import pytest

from towers import networks


@pytest.fixture(scope="module")
def network():
    return networks.build("resnet50", (64, 96, 3), 7)


def test_has_the_weights_of_torchvision_s():
    """25,557,032 for 1,000 classes, as torchvision.models.resnet50 says."""
    trained = networks.build("resnet50", (32, 32, 3), 1000).trainable_variables
    assert sum(np.prod(weight.shape) for weight in trained) == 25_557_032


def test_a_block_begins_as_its_shortcut(network):
    images = np.random.default_rng(0).normal(size=(1, 64, 96, 3)).astype(np.float32)
    names = ["stage2_block1_relu3", "stage2_block4_relu3"]
    watched = keras.Model(network.input, [network.get_layer(name).output for name in names])
    before, after = watched(images)
    np.testing.assert_array_equal(before, after)
