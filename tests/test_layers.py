"""Local response normalization against hand-computed values, TensorFlow's own and NumPy's."""

import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf
import toys

from towers import layers

TUTORIAL = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
STRONG = {"depth_radius": 2, "bias": 1.5, "alpha": 0.7, "beta": 0.6}
WIDE = {"depth_radius": 80, "bias": 0.5, "alpha": 0.01, "beta": 1.0}
SETTINGS = [TUTORIAL, STRONG, WIDE]


@pytest.fixture(autouse=True)
def on_cpu():
    """TensorFlow's reference is its CPU kernel, whatever devices the machine has."""
    with tf.device("/CPU:0"):
        yield


def values_and_gradient(function, x, upstream):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = function(x)
    gradient = tape.gradient(outputs, x, output_gradients=tf.cast(upstream, x.dtype))
    return outputs.numpy(), gradient.numpy()


def test_each_channel_is_divided_by_the_squares_of_its_neighbours():
    x = tf.constant([[1.0, 2.0, 3.0]])
    outputs = layers.local_response_normalization(x, 1, bias=1.0, alpha=1.0, beta=1.0)
    np.testing.assert_allclose(outputs, [[1 / 6, 2 / 15, 3 / 14]], rtol=1e-6)


def test_radius_0_sees_one_channel_and_its_gradient_is_known():
    # x / (1 + x^2) has the derivative (1 - x^2) / (1 + x^2)^2.
    outputs, gradient = values_and_gradient(
        lambda x: layers.local_response_normalization(x, 0, 1.0, 1.0, 1.0), [[2.0, 0.5]], 1.0
    )
    np.testing.assert_allclose(outputs, [[0.4, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-3 / 25, 0.75 / 1.5625]], rtol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=["tutorial", "strong", "wide"])
@pytest.mark.parametrize("channels", [1, 3, 64])
def test_values_and_gradient_are_tensorflow_s(settings, channels):
    rng = np.random.default_rng(channels)
    x, upstream = rng.normal(size=(2, 2, 3, 4, channels)).astype(np.float32)
    ours = values_and_gradient(
        lambda x: layers.local_response_normalization(x, **settings), x, upstream
    )
    tensorflow_s = values_and_gradient(lambda x: tf.nn.lrn(x, **settings), x, upstream)
    for mine, theirs in zip(ours, tensorflow_s, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=["tutorial", "strong", "wide"])
def test_float64_agrees_with_numpy_to_rounding(settings):
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(2, 2, 3, 4, 6))
    arguments = (settings["depth_radius"], settings["bias"], settings["alpha"], settings["beta"])
    outputs, gradient = values_and_gradient(
        lambda x: layers.local_response_normalization(x, *arguments), x, upstream
    )
    np.testing.assert_allclose(outputs, oracle.lrn(x, *arguments), rtol=1e-12)
    expected = oracle.lrn_backward(x, upstream, *arguments)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 3e-2), ("float16", 4e-3)])
def test_narrow_types_stay_narrow_and_near(dtype, tolerance):
    x, upstream = np.random.default_rng(0).normal(size=(2, 2, 3, 3, 8)).astype(np.float32)

    def normalize(x):
        return layers.local_response_normalization(x, **STRONG)

    narrow = values_and_gradient(normalize, tf.cast(x, dtype), upstream)
    for mine, exact in zip(narrow, values_and_gradient(normalize, x, upstream), strict=True):
        assert mine.dtype == tf.as_dtype(dtype).as_numpy_dtype
        np.testing.assert_allclose(mine.astype(np.float32), exact, rtol=tolerance, atol=tolerance)


def test_layer_has_tensorflow_s_defaults():
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 12)).astype(np.float32)
    outputs = layers.LocalResponseNormalization()(x)
    np.testing.assert_allclose(outputs, tf.nn.lrn(x), rtol=1e-5)


def test_layer_keeps_the_shape_and_computes_in_its_policy():
    layer = layers.LocalResponseNormalization(dtype="mixed_bfloat16")
    outputs = layer(keras.Input([5, 7, 3]))
    assert outputs.shape == (None, 5, 7, 3) and outputs.dtype == "bfloat16"
    assert layer(np.ones([2, 5, 7, 3], np.float32)).dtype == tf.bfloat16


def test_layer_survives_saving(tmp_path):
    layer = layers.LocalResponseNormalization(**STRONG, name="norm")
    model = keras.Sequential([keras.Input([3, 3, 8]), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("norm").get_config() == layer.get_config()
    images, _ = toys.batch(2, [3, 3, 8])
    np.testing.assert_array_equal(loaded(images), model(images))
    assert np.any(model(images) != layers.LocalResponseNormalization()(images))
