"""The oracle itself, checked by numeric differentiation and against TensorFlow's own operations."""

import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf

CLASSES = 4
WEIGHT_DECAY = 0.3
ENTRIES_PER_WEIGHT = 8
IMAGE_SHAPES = [(6, 6, 2), (7, 5, 3), (5, 8, 1)]
POOL_SHAPES = [(6, 6, 2), (7, 5, 3), (4, 9, 1), (1, 2, 2)]
# A strong alpha: with the tutorial's, the normalization is nearly the identity.
LRN_SETTINGS = [{}, {"radius": 2, "bias": 1.5, "alpha": 0.7, "beta": 0.6}]


@pytest.fixture(autouse=True)
def on_cpu():
    """TensorFlow's reference is its CPU kernels, whatever devices the machine has."""
    with tf.device("/CPU:0"):
        yield


@pytest.fixture
def rng():
    # A seed may put a unit's kink within the step of a central difference; with this one none is.
    return np.random.default_rng(7)


def random_weights(rng, image_shape):
    """Weights of a tiny network for images [h, w, c]; conv1 has more channels than a radius."""
    height, width, channels = image_shape
    flat = -(-height // 4) * -(-width // 4) * 5
    shapes = {
        "conv1": (5, 3, channels, 6),
        "conv2": (3, 4, 6, 5),
        "local3": (flat, 7),
        "local4": (7, 6),
        "softmax_linear": (6, CLASSES),
    }
    weights = {}
    for layer, shape in shapes.items():
        weights[f"{layer}/kernel"] = rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]) / 2)
        weights[f"{layer}/bias"] = rng.normal(0.5, 0.1, size=shape[-1])
    return weights


def random_batch(rng, image_shape, examples=3):
    """Images [n, h, w, c] and labels [n]."""
    return rng.normal(size=(examples, *image_shape)), rng.integers(CLASSES, size=examples)


def numeric_derivative(function, array, index, step=1e-5):
    """Central difference of `function()` for one entry of `array`, which is put back."""
    original = array[index]
    array[index] = original + step
    above = function()
    array[index] = original - step
    below = function()
    array[index] = original
    return (above - below) / (2 * step)


@pytest.mark.parametrize("image_shape", IMAGE_SHAPES)
def test_gradients_are_the_numeric_derivatives_of_the_total(rng, image_shape):
    weights = random_weights(rng, image_shape)
    images, labels = random_batch(rng, image_shape)
    _, gradients = oracle.loss_and_gradients(weights, images, labels, WEIGHT_DECAY)

    def total():
        return oracle.loss_and_gradients(weights, images, labels, WEIGHT_DECAY)[0]["total"]

    assert gradients.keys() == weights.keys()
    for name, weight in weights.items():
        assert gradients[name].shape == weight.shape
        assert np.any(gradients[name])
        for _ in range(ENTRIES_PER_WEIGHT):
            index = tuple(rng.integers(weight.shape))
            expected = numeric_derivative(total, weight, index)
            actual = gradients[name][index]
            np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9, err_msg=name)


def test_loss_terms_by_hand(rng):
    weights = random_weights(rng, (6, 6, 2))
    images, labels = random_batch(rng, (6, 6, 2))
    weights["softmax_linear/kernel"][:] = 0
    weights["softmax_linear/bias"][:] = 0
    weights["local3/kernel"][:] = 2
    weights["local4/kernel"][:] = 3
    terms, _ = oracle.loss_and_gradients(weights, images, labels, 0.5)
    assert terms["cross_entropy"] == pytest.approx(np.log(CLASSES), rel=1e-14)
    assert terms["weight_decay/local3"] == weights["local3/kernel"].size * 1.0
    assert terms["weight_decay/local4"] == weights["local4/kernel"].size * 2.25
    parts = ["cross_entropy", "weight_decay/local3", "weight_decay/local4"]
    assert terms["total"] == pytest.approx(sum(terms[name] for name in parts), rel=1e-14)
    assert list(terms) == [*parts, "total"]


def test_loss_and_gradients_leave_their_arguments_alone(rng):
    weights = random_weights(rng, (6, 6, 2))
    images, labels = random_batch(rng, (6, 6, 2))
    before = {name: weight.copy() for name, weight in weights.items()}
    images_before = images.copy()
    oracle.loss_and_gradients(weights, images, labels, WEIGHT_DECAY)
    np.testing.assert_array_equal(images, images_before)
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, before[name])


def test_network_matches_tensorflow(rng):
    weights = random_weights(rng, (7, 5, 3))
    images, labels = random_batch(rng, (7, 5, 3), examples=5)
    terms, gradients = oracle.loss_and_gradients(weights, images, labels, WEIGHT_DECAY)

    variables = {name: tf.constant(weight, tf.float32) for name, weight in weights.items()}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        total = tensorflow_total(variables, tf.constant(images, tf.float32), labels)
    expected = tape.gradient(total, variables)

    np.testing.assert_allclose(terms["total"], total, rtol=1e-6)
    for name in weights:
        np.testing.assert_allclose(
            gradients[name], expected[name], rtol=2e-5, atol=1e-6, err_msg=name
        )


def tensorflow_total(w, images, labels):
    """The network's total loss in TensorFlow's own operations; float32, as tf.nn.lrn needs."""
    norm = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
    x = tf.nn.relu(tf.nn.conv2d(images, w["conv1/kernel"], 1, "SAME") + w["conv1/bias"])
    x = tf.nn.lrn(tf.nn.max_pool2d(x, 3, 2, "SAME"), **norm)
    x = tf.nn.relu(tf.nn.conv2d(x, w["conv2/kernel"], 1, "SAME") + w["conv2/bias"])
    x = tf.nn.max_pool2d(tf.nn.lrn(x, **norm), 3, 2, "SAME")
    x = tf.reshape(x, [len(labels), -1])
    x = tf.nn.relu(x @ w["local3/kernel"] + w["local3/bias"])
    x = tf.nn.relu(x @ w["local4/kernel"] + w["local4/bias"])
    logits = x @ w["softmax_linear/kernel"] + w["softmax_linear/bias"]
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    decay = tf.nn.l2_loss(w["local3/kernel"]) + tf.nn.l2_loss(w["local4/kernel"])
    return tf.reduce_mean(cross_entropy) + WEIGHT_DECAY * decay


def test_cross_entropy_of_large_logits_is_finite():
    logits = np.array([[1000.0, 0.0], [0.0, 1000.0]])
    labels = np.array([0, 0])
    assert oracle.cross_entropy(logits, labels) == 500
    d_logits = oracle.cross_entropy_backward(logits, labels)
    np.testing.assert_array_equal(d_logits, [[0, 0], [-0.5, 0.5]])


@pytest.mark.parametrize("kernel_size", [(5, 5), (3, 3), (4, 2), (1, 3), (9, 7)])
def test_conv_matches_tensorflow(rng, kernel_size):
    x = rng.normal(size=(2, 7, 5, 3))
    kernel = rng.normal(size=(*kernel_size, 3, 4))
    d_outputs = rng.normal(size=(2, 7, 5, 4))
    expected, (d_x, d_kernel) = tensorflow_gradients(
        lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"), [x, kernel], d_outputs
    )
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(oracle.conv(x, kernel), expected, **close)
    np.testing.assert_allclose(oracle.conv_backward_input(kernel, d_outputs), d_x, **close)
    np.testing.assert_allclose(
        oracle.conv_backward_kernel(x, kernel.shape, d_outputs), d_kernel, **close
    )


@pytest.mark.parametrize("image_shape", POOL_SHAPES)
def test_max_pool_matches_tensorflow_with_ties(rng, image_shape):
    # Few distinct values make ties common, and negative ones show a zero padding.
    x = rng.integers(-3, 0, size=(4, *image_shape)).astype(np.float64)
    d_outputs = rng.normal(size=oracle.max_pool(x).shape)
    expected, (d_x,) = tensorflow_gradients(
        lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), [x], d_outputs
    )
    np.testing.assert_array_equal(oracle.max_pool(x), expected)
    np.testing.assert_allclose(oracle.max_pool_backward(x, d_outputs), d_x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("channels", [1, 3, 12])
@pytest.mark.parametrize("settings", LRN_SETTINGS)
def test_lrn_matches_tensorflow(rng, channels, settings):
    x = rng.normal(0, 3, size=(2, 3, 2, channels)).astype(np.float32)
    d_outputs = rng.normal(size=x.shape).astype(np.float32)
    chosen = {"radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75} | settings
    radius = chosen.pop("radius")
    expected, (d_x,) = tensorflow_gradients(
        lambda x: tf.nn.lrn(x, depth_radius=radius, **chosen), [x], d_outputs
    )
    x, d_outputs = x.astype(np.float64), d_outputs.astype(np.float64)
    np.testing.assert_allclose(oracle.lrn(x, **settings), expected, rtol=1e-6)
    d_oracle = oracle.lrn_backward(x, d_outputs, **settings)
    np.testing.assert_allclose(d_oracle, d_x, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("settings", LRN_SETTINGS)
def test_lrn_backward_is_the_numeric_derivative(rng, settings):
    x = rng.normal(0, 3, size=(1, 2, 1, 11))
    d_outputs = rng.normal(size=x.shape)
    actual = oracle.lrn_backward(x, d_outputs, **settings)
    for index in np.ndindex(x.shape):
        expected = numeric_derivative(
            lambda: np.sum(oracle.lrn(x, **settings) * d_outputs), x, index
        )
        np.testing.assert_allclose(actual[index], expected, rtol=1e-8, atol=1e-9)


def tensorflow_gradients(operation, arrays, d_outputs):
    """Output of a TensorFlow operation, and its gradient for each array given `d_outputs`."""
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = operation(*tensors)
    return outputs, tape.gradient(outputs, tensors, output_gradients=tf.constant(d_outputs))


@pytest.mark.parametrize(
    ("nesterov", "weights"),
    # Velocity 0 -> -0.5 -> 0.5 * -0.5 - 0.25 = -0.5 with lr 0.25, gradients 2 and 1.
    [(False, [9.5, 9.0]), (True, [9.25, 8.75])],
)
def test_momentum_by_hand(nesterov, weights):
    weight, velocity = np.array([10.0]), np.array([0.0])
    for gradient, expected in zip([2.0, 1.0], weights, strict=True):
        weight, velocity = oracle.sgd_momentum_update(
            weight, np.array([gradient]), velocity, 0.25, 0.5, nesterov
        )
        assert weight == expected
        assert velocity == -0.5


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_matches_keras(rng, nesterov):
    # Keras takes its settings through float32, so these are ones that float32 holds exactly.
    optimizer = keras.optimizers.SGD(0.125, momentum=0.875, nesterov=nesterov)
    weight = rng.normal(size=(3, 2))
    velocity = np.zeros_like(weight)
    variable = keras.Variable(weight, dtype="float64")
    for gradient in rng.normal(size=(4, 3, 2)):
        optimizer.apply([tf.constant(gradient)], [variable])
        weight, velocity = oracle.sgd_momentum_update(
            weight, gradient, velocity, 0.125, 0.875, nesterov
        )
        np.testing.assert_allclose(weight, variable.numpy(), rtol=1e-13)


def test_adamw_matches_keras(rng):
    settings = {"beta_1": 0.75, "beta_2": 0.9375, "epsilon": 2.0**-10}
    optimizer = keras.optimizers.AdamW(0.125, weight_decay=0.25, **settings)
    weight = rng.normal(size=(3, 2))
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    variable = keras.Variable(weight, dtype="float64")
    for iteration, gradient in enumerate(rng.normal(size=(4, 3, 2))):
        optimizer.apply([tf.constant(gradient)], [variable])
        weight, first, second = oracle.adamw_update(
            weight, gradient, first, second, iteration, 0.125, 0.25, **settings
        )
        np.testing.assert_allclose(weight, variable.numpy(), rtol=1e-12)


def test_moving_average_by_hand():
    assert oracle.moving_average(10.0, 20.0, 0.999, 0) == pytest.approx(19.0, rel=1e-14)
    assert oracle.moving_average(10.0, 20.0, 0.5, 8) == 15.0
    assert oracle.moving_average(10.0, 20.0, 0.75, 10**6) == 12.5


def test_average_over_towers_is_the_gradient_of_the_whole_batch(rng):
    weights = random_weights(rng, (6, 6, 2))
    images, labels = random_batch(rng, (6, 6, 2), examples=6)
    _, whole = oracle.loss_and_gradients(weights, images, labels, WEIGHT_DECAY)
    towers = [
        oracle.loss_and_gradients(weights, images[part], labels[part], WEIGHT_DECAY)[1]
        for part in (slice(0, 2), slice(2, 4), slice(4, 6))
    ]
    averaged = oracle.average_over_towers(towers)
    assert averaged.keys() == whole.keys()
    for name, gradient in whole.items():
        np.testing.assert_allclose(averaged[name], gradient, rtol=1e-12, atol=1e-14)


def test_average_over_towers_refuses_different_weights():
    with pytest.raises(ValueError, match="different weights"):
        oracle.average_over_towers([{"a": np.ones(1)}, {"a": np.ones(1), "b": np.ones(1)}])
