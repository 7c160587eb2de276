"""Gradients of many microbatches become one gradient per weight.

They are added in the order of a fixed tree, whose leaves are the microbatches. A list of gradients
has one per weight, in the order of `model.trainable_variables`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

# Of a weight; IndexedSlices of an embedding's, None where the loss does not depend on it.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None
Subtree = tuple[int, int]  # the first of its leaves, and the one after its last
Sums = Mapping[Subtree, Sequence[Gradient]]  # of the gradients of a subtree's microbatches


def halves(subtree: Subtree) -> tuple[Subtree, Subtree]:
    """The two subtrees whose sums are added for that of `subtree`, which has two leaves or more."""
    first, end = subtree
    middle = first + 2 ** ((end - first - 1).bit_length() - 1)  # the left one is a power of two
    return (first, middle), (middle, end)


def subtrees(share: range, num_leaves: int) -> list[Subtree]:
    """The largest subtrees of the tree over `num_leaves` that lie within `share`, in order."""

    def within(subtree: Subtree) -> list[Subtree]:
        first, end = subtree
        if end <= share.start or share.stop <= first:
            return []
        if share.start <= first and end <= share.stop:
            return [subtree]
        return [part for half in halves(subtree) for part in within(half)]

    return within((0, num_leaves))


def add_up(sums: Mapping[Subtree, Any], subtree: Subtree, add: Callable) -> Any:
    """The sum over a subtree, from the sums over the subtrees that it consists of."""
    if subtree in sums:
        return sums[subtree]
    left, right = halves(subtree)
    return add(add_up(sums, left, add), add_up(sums, right, add))


def pairwise_tree(values: Sequence, add: Callable) -> Any:
    """The sum over the whole tree, from its leaves: ((v0+v1)+(v2+v3))+v4.

    Floating-point addition is not associative, so the order is part of the result. In this order,
    any run of consecutive values consists of a few subtrees: a tower adds up those of its share,
    the rest comes later, and the total is the same to the last bit however they are shared.

    Raises:
      ValueError: `values` is empty.
    """
    if not values:
        raise ValueError("nothing to add")
    leaves = {(place, place + 1): value for place, value in enumerate(values)}
    return add_up(leaves, (0, len(values)), add)


def sum_over_share(
    microbatch_gradients: Sequence[Sequence[Gradient]], share: range, num_microbatches: int
) -> Sums:
    """A tower's sums of its microbatches' gradients, along the fixed tree.

    Args:
      microbatch_gradients: `microbatch_gradients[m][w]`, for each microbatch of the tower.
      share: which microbatches of the global batch these are.
      num_microbatches: of the global batch.

    Returns:
      For each of the tower's `subtrees` one gradient per weight, as `add` makes it. Types narrower
      than float32 are added as float32, so that a long sum does not wear down their few bits of
      mantissa; Keras's optimizers cast to the type of the weight.
    """
    leaves = {
        (m, m + 1): [widened(gradient) for gradient in gradients]
        for m, gradients in zip(share, microbatch_gradients, strict=True)
    }
    return {
        subtree: add_up(leaves, subtree, add_weight_by_weight)
        for subtree in subtrees(share, num_microbatches)
    }


def add_weight_by_weight(a: Sequence[Gradient], b: Sequence[Gradient]) -> list[Gradient]:
    """The sums of two lists of gradients."""
    return [add(one, other) for one, other in zip(a, b, strict=True)]


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


def widened(gradient: Gradient) -> Gradient:
    """As float32, if its type is narrower."""
    if gradient is None or gradient.dtype not in (tf.bfloat16, tf.float16):
        return gradient
    return _on_values(gradient, lambda values: tf.cast(values, tf.float32))


def times(gradient: Gradient, factor: float | tf.Tensor) -> Gradient:
    """The product, at least in float32, in which the factor keeps its bits."""
    return _on_values(widened(gradient), lambda values: values * tf.cast(factor, values.dtype))


def over(gradient: Gradient, count: float | tf.Tensor) -> Gradient:
    """The quotient."""
    return _on_values(gradient, lambda values: values / tf.cast(count, values.dtype))


def _on_values(gradient: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return None if gradient is None else function(gradient)


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean norm of all gradients together, float32 []; None counts as zero."""
    present = [g for g in gradients if g is not None]
    return tf.linalg.global_norm([tf.cast(tf.convert_to_tensor(g), tf.float32) for g in present])
