"""Attention, layer norm and GELU beside Keras's."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import networks
from towers.networks import transformer_layers

TIME, WIDTH, HEADS, SIZE = 5, 6, 2, 3
# (largest difference relative to the largest value, of a type)
ROUNDING = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 0.02, "float16": 0.002}


def values(*shape, seed=0, dtype="float32"):
    """Random numbers."""
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def with_gradients(function, *tensors):
    """What a function gives, and the gradients of a weighted sum of it, in float64."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = function(*tensors)
        weights = values(*outputs.shape, seed=9, dtype=outputs.dtype)
        total = tf.reduce_sum(outputs * weights)
    found = [outputs, *tape.gradient(total, tensors)]
    return [tf.cast(value, tf.float64).numpy() for value in found]


def assert_close(mine, theirs, dtype):
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= ROUNDING[dtype] * np.abs(other).max()


@pytest.mark.parametrize("dtype", ROUNDING)
def test_gelu_and_its_gradient_are_those_of_the_formula(dtype):
    x = tf.cast(tf.linspace(-6.0, 6.0, 4 * 33), dtype)
    found, slope = with_gradients(transformer_layers.gelu, tf.reshape(x, [4, 33]))
    x = x.numpy().astype(np.float64).reshape([4, 33])
    normal = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))(x)
    upstream = tf.cast(values(4, 33, seed=9, dtype=dtype), tf.float64).numpy()
    expected = normal + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    # Each value has one rounding to a narrow type: within, all are wide.
    rounding = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2**-8, "float16": 2**-10}[dtype]
    np.testing.assert_allclose(found, x * normal, rtol=rounding, atol=1e-7)
    np.testing.assert_allclose(slope, upstream * expected, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(7, 6), (2, 3, 6), (2, 2, 2, 6)], ids=str)
def test_layer_norm_is_keras_s_with_its_gradients(dtype, shape):
    policy = dtype if dtype.endswith(("32", "64")) else f"mixed_{dtype}"
    mine = transformer_layers.FusedLayerNormalization(epsilon=1e-2, dtype=policy)
    theirs = keras.layers.LayerNormalization(epsilon=1e-2, dtype=policy)
    x = values(*shape, dtype=dtype) * 3 + 1
    for layer in (mine, theirs):
        layer.build(shape)
        layer.gamma.assign(values(6, seed=1) + 2)
        layer.beta.assign(values(6, seed=2))

    def found(layer):
        return with_gradients(
            lambda x, gamma, beta: layer.stateless_call([gamma, beta], [], x)[0],
            *(x, layer.gamma.value, layer.beta.value),
        )

    assert_close(found(mine), found(theirs), dtype)


@pytest.mark.parametrize(
    "arguments",
    [{"axis": 1}, {"axis": [1, 2]}, {"scale": False}, {"center": False}],
    ids=str,
)
def test_other_layer_norms_are_keras_s(arguments):
    mine = transformer_layers.FusedLayerNormalization(**arguments)
    theirs = keras.layers.LayerNormalization(**arguments)
    x = values(2, 3, 6)
    np.testing.assert_array_equal(mine(x), theirs(x))


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("float64", "float32"),
        ("int32", "float32"),
        ("float32", "float64"),
        ("bfloat16", "float64"),
        ("bfloat16", "float32"),
        ("float32", "mixed_bfloat16"),
        ("float16", "mixed_bfloat16"),
    ],
)
def test_layer_norm_takes_the_types_that_keras_s_takes(given, policy):
    x = tf.cast(4 * values(3, 6), given)
    mine = transformer_layers.FusedLayerNormalization(dtype=policy)(x)
    theirs = keras.layers.LayerNormalization(dtype=policy)(x)
    assert mine.dtype == theirs.dtype
    rounding = max(ROUNDING[mine.dtype.name], 1e-6)
    np.testing.assert_allclose(
        tf.cast(mine, "float64"), tf.cast(theirs, "float64"), rtol=rounding, atol=rounding
    )


def attention(kind, **arguments):
    """A layer whose weights are drawn, those of biases too."""
    arguments = {"num_heads": HEADS, "key_dim": SIZE} | arguments
    layer = kind(**arguments)
    layer.build([2, TIME, WIDTH], [2, TIME + 1, WIDTH])
    for seed, weight in enumerate(layer.trainable_variables):
        weight.assign(values(*weight.shape, seed=seed) * 0.5)
    return layer


BOTH = (transformer_layers.FusedMultiHeadAttention, keras.layers.MultiHeadAttention)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_is_keras_s_with_its_gradients(dtype):
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    made = [attention(kind, value_dim=4, output_shape=3, dtype=policy) for kind in BOTH]
    query, value = values(2, TIME, WIDTH), values(2, TIME + 1, WIDTH, seed=1)

    def found(layer):
        def call(query, value, *weights):
            return layer.stateless_call(weights, layer.non_trainable_variables, query, value)[0]

        return with_gradients(call, query, value, *(w.value for w in layer.trainable_variables))

    # The gradient of the keys' bias is 0, but for rounding: it moves all scores alike.
    bias = 2 + [w.path.endswith("key/bias") for w in made[0].trainable_variables].index(True) + 1
    mine, theirs = (
        [value for place, value in enumerate(found(layer)) if place != bias] for layer in made
    )
    assert_close(mine, theirs, dtype)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, {"attention_mask": np.tri(TIME, dtype=bool)[None]}),
        ({}, {"use_causal_mask": True}),
        ({}, {"return_attention_scores": True}),
        ({"dropout": 0.5, "seed": 3}, {"training": True}),
    ],
    ids=["mask", "causal", "scores", "dropout"],
)
def test_what_only_keras_s_attention_has_is_keras_s(arguments, options):
    x = values(2, TIME, WIDTH)
    mine, theirs = (attention(kind, **arguments)(x, x, **options) for kind in BOTH)
    for one, other in zip(tf.nest.flatten(mine), tf.nest.flatten(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mask_of_the_tokens_reaches_attention():
    def masked(kind):
        keras.utils.set_random_seed(0)
        tokens = keras.Input([None], dtype="int32")
        x = keras.layers.Embedding(9, WIDTH, mask_zero=True)(tokens)
        return keras.Model(tokens, kind(HEADS, SIZE)(x, x))

    tokens = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    mine, theirs = (masked(kind)(tokens) for kind in BOTH)
    np.testing.assert_array_equal(mine, theirs)


def test_on_a_gpu_they_are_keras_s(monkeypatch):
    x, layer = values(2, TIME, WIDTH), keras.layers
    expected = [
        keras.activations.gelu(x),
        layer.LayerNormalization()(x),
        attention(BOTH[1])(x, x),
    ]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [kind])
    compiled = ("_gelu_of", "_layer_norm_of")
    for name in compiled:
        monkeypatch.setattr(transformer_layers, name, None)
    found = [
        transformer_layers.gelu(x),
        transformer_layers.FusedLayerNormalization()(x),
        attention(BOTH[0])(x, x),
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def encoder():
    """A block of a transformer over tokens, and layers with and without GELU."""
    layers = keras.layers
    tokens = keras.Input([TIME], dtype="int32")
    x = layers.Embedding(9, WIDTH)(tokens)
    y = layers.LayerNormalization(name="norm")(x)
    x = x + layers.MultiHeadAttention(HEADS, SIZE, name="attention")(y, y)
    y = layers.Dense(8, activation="gelu", name="dense")(x)
    y = layers.EinsumDense("abc,cd->abd", (None, WIDTH), activation="gelu", name="einsum")(y)
    y = layers.Activation("gelu", name="activation")(y)
    y = layers.Dense(WIDTH, activation="relu", name="other")(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="last")(x + y))
    return keras.Model(tokens, layers.Dense(toys.CLASSES, name="logits")(x))


def batch():
    """Tokens and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(9, size=(8, TIME)).astype(np.int32), rng.integers(toys.CLASSES, size=8)


def test_fused_puts_them_in_their_places(tmp_path):
    model = toys.on_cpu(encoder)
    made = networks.fused(model)
    assert type(made.get_layer("attention")) is transformer_layers.FusedMultiHeadAttention
    for name in ("norm", "last"):
        assert type(made.get_layer(name)) is transformer_layers.FusedLayerNormalization
    has_it = [
        layer.name
        for layer in made.layers
        if getattr(layer, "activation", None) is transformer_layers.gelu
    ]
    assert has_it == ["dense", "einsum", "activation"]
    tokens, _ = batch()
    np.testing.assert_allclose(made(tokens), model(tokens), rtol=1e-5, atol=1e-6)
    made.save(tmp_path / "made.keras")
    loaded = keras.models.load_model(tmp_path / "made.keras")
    np.testing.assert_array_equal(loaded(tokens), made(tokens))


@keras.saving.register_keras_serializable(package="tests")
class Smooth(keras.layers.Layer):
    """A layer with an activation of its own, which is not an argument."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.activation = keras.activations.gelu

    def call(self, inputs):
        return self.activation(inputs, approximate=True)


class OwnDense(keras.layers.Dense):
    """A layer that may use its activation in another way."""


def test_other_people_s_layers_stay_as_they_are():
    mine = Smooth(name="mine"), OwnDense(2, activation="gelu", name="dense")
    model = keras.Sequential([keras.Input([None, 4]), *mine])
    made = networks.fused(model)
    for name in ("mine", "dense"):
        assert made.get_layer(name).activation is keras.activations.gelu
    x = values(2, 3, 4)
    np.testing.assert_array_equal(made(x), model(x))


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.long)])
def test_it_trains_as_keras_s_do_with_the_same_bits_on_any_number_of_towers(jit_compile):
    def trained(model, num_towers):
        trainer = toys.trainer(
            model, num_towers=num_towers, global_batch_size=8, num_microbatches=4,
            jit_compile=jit_compile,
        )  # fmt: skip
        losses = [float(loss) for loss in trainer.fit([batch()] * 4)]
        return losses, trainer.state.sha256()

    model = toys.on_cpu(encoder)
    one, two, four = (trained(networks.fused(model), n) for n in (1, 2, 4))
    assert one == two == four
    expected, _ = trained(model, 1)
    np.testing.assert_allclose(one[0], expected, rtol=1e-5)
    assert expected[-1] < expected[0]
