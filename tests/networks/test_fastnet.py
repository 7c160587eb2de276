"""The network of the fast recipe: its shape, its first weights, and what keeps its filters."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import networks
from towers.networks import fastnet, optimizers


def test_its_weights_are_as_many_as_the_paper_s():
    """But for whitening, which has no bias, and batch norm, which has scales as well."""
    network = networks.build("fastnet", (32, 32, 3), 10)
    kernels = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 256 * 256 + 256 * 256 + 256 * 256)
    norms = 2 * 2 * (64 + 256 + 256)
    trained = sum(np.prod(weight.shape) for weight in network.trainable_variables)
    assert trained == kernels + norms + 2560
    logits = network.get_layer("logits").kernel.numpy() * fastnet.LOGIT_SCALE
    assert logits.std() == pytest.approx(1 / 256, rel=0.05)
    assert network.output_shape == (None, 10)
    assert network.get_layer("block3_2_elu").output.shape[1:] == (3, 3, 256)


@pytest.mark.parametrize("image_shape", [(8, 32, 3), (32, 8, 3)])
def test_images_that_are_too_small_are_refused(image_shape):
    with pytest.raises(ValueError, match="too small for fastnet: it needs at least 9 x 9"):
        networks.build("fastnet", image_shape, 10)
    networks.build("fastnet", (9, 9, 1), 10)


def test_first_filters_hand_their_channels_on():
    kernel = fastnet.PartialIdentity(seed=3)((3, 3, 4, 7), "float32")
    x = tf.constant(toys.batch(2, [5, 5, 4])[0])
    np.testing.assert_array_equal(tf.nn.conv2d(x, kernel, 1, "SAME")[..., :4], x)
    assert 0.9 / 6 < np.abs(kernel[..., 4:]).max() <= 1 / 6  # the fan in is 36


def test_filters_keep_a_mean_square_norm_of_1():
    kernel = np.full((2, 2, 1, 3), 2.0, np.float32)
    np.testing.assert_allclose(
        fastnet.UnitMeanSquareNorm()(tf.constant(kernel)), kernel / 4, rtol=1e-6
    )
    network = toys.small_fastnet()
    optimizer = optimizers.make("muon", momentum=0.6, nesterov=True, model=network)
    step = toys.Step(network, optimizer, num_towers=2)
    for seed in range(2):
        step(*toys.batch(8, seed=seed), rate=0.24)
    for layer in network.layers:
        if isinstance(layer, keras.layers.Conv2D):
            norms = np.square(layer.kernel).sum(axis=(0, 1, 2))
            assert norms.mean() == pytest.approx(1.0, rel=1e-5), layer.name
