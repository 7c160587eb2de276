"""Networks have the numbers of what defines them: papers, torchvision and the tutorial."""

import keras
import numpy as np
import pytest

from towers import networks
from towers.networks import resnet50

SHAPES = {"resnet50": (224, 224, 3), "cifarnet": (24, 24, 3)}
CLASSES = {"resnet50": 1000}


@pytest.fixture(scope="module")
def built():
    return {
        name: networks.build(name, SHAPES.get(name, (32, 32, 3)), CLASSES.get(name, 10))
        for name in networks.NETWORKS
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [("cifarnet", 1_068_298), ("resnet", 272_474), ("resnet50", 25_557_032)],
)
def test_weights_are_as_many_as_published(built, name, count):
    assert sum(np.prod(weight.shape) for weight in built[name].trainable_variables) == count


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("cifarnet", {"pool1": (12, 12, 64), "pool2": (6, 6, 64)}),
        (
            "resnet",
            {"stage1_block3_relu2": (32, 32, 16), "stage2_block3_relu2": (16, 16, 32),
             "stage3_block3_relu2": (8, 8, 64)},
        ),
        (
            "resnet50",
            {"conv1": (112, 112, 64), "pool1": (56, 56, 64), "stage1_block3_relu3": (56, 56, 256),
             "stage2_block4_relu3": (28, 28, 512), "stage3_block6_relu3": (14, 14, 1024),
             "stage4_block3_relu3": (7, 7, 2048)},
        ),
        (
            "fastnet",
            {"whitening": (31, 31, 24), "block1_2_elu": (15, 15, 64), "block2_2_elu": (7, 7, 256),
             "block3_2_elu": (3, 3, 256)},
        ),
    ],
)  # fmt: skip
def test_stages_end_with_these_shapes(built, name, outputs):
    network = built[name]
    assert {layer: network.get_layer(layer).output.shape[1:] for layer in outputs} == outputs
    assert network.output.shape[1:] == (CLASSES.get(name, 10),)


def test_cifarnet_begins_as_the_tutorial_s(built):
    """A truncated normal of these deviations, and these biases."""
    deviations = {"conv1": 0.05, "conv2": 0.05, "local3": 0.04, "local4": 0.04}
    for layer, deviation in (deviations | {"softmax_linear": 1 / 192}).items():
        initializer = built["cifarnet"].get_layer(layer).kernel_initializer
        assert isinstance(initializer, keras.initializers.TruncatedNormal)
        assert initializer.stddev == deviation
    biases = {"relu1": 0.0, "relu2": 0.1, "local3": 0.1, "local4": 0.1, "softmax_linear": 0.0}
    for layer, bias in biases.items():
        values = built["cifarnet"].get_layer(layer).bias.numpy()
        np.testing.assert_array_equal(values, np.full_like(values, bias))


@pytest.mark.parametrize("name", ["resnet", "resnet50"])
def test_residual_networks_begin_as_he_s(built, name):
    """Deviations are sqrt(2 / n), of what goes in or, as torchvision's, of what comes out."""
    for layer in built[name].layers:
        if isinstance(layer, keras.layers.Conv2D):
            height, width, *channels = layer.kernel.shape
            fan = height * width * channels[name == "resnet50"]
            assert np.std(layer.kernel) == pytest.approx(np.sqrt(2 / fan), rel=0.15)
            norm = built[name].get_layer(f"{layer.name}_norm")
            assert (norm.momentum, norm.epsilon) == (0.9, 1e-5)
            is_last = name == "resnet50" and layer.name.endswith("conv3")
            np.testing.assert_array_equal(norm.gamma, np.full(norm.gamma.shape, not is_last))
    logits = built[name].get_layer("logits").kernel
    deviation = 0.01 if name == "resnet50" else np.sqrt(2 / 64)
    assert np.std(logits) == pytest.approx(deviation, rel=0.05)


def test_fastnet_s_batch_norm_is_airbench_s(built):
    norms = [layer for layer in built["fastnet"].layers if layer.name.endswith("_norm")]
    assert len(norms) == 6
    for norm in norms:
        assert (norm.momentum, norm.epsilon) == (0.6, 1e-6)
        np.testing.assert_allclose(norm.gamma, 1 / 0.3, rtol=1e-6)
    assert built["fastnet"].get_layer("rescaling").scale == 0.03


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_layers_compute_in_the_type_and_begin_the_same_each_time(built, name):
    """And what is of this package has its name in files."""
    shape, classes = SHAPES.get(name, (32, 32, 3)), CLASSES.get(name, 10)
    again = networks.build(name, shape, classes, compute_dtype="bfloat16")
    np.testing.assert_equal(again.get_weights(), built[name].get_weights())
    assert {layer.compute_dtype for layer in again.layers[1:]} == {"bfloat16"}
    assert [one.name for one in again.layers] == [one.name for one in built[name].layers]
    assert "Custom>" not in again.to_json()


def test_recipes_of_networks():
    """Weight decay, of which weights, and the preprocessing."""
    result = {
        name: (network.weight_decay, network.decayed.__name__, network.preprocessing)
        for name, network in networks.NETWORKS.items()
    }
    assert result == {
        "cifarnet": (0.004, "hidden_dense_kernels", "crop_flip_colour"),
        "resnet": (1e-4, "kernels", "pad_crop_flip"),
        "resnet50": (1e-4, "kernels", "random_resized_crop"),
        "fastnet": (0.0, "kernels", "shift_alternating_flip"),
    }


def test_a_block_of_resnet50_begins_as_its_shortcut():
    network = networks.build("resnet50", (64, 96, 3), 7)
    images = np.random.default_rng(0).normal(size=(1, 64, 96, 3)).astype(np.float32)
    names = ["stage2_block1_relu3", "stage2_block4_relu3"]
    watched = keras.Model(network.input, [network.get_layer(name).output for name in names])
    before, after = watched(images)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("shape", [(31, 32, 3), (32, 31, 3)])
def test_images_that_are_too_small_for_resnet50_are_refused(shape):
    policy, small = keras.DTypePolicy("float32"), ((1, 2),)
    resnet50.build((32, 32, 3), 2, policy, 0, stages=small)
    with pytest.raises(ValueError, match=f"{shape[0]} x {shape[1]}"):
        resnet50.build(shape, 2, policy, 0, stages=small)
