"""Normalization layers keep what they learned from data twice: as variables and as constants.

A checkpoint, a copy and a step have the variables; a call of the layer reads the constants, which
would stay in a graph whatever is restored.
"""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf


def _layers(model: keras.Model) -> list[keras.layers.Normalization]:
    # Also those within your own layers; Keras has no public way to them.
    found = (one for one in model._flatten_layers() if isinstance(one, keras.layers.Normalization))
    return [one for one in found if one.built and one.input_mean is None]  # else: no variables


def refresh(model: keras.Model) -> None:
    """Makes the constants again from the variables, after these were assigned."""
    for layer in _layers(model):
        layer.finalize_state()


@contextlib.contextmanager
def read_from(model: keras.Model, state: Sequence[tf.Tensor]) -> Iterator[None]:
    """While entered, calls of the layers read the given state of the model, and no constants.

    Args:
      model: that is called.
      state: the values of its `non_trainable_variables`.
    """
    places = {id(variable): place for place, variable in enumerate(model.non_trainable_variables)}
    layers = _layers(model)
    constants = [(layer.mean, layer.variance) for layer in layers]
    try:
        for layer, (mean, variance) in zip(layers, constants, strict=True):
            of_state = [state[places[id(v)]] for v in (layer.adapt_mean, layer.adapt_variance)]
            layer.mean, layer.variance = (
                keras.ops.cast(keras.ops.reshape(value, constant.shape), constant.dtype)
                for value, constant in zip(of_state, (mean, variance), strict=True)
            )
        yield
    finally:
        for layer, (mean, variance) in zip(layers, constants, strict=True):
            layer.mean, layer.variance = mean, variance
