"""The networks that `benchmarks.networks` compares, in Keras.

`pytorch_tasks` has the same ones in PyTorch; a test counts their weights.
"""

import keras
import numpy as np
import tensorflow as tf

from benchmarks.peers import task_sizes as sizes
from towers import devices, networks
from towers.networks import layers


def build(name: str, compute_dtype: str, parameter_device: str = devices.HOST) -> keras.Model:
    """A model that gives logits [n, CLASSES]; types and device as `networks.build` has them."""
    shape = sizes.SHAPES[name]
    if name in networks.NETWORKS:
        model = networks.build(
            name,
            shape,
            sizes.CLASSES,
            compute_dtype=compute_dtype,
            parameter_device=parameter_device,
        )
        if adapt := networks.NETWORKS[name].adapt:
            adapt(model, inputs(name))
        return model
    keras.config.set_dtype_policy(networks.DTYPE_POLICIES[compute_dtype])
    with tf.device(parameter_device):
        return {"mobilenet": _mobilenet, "transformer": _transformer, "lstm": _lstm}[name]()


def with_keras_layers(model: keras.Model) -> keras.Model:
    """The network as it is without towers: with Keras's own batch norm."""

    def plain(layer):
        is_fused = type(layer) is layers.FusedBatchNormalization
        kind = keras.layers.BatchNormalization if is_fused else type(layer)
        return kind.from_config(layer.get_config())

    made = keras.models.clone_model(model, clone_function=plain)
    made.set_weights(model.get_weights())
    return made


def inputs(name: str, batch: int | None = None) -> np.ndarray:
    """One batch, of the usual size unless one is given: float32 images, or int32 tokens."""
    rng, shape = np.random.default_rng(0), (batch or sizes.BATCHES[name], *sizes.SHAPES[name])
    if len(shape) == 2:
        return rng.integers(0, sizes.VOCABULARY, shape, np.int32)
    return rng.normal(size=shape).astype(np.float32)


def labels(name: str, batch: int | None = None) -> np.ndarray:
    """Classes of a batch, int32 [n]."""
    n = batch or sizes.BATCHES[name]
    return np.random.default_rng(1).integers(0, sizes.CLASSES, n, np.int32)


def _mobilenet() -> keras.Model:
    """`keras.applications.MobileNetV2`, with a third of its channels."""
    return keras.applications.MobileNetV2(
        sizes.SHAPES["mobilenet"],
        alpha=0.35,
        weights=None,
        classes=sizes.CLASSES,
        classifier_activation=None,
    )


def _transformer() -> keras.Model:
    """An encoder: attention, then two dense layers, each after its norm."""
    width = sizes.WIDTH
    tokens = keras.Input([sizes.TOKENS], dtype="int32")
    x = keras.layers.Embedding(sizes.VOCABULARY, width)(tokens)
    for _ in range(sizes.BLOCKS):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(sizes.HEADS, width // sizes.HEADS)(y, y)
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(y))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, keras.layers.Dense(sizes.CLASSES)(x))


def _lstm() -> keras.Model:
    """One LSTM over embedded tokens."""
    return keras.Sequential(
        [
            keras.Input([sizes.TOKENS], dtype="int32"),
            keras.layers.Embedding(sizes.VOCABULARY, sizes.UNITS),
            keras.layers.LSTM(sizes.UNITS),
            keras.layers.Dense(sizes.CLASSES),
        ]
    )
