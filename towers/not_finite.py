"""Losses and gradients that are not finite: found before they are applied."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from towers import devices, gradients

_MARK = "a loss or a gradient is not finite"  # tells the error of `check` from TensorFlow's own


def all_finite(
    losses: tf.Tensor, mean: Sequence[gradients.Gradient], optimizer: keras.optimizers.Optimizer
) -> tf.Tensor:
    """Whether losses [M] and gradients are finite, bool [].

    So must the gradients' norm be, where it is clipped. With a dynamic loss scale above 1 they may
    overflow: the optimizer skips the update and lowers the scale.
    """
    # TensorFlow's check_numerics takes ten times as long on a CPU (docs/reliability.md).
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in mean if g is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    if getattr(optimizer, "global_clipnorm", None) is not None:
        finite &= tf.math.is_finite(gradients.global_norm(mean))
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        finite |= optimizer.scale_loss(tf.ones([])) > 1
    return finite & tf.reduce_all(tf.math.is_finite(losses))


def check(all_finite: tf.Tensor) -> tf.Operation:
    """An operation that fails where not all is finite."""
    with tf.device(devices.HOST):  # no GPU has a constant of text
        return tf.raw_ops.Assert(condition=all_finite, data=[_MARK])


def is_from_check(error: tf.errors.OpError) -> bool:
    """Whether the error that a step ended with is that of `check`."""
    return _MARK in error.message
