"""Losses and gradients that are not finite: found before they are applied, and named."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from towers import devices, gradients, tower
from towers.support import loss_scale

_MARK = "a loss or a gradient is not finite"  # tells the error of `check` from TensorFlow's own


class NotFiniteError(ArithmeticError):
    """A loss or a gradient of a step is not finite; the step was not applied.

    Attributes:
      step: the step that would have been made.
      tower: the first tower that has it; None where each tower's own values are finite, and their
        sum is not.
      what: the terms of the loss, or the weights whose gradient it is.
    """

    def __init__(self, step: int, tower: int | None, what: str):
        where = "all towers together" if tower is None else f"tower {tower}"
        super().__init__(f"step {step}, {where}: {what} is NaN or Inf")
        self.step, self.tower, self.what = step, tower, what


def all_finite(
    results: Sequence[tower.TowerResult],
    reduced: Sequence[gradients.Gradient],
    optimizer: keras.optimizers.Optimizer,
) -> tf.Tensor:
    """Whether the losses of all towers and the reduced gradients are finite, bool [].

    So must the gradients' norm be, where it is clipped. With a dynamic loss scale above 1 they may
    overflow: the optimizer skips the update and lowers the scale.
    """
    # TensorFlow's check_numerics takes ten times as long on a CPU (docs/reliability.md).
    finite_gradients = _all_finite([_values(g) for g in reduced if g is not None])
    if getattr(optimizer, "global_clipnorm", None) is not None:
        finite_gradients &= tf.math.is_finite(gradients.global_norm(reduced))
    if loss_scale.is_dynamic(optimizer):
        finite_gradients |= loss_scale.of(optimizer) > 1
    return _all_finite([result.losses["total"] for result in results]) & finite_gradients


def check(all_finite: tf.Tensor) -> tf.Operation:
    """An operation that fails where not all is finite."""
    with tf.device(devices.HOST):  # no GPU has a constant of text
        return tf.raw_ops.Assert(condition=all_finite, data=[_MARK])


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(values)) for values in tensors])


def is_from_check(error: tf.errors.InvalidArgumentError) -> bool:
    """Whether the error that a step ended with is that of `check`."""
    return _MARK in error.message


def find(
    results: Sequence[tower.TowerResult], weights: Sequence[keras.Variable]
) -> tuple[int | None, str]:
    """The first tower with a loss that is not finite, or else with such a gradient.

    Args:
      results: of every tower, for the batch and the weights with which a step failed.
      weights: the model's.

    Returns:
      The tower, or None if no tower's own values show it, and what is not finite.
    """
    for index, result in enumerate(results):
        terms = [term for term, values in result.losses.items() if not _is_finite(values)]
        if terms:
            parts = [term for term in terms if term != "total"] or terms
            return index, f"the loss ({_few(parts)})"
    for index, result in enumerate(results):
        paths = [
            weight.path
            for of_weights in result.sums.values()
            for weight, gradient in zip(weights, of_weights, strict=True)
            if gradient is not None and not _is_finite(_values(gradient))
        ]
        if paths:
            return index, f"the gradient of {_few(list(dict.fromkeys(paths)))}"
    return None, "the reduced gradient, or its norm,"


def _values(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _is_finite(values: tf.Tensor) -> bool:
    return bool(np.isfinite(values.numpy()).all())


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
