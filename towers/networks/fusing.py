"""The same model with fused batch norms, for any Keras model made of layers."""

import keras
import tensorflow as tf

from towers import devices, model_state
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
      ValueError: the model is not built; or Keras cannot take it, or a model within it, apart: it
        is a subclass with a `call` of its own.
    """
    for part in model._flatten_layers():
        if isinstance(part, keras.Model) and not type(part).__module__.startswith("keras."):
            raise ValueError(
                f"the model {part.name} is a {type(part).__name__}: must be a keras.Sequential or "
                "a keras.Model(inputs, outputs); a model with a call of its own can itself use "
                "layers.FusedBatchNormalization"
            )
    if not model.built:
        raise ValueError(f"the model {model.name} is not built yet: call it on some inputs first")
    with tf.device(model.variables[0].value.device if model.variables else devices.HOST):
        made = keras.models.clone_model(model, clone_function=_replaced, recursive=True)
    for new, old in zip(made.variables, model.variables, strict=True):
        new.assign(old)
        if new.trainable != old.trainable:  # frozen by itself, and not with its layer
            new.trainable = old.trainable
    model_state.refresh(made)
    return made


def _replaced(layer: keras.layers.Layer) -> keras.layers.Layer:
    kind = type(layer)
    if (
        kind is keras.layers.BatchNormalization
        and layer.built
        and layer.input_spec.ndim == 4
        and layer.axis in (-1, 3)
        and not layer.renorm
        and not layer.synchronized
        and layer.compute_dtype in _DTYPES
    ):
        kind = layers.FusedBatchNormalization
    return kind.from_config(layer.get_config())
