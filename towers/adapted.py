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


def copy_vocabularies(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy the vocabularies that layers have learned, which no variable of theirs holds.

    Raises:
      ValueError: a layer has learned weights of its words, too, which Keras has no way to set.
    """
    kinds = (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)
    both = zip(model._flatten_layers(), copy._flatten_layers(), strict=True)
    for layer, other in ((a, b) for a, b in both if isinstance(a, kinds)):
        if layer.get_config()["output_mode"] == "tf_idf":
            raise ValueError(
                f"the layer {layer.name} counts words by tf-idf, whose weights a copy of the model "
                "would not have: call it before the model, in the data"
            )
        words = layer.get_vocabulary(include_special_tokens=False)
        if words:
            other.set_vocabulary(words)


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
