"""Layers against values by hand, TensorFlow's operations and NumPy's; and models made of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from benchmarks.peers import tasks
from towers import networks
from towers.networks import layers

TUTORIAL = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
STRONG = {"depth_radius": 2, "bias": 1.5, "alpha": 0.7, "beta": 0.6}
WIDE = {"depth_radius": 80, "bias": 0.5, "alpha": 0.01, "beta": 1.0}
SETTINGS = {"tutorial": TUTORIAL, "strong": STRONG, "wide": WIDE}


def values_and_gradient(function, x, upstream):
    @tf.function(autograph=False)  # a graph, as in training: it may have other kernels than eager
    def both(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = function(x)
        return outputs, tape.gradient(outputs, x, output_gradients=upstream)

    x = tf.constant(x)
    return [values.numpy() for values in both(x, tf.cast(upstream, x.dtype))]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 1), (1, 1, 1, 3), (2, 3, 4, 64), (4, 12, 12, 64)])
def test_values_and_gradient_are_tensorflow_s(settings, shape):
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(2, *shape)).astype(np.float32)
    ours = values_and_gradient(layers.LocalResponseNormalization(**settings), x, upstream)
    tensorflow_s = values_and_gradient(lambda x: tf.nn.lrn(x, **settings), x, upstream)
    toys.assert_close(ours, tensorflow_s, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_within_one_rounding_of_float64(settings, dtype):
    x, upstream = np.random.default_rng(0).normal(size=(2, 4, 3, 3, 8))
    # Exact in either type, so that only the rounding of the result is compared.
    x, upstream = tf.cast(x, "bfloat16"), tf.cast(upstream, "bfloat16")

    def normalize(x):
        return layers.LocalResponseNormalization(**settings, dtype=x.dtype.name)(x)

    narrow = values_and_gradient(normalize, tf.cast(x, dtype), upstream)
    exact = values_and_gradient(normalize, tf.cast(x, "float64"), upstream)
    half_a_unit = {"bfloat16": 2.0**-9, "float16": 2.0**-12}[dtype]  # relative
    for mine, expected in zip(narrow, exact, strict=True):
        assert mine.dtype == tf.as_dtype(dtype).as_numpy_dtype
        # float32's own error on the way moves a few values over the edge of a rounding.
        np.testing.assert_allclose(mine.astype(np.float64), expected, rtol=2.01 * half_a_unit)


def batch_norm_pair(dtype, **options):
    """Ours and Keras's, with the same scales and offsets."""
    pair = (
        layers.FusedBatchNormalization(dtype=dtype, **options),
        keras.layers.BatchNormalization(dtype=dtype, **options),
    )
    rng = np.random.default_rng(1)
    weights = [rng.uniform(0.5, 2.0, size=6) for _ in range(2 if pair[0].scale else 1)]
    for layer in pair:
        layer.build((None, 5, 4, 6))
        for weight, value in zip(layer.trainable_variables, weights, strict=True):
            weight.assign(value)
    return pair


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float32", 1e-5), ("mixed_bfloat16", 0.02), ("bfloat16", 0.02), ("mixed_float16", 0.003)],
)
def test_fused_batch_norm_is_keras_s(dtype, tolerance, scale):
    x, upstream = np.random.default_rng(0).normal(3.0, 2.0, size=(2, 8, 5, 4, 6))
    x = tf.cast(x, dtype.removeprefix("mixed_"))
    results = []
    for layer in batch_norm_pair(dtype, momentum=0.75, epsilon=1e-3, scale=scale):
        for _ in range(2):
            results += [values_and_gradient(lambda x: layer(x, training=True), x, upstream)]  # noqa: B023
        results += [values_and_gradient(lambda x: layer(x, training=False), x, upstream)]  # noqa: B023
        results += [[layer.moving_mean.numpy(), layer.moving_variance.numpy()]]
    for ours, theirs in zip(results[:4], results[4:], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(np.float64(one), np.float64(other), tolerance, tolerance)


@pytest.mark.parametrize("option", [{"axis": 1}, {"renorm": True}, {"synchronized": True}])
def test_fused_batch_norm_refuses_what_it_does_not_do(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        layers.FusedBatchNormalization(**option)


def test_fused_batch_norm_that_is_frozen_stays_as_it_is():
    layer, _ = batch_norm_pair("float32")
    layer.trainable = False
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 4, 6)), tf.float32)
    np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(6))


def whitened(images, **options):
    layer = layers.Whitening(**options)
    layer.build(images.shape)
    layer.adapt(images)
    return layer, layer(images).numpy()


def correlated_images():
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(50, 9, 9, 3)).cumsum(axis=1).cumsum(axis=2)
    return (smooth @ rng.normal(size=(3, 3))).astype(np.float32)


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_whitened_outputs_are_uncorrelated_and_of_variance_1(kernel_size):
    images = correlated_images()
    layer, outputs = whitened(images, kernel_size=kernel_size, epsilon=0.0)
    left, filters = 9 - kernel_size + 1, 3 * kernel_size**2
    assert outputs.shape == (50, left, left, 2 * filters)
    rows = outputs.reshape(-1, 2 * filters).astype(np.float64)
    covariance = rows.T @ rows / len(rows)
    identity = np.eye(filters)
    expected = np.block([[identity, -identity], [-identity, identity]])
    np.testing.assert_allclose(covariance, expected, atol=0.02)
    first = layer.kernel.numpy().reshape(filters, 2 * filters)[:, :filters]
    assert (first.max(axis=0) > -first.min(axis=0)).all()  # the sign that a library chose is gone


@pytest.mark.parametrize("colours", ["any", "grey"])
def test_whitening_does_not_depend_on_the_order_of_its_sums(colours):
    images = correlated_images().repeat(5, axis=0)
    if colours == "grey":  # patches lie in a subspace, in which eigenvalues are equal to 0
        images[...] = images[..., :1]
    layer, _ = whitened(images)
    other, _ = whitened(np.random.default_rng(1).permutation(images))
    np.testing.assert_array_equal(layer.kernel, other.kernel)
    assert np.isfinite(layer.kernel).all()


@pytest.mark.parametrize(
    "layer",
    [
        layers.LocalResponseNormalization(**STRONG, name="own"),
        layers.BiasRelu(bias_initializer=keras.initializers.Constant(0.1), name="own"),
        layers.Whitening(kernel_size=3, epsilon=0.1, name="own"),
        layers.FusedBatchNormalization(momentum=0.5, name="own"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_survives_saving(layer, tmp_path):
    images = correlated_images()
    model = keras.Sequential([keras.Input([9, 9, 3]), layer])
    if hasattr(layer, "adapt"):
        layer.adapt(images)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("own").get_config() == layer.get_config()
    np.testing.assert_array_equal(loaded(images), model(images))
    assert np.any(model(images) != 0)


Norm, Fused = keras.layers.BatchNormalization, layers.FusedBatchNormalization


def within(*more):
    """A model within a model, with batch norms of other kinds."""
    inputs = keras.Input((8, 8, 3))
    inner = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), Norm(name="inner_norm", momentum=0.7)],
        name="inner",
    )
    x = Norm(axis=1, name="rows")(inner(inputs))
    x = Norm(dtype="float64", name="wide")(Norm(axis=3, name="last")(x))
    x = keras.layers.Flatten()(x)
    for layer in (Norm(name="flat"), *more, keras.layers.Dense(toys.CLASSES)):
        x = layer(x)
    return keras.Model(inputs, x, name="outer")


def after_a_step(model, images, labels):
    """What training and evaluating a model gives."""
    before = model(images).numpy()
    loss = float(toys.Step(model, keras.optimizers.SGD(0.1))(images, labels).losses[0])
    return [before, loss, *(variable.numpy() for variable in model.variables)]


@pytest.mark.parametrize("build", [within, toys.small_resnet])
def test_it_is_the_same_function(build):
    """Our residual networks have it from the start; Keras's layers are the oracle."""
    made = toys.on_cpu(build)
    if build is within:
        model, made = made, networks.fused(made)
    else:
        assert set(kinds(made).values()) == {Fused}
        model = toys.on_cpu(lambda: tasks.with_keras_layers(made))
    assert [v.path for v in made.variables] == [v.path for v in model.variables]
    images, labels = toys.batch(16, model.input_shape[1:])
    ours, keras_s = (after_a_step(each, images, labels) for each in (made, model))
    toys.assert_close(ours, keras_s, rtol=1e-4, atol=1e-5)


def kinds(model):
    return {layer.name: type(layer) for layer in model._flatten_layers() if isinstance(layer, Norm)}


def test_every_batch_norm_that_can_is_one_operation():
    model = within()
    result = networks.fused(model)
    assert set(kinds(model).values()) == {Norm}
    assert kinds(result) == kinds(model) | {"inner_norm": Fused, "last": Fused}
    assert result.get_layer("inner").layers[1].momentum == 0.7


class OfMyOwn(keras.Model):
    def __init__(self):
        super().__init__(name="mine")
        self.norm = Norm()

    def call(self, inputs, training=None):
        return self.norm(inputs, training=training)


@pytest.mark.parametrize("outer", [False, True])
def test_a_model_with_a_call_of_its_own_is_refused(outer):
    model = OfMyOwn()
    model(np.zeros((2, 8, 8, 3)))
    if outer:
        model = keras.Sequential([keras.Input((8, 8, 3)), model])
    with pytest.raises(ValueError, match="mine"):
        networks.fused(model)


def test_what_a_normalization_layer_has_learned_is_copied():
    images, _ = toys.batch(16, (8, 8, 3))
    learned = keras.layers.Normalization()
    learned.adapt(3.0 * images + 5.0)
    model = keras.Sequential([keras.Input((8, 8, 3)), learned, Norm()])
    np.testing.assert_allclose(networks.fused(model)(images), model(images), rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_frozen_by_itself_stays_frozen():
    model = toys.classifier()
    model.layers[0].kernel.trainable = False
    made = networks.fused(model)
    assert [v.path for v in made.trainable_variables] == [v.path for v in model.trainable_variables]
