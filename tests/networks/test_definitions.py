"""Networks are what defines them: papers, torchvision and the tutorial, as TensorFlow has it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import devices, networks, weight_decay
from towers.networks import cifarnet, fastnet, optimizers, resnet50, seeds

SHAPES = {"resnet50": (224, 224, 3), "cifarnet": (24, 24, 3)}
CLASSES = {"resnet50": 1000}


@pytest.fixture(scope="module")
def built():
    return {
        name: networks.build(name, SHAPES.get(name, (32, 32, 3)), CLASSES.get(name, 10))
        for name in networks.NETWORKS
    }


# The paper's kernels; whitening has no bias, and batch norm has scales as well.
FASTNET = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 2 * 2 * (64 + 256 + 256) + 2560
COUNTS = {"cifarnet": 1_068_298, "resnet": 272_474, "resnet50": 25_557_032, "fastnet": FASTNET}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
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


def test_fastnet_s_layers_have_airbench_s_constants(built):
    norms = [layer for layer in built["fastnet"].layers if layer.name.endswith("_norm")]
    assert len(norms) == 6
    for norm in norms:
        assert (norm.momentum, norm.epsilon) == (0.6, 1e-6)
        np.testing.assert_allclose(norm.gamma, 1 / 0.3, rtol=1e-6)
    assert built["fastnet"].get_layer("rescaling").scale == 0.03
    assert built["fastnet"].get_layer("whitening").epsilon == 5e-4
    logits = built["fastnet"].get_layer("logits").kernel.numpy() * fastnet.LOGIT_SCALE
    assert logits.std() == pytest.approx(1 / 256, rel=0.05)


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


NORM = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}


def tensorflow_s(w, x):
    """Logits, from the weights in their order."""
    x = tf.nn.relu(tf.nn.conv2d(x, w[0], 1, "SAME") + w[1])
    x = tf.nn.lrn(tf.nn.max_pool2d(x, 3, 2, "SAME"), **NORM)
    x = tf.nn.relu(tf.nn.conv2d(x, w[2], 1, "SAME") + w[3])
    x = tf.nn.max_pool2d(tf.nn.lrn(x, **NORM), 3, 2, "SAME")
    x = tf.reshape(x, [len(x), -1])
    x = tf.nn.relu(x @ w[4] + w[5])
    x = tf.nn.relu(x @ w[6] + w[7])
    return x @ w[8] + w[9]


def test_it_has_the_values_and_gradients_of_the_tutorial_s():
    policy = keras.DTypePolicy("float32")
    model = toys.on_cpu(lambda: cifarnet.build((13, 10, 3), 4, policy, 3))
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:  # no bias is 0
        weight.assign(weight + rng.normal(0.0, 0.01, weight.shape))
    images, labels = toys.batch(5, (13, 10, 3))
    weights = [variable.value for variable in model.trainable_variables]
    result = []
    for logits in (lambda: model(images), lambda: tensorflow_s(weights, tf.constant(images))):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = logits()
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        result.append([outputs, *tape.gradient(loss, weights)])
    toys.assert_close(*result, rtol=1e-4, atol=1e-5)


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
    np.testing.assert_allclose(fastnet.UnitMeanSquareNorm()(kernel), kernel / 4, rtol=1e-6)
    network = toys.small_fastnet()
    optimizer = optimizers.make("muon", momentum=0.6, nesterov=True, model=network)
    step = toys.Step(network, optimizer, num_towers=2)
    for seed in range(2):
        step(*toys.batch(8, seed=seed), rate=0.24)
    for layer in network.layers:
        if isinstance(layer, keras.layers.Conv2D):
            norms = np.square(layer.kernel).sum(axis=(0, 1, 2))
            assert norms.mean() == pytest.approx(1.0, rel=1e-5), layer.name


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
