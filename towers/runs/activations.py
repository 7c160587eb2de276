"""A model's activations in the coming step, for TensorBoard's histograms."""

import keras
import tensorflow as tf


def with_activations(model: keras.Model) -> keras.Model | None:
    """The model with the activation of each nonlinear layer as an output, beside its own.

    None for a subclassed model, which has no graph of layers to look into.
    """
    if not getattr(model, "inputs", None):
        return None
    outputs = {  # of an LSTM with its states, the sequence or the last output
        layer.name: tf.nest.flatten(layer.output)[0]
        for layer in model.layers
        if _is_nonlinear(layer)
    }
    own = {output._keras_history.operation.name: output for output in model.outputs}
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    try:
        return keras.Model(inputs, outputs | own)
    except ValueError:
        # A layer that was first called in another model has its `output` there.
        return keras.Model(inputs, own)


def _is_nonlinear(layer: keras.layers.Layer) -> bool:
    if isinstance(layer, (keras.layers.ReLU, keras.layers.Activation)):
        return True
    return getattr(layer, "activation", None) not in (None, keras.activations.linear)
