"""Gradients of many microbatches become one gradient per weight.

They are added in the order of a fixed tree, whose leaves are the microbatches. A gradient is a
Tensor, a `tf.IndexedSlices` (an embedding's), or None where the loss does not depend on the weight;
a list of gradients has one per weight, in the order of `model.trainable_variables`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towers import one_gradient

Gradient = one_gradient.Gradient
Subtree = tuple[int, int]  # the first of its leaves, and the one after its last
Sums = Mapping[Subtree, Sequence[Gradient]]  # of the gradients of a subtree's microbatches


def halves(subtree: Subtree) -> tuple[Subtree, Subtree]:
    """The two subtrees whose sums are added for that of `subtree`, which has two leaves or more."""
    first, end = subtree
    middle = first + 2 ** ((end - first - 1).bit_length() - 1)  # the left one is a power of two
    return (first, middle), (middle, end)


def subtrees(own: range, num_leaves: int) -> list[Subtree]:
    """The largest subtrees of the tree over `num_leaves` that lie within `own`, in order."""

    def within(subtree: Subtree) -> list[Subtree]:
        first, end = subtree
        if end <= own.start or own.stop <= first:
            return []
        if own.start <= first and end <= own.stop:
            return [subtree]
        return [found for half in halves(subtree) for found in within(half)]

    return within((0, num_leaves))


def add_up(sums: Mapping[Subtree, Any], subtree: Subtree, add: Callable) -> Any:
    """The sum over a subtree, from the sums over the subtrees that it consists of."""
    if subtree in sums or subtree[1] - subtree[0] == 1:
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
    of_microbatches: Sequence[Sequence[Gradient]], own: range, num_microbatches: int
) -> Sums:
    """A tower's sums of its microbatches' gradients, along the fixed tree.

    Args:
      of_microbatches: `of_microbatches[m][w]`, for each microbatch of the tower.
      own: which microbatches of the global batch these are.
      num_microbatches: of the global batch.

    Returns:
      For each of the tower's `subtrees` one gradient per weight: None where it is None in every
      microbatch; IndexedSlices where it is IndexedSlices in every one that has one (indices and
      values are joined, which is their sum). Types narrower than float32 are added as float32, so
      that a long sum does not wear down their few bits of mantissa; Keras's optimizers cast to the
      type of the weight.

    Raises:
      ValueError: the microbatches do not have the same number of weights.
    """
    leaves = {
        (m, m + 1): [one_gradient.widened(gradient) for gradient in gradients]
        for m, gradients in zip(own, of_microbatches, strict=True)
    }
    return {
        subtree: add_up(leaves, subtree, add_weight_by_weight)
        for subtree in subtrees(own, num_microbatches)
    }


def add_weight_by_weight(a: Sequence[Gradient], b: Sequence[Gradient]) -> list[Gradient]:
    """The sums of two lists of gradients; a ValueError if they are not of the same weights."""
    if len(a) != len(b):
        raise ValueError(f"parts have different numbers of gradients: {sorted({len(a), len(b)})}")
    return [one_gradient.add(one, other) for one, other in zip(a, b, strict=True)]


def scale(gradients: Sequence[Gradient], factor: float | tf.Tensor) -> list[Gradient]:
    """Multiplies every gradient by `factor`; None stays None, IndexedSlices stay sparse.

    Types narrower than float32 become float32, in which the factor keeps its bits.
    """
    return [one_gradient.times(gradient, factor) for gradient in gradients]


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean norm of all gradients together, float32 []; None counts as zero."""
    present = [g for g in gradients if g is not None]
    dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in present]
    return tf.linalg.global_norm(dense)
