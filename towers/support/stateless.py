"""Keras models called as pure functions."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from towers.support import adapted, structures


def call(
    model: keras.Model,
    weights: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    inputs: structures.Structure,
    *,
    training: bool,
    return_losses: bool = False,
):
    """`model.stateless_call`, with `training` where the model's own `call` takes it.

    Keras's `fit` does the same: a model without that argument decides by itself.
    """
    mode = {"training": training} if model._call_has_training_arg else {}
    with adapted.read_from(model, state):
        return model.stateless_call(weights, state, inputs, return_losses=return_losses, **mode)
