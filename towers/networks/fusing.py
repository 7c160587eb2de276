"""The same model with fused batch norms, for any Keras model made of layers."""

import keras
import tensorflow as tf

from towers import adapted, devices
from towers.networks import layers

_DTYPES = ("float32", "bfloat16", "float16")


def fused(model: keras.Model) -> keras.Model:
    """A copy of a model with TensorFlow's one operation for each batch norm.

    Each `keras.layers.BatchNormalization` over the channels of images becomes a
    `layers.FusedBatchNormalization` of the same name and the same weights. All other layers are as
    they were, those within layers of your own too. The function is the same up to rounding, in
    training and without, so weights of the one fit the other.

    Args:
      model: a `keras.Sequential` or a `keras.Model` of inputs and outputs; built. So are models
        within it.

    Returns:
      A model with variables of its own, on the device of the given model.

    Raises:
      TypeError: it is not a Keras model.
      ValueError: the model is not built; or Keras cannot take it, or a model within it, apart: it
        is a subclass with a `call` of its own.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model is of type {type(model).__name__}: must be a Keras model")
    if not model.built:
        raise ValueError(f"the model {model.name} is not built yet: call it on some inputs first")
    _check_is_of_layers(model)
    weights = model.variables
    with tf.device(weights[0].value.device if weights else devices.HOST):
        made = keras.models.clone_model(model, clone_function=_replaced, recursive=True)
    for new, old in zip(made.variables, model.variables, strict=True):
        new.assign(old)
        if new.trainable != old.trainable:  # frozen by itself, and not with its layer
            new.trainable = old.trainable
    adapted.refresh(made)
    return made


def _check_is_of_layers(model: keras.Model) -> None:
    for part in [model, *model._flatten_layers(include_self=False)]:
        if isinstance(part, keras.Model) and not type(part).__module__.startswith("keras."):
            raise ValueError(
                f"the model {part.name} is a {type(part).__name__}: must be a keras.Sequential or "
                "a keras.Model(inputs, outputs); a model with a call of its own can itself use "
                "layers.FusedBatchNormalization"
            )


def _replaced(layer: keras.layers.Layer) -> keras.layers.Layer:
    kind = type(layer)
    if kind is keras.layers.BatchNormalization and _is_over_channels(layer):
        kind = layers.FusedBatchNormalization
    return kind.from_config(layer.get_config())


def _is_over_channels(layer: keras.layers.BatchNormalization) -> bool:
    return (
        layer.built
        and layer.input_spec.ndim == 4
        and layer.axis in (-1, 3)
        and not layer.renorm
        and not layer.synchronized
        and layer.compute_dtype in _DTYPES
    )
