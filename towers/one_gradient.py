"""The gradient of one weight: a Tensor, a `tf.IndexedSlices` (an embedding's), or None."""

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def widened(gradient: Gradient) -> Gradient:
    """As float32, if its type is narrower."""
    if gradient is None or gradient.dtype not in (tf.bfloat16, tf.float16):
        return gradient
    return _on_values(gradient, lambda values: tf.cast(values, tf.float32))


def add(a: Gradient, b: Gradient) -> Gradient:
    """The sum; None counts as zero, and of two that are sparse the rows are joined."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([a.values, b.values], axis=0),
            tf.concat([a.indices, b.indices], axis=0),
            a.dense_shape,
        )
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)


def times(gradient: Gradient, factor: float | tf.Tensor) -> Gradient:
    """The product, at least in float32, in which the factor keeps its bits."""
    return _on_values(widened(gradient), lambda v: v * tf.cast(factor, v.dtype))


def over(gradient: Gradient, count: int | tf.Tensor) -> Gradient:
    """The quotient."""
    return _on_values(gradient, lambda v: v / tf.cast(count, v.dtype))


def _on_values(gradient: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
