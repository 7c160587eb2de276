"""Gradients of many microbatches become one gradient per weight.

`gradients[p][w]` is indexed by part p (a microbatch or a tower) and by weight w, in the order of
`model.trainable_variables`. A gradient is a Tensor, a `tf.IndexedSlices` (an embedding's), or None
where the loss does not depend on the weight.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

Gradient = tf.Tensor | tf.IndexedSlices | None
REDUCTIONS = ("mean", "sum")


def pairwise_tree(values: Sequence, add: Callable):
    """Adds neighbours, then neighbours of the sums, until one is left: (v0+v1)+(v2+v3).

    Floating-point addition is not associative, so the order is part of the result. In this order a
    run of consecutive values whose length is a power of two is a subtree: a tower can add up its
    own share first, and the total is the same to the last bit. An odd one out moves up a level.

    Raises:
      ValueError: `values` is empty.
    """
    if not values:
        raise ValueError("nothing to add")
    level = list(values)
    while len(level) > 1:
        pairs = [add(a, b) for a, b in zip(level[0::2], level[1::2], strict=False)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def are_subtrees(num_microbatches: int, num_shares: int) -> bool:
    """Whether equal shares of the microbatches are subtrees: then they have the bits of one."""
    if num_shares == 1:
        return True
    return num_microbatches % num_shares == 0 and (num_microbatches // num_shares).bit_count() == 1


def same_bits(num_microbatches: int) -> list[int]:
    """The numbers of towers that all end with the same bits, from 1 on."""
    numbers = range(1, num_microbatches + 1)
    return [number for number in numbers if are_subtrees(num_microbatches, number)]


def sum_over_parts(gradients: Sequence[Sequence[Gradient]]) -> list[Gradient]:
    """Sums `gradients[p][w]` over the parts p along the fixed tree.

    Returns:
      One gradient per weight: None where it is None in every part; IndexedSlices where it is
      IndexedSlices in every part that has one (indices and values are joined, which is their sum).
      Types narrower than float32 are added as float32, in which eight bits of a mantissa are not
      worn down by the sum; Keras's optimizers cast to the type of the weight.

    Raises:
      ValueError: the parts do not have the same number of weights.
    """
    lengths = {len(part) for part in gradients}
    if len(lengths) != 1:
        raise ValueError(f"parts have different numbers of gradients: {sorted(lengths)}")
    wide = [[_widened(gradient) for gradient in part] for part in gradients]
    return [pairwise_tree(of_weight, _add) for of_weight in zip(*wide, strict=True)]


def _widened(gradient: Gradient) -> Gradient:
    if gradient is None or gradient.dtype not in (tf.bfloat16, tf.float16):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return _with_values(gradient, tf.cast(gradient.values, tf.float32))
    return tf.cast(gradient, tf.float32)


def _add(a: Gradient, b: Gradient) -> Gradient:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([a.values, b.values], axis=0),
            tf.concat([a.indices, b.indices], axis=0),
            a.dense_shape,
        )
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)


def scale(gradients: Sequence[Gradient], factor: float | tf.Tensor) -> list[Gradient]:
    """Multiplies every gradient by `factor`; None stays None, IndexedSlices stay sparse.

    Types narrower than float32 become float32, in which the factor has its bits.
    """
    return [
        _on_values(_widened(gradient), lambda v: v * tf.cast(factor, v.dtype))
        for gradient in gradients
    ]


def _divide(gradients: Sequence[Gradient], count: int | tf.Tensor) -> list[Gradient]:
    return [_on_values(gradient, lambda v: v / tf.cast(count, v.dtype)) for gradient in gradients]


def _on_values(gradient: Gradient, function: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return _with_values(gradient, function(gradient.values))
    return function(gradient)


def _with_values(gradient: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def reduce_towers(
    tower_sums: Sequence[Sequence[Gradient]],
    num_microbatches: int,
    reduction: str,
    total_weight: tf.Tensor | None = None,
) -> list[Gradient]:
    """Reduces the towers' sums to the gradient that the optimizer applies.

    `mean`: the sum over all microbatches divided, once, by their number. Since every microbatch
    has the same number of examples, that is the gradient of the mean loss over the global batch.
    `sum`: num_microbatches times that. So with SGD, with momentum or without, `sum` at learning
    rate r equals `mean` at num_microbatches * r; Adam divides by the gradient's own size, which
    cancels the factor but for Adam's epsilon, and there `sum` at r nearly equals `mean` at r.

    Args:
      tower_sums: `tower_sums[t][w]`, tower t's sum over its own microbatches.
      num_microbatches: microbatches of the global batch, over all towers.
      reduction: one of REDUCTIONS.
      total_weight: where examples are weighted, each microbatch's gradient has been multiplied by
        the weight of its examples, and this is the weight of all, a scalar >= 0; the mean is then
        divided by it, and is 0 where it is 0.

    Raises:
      ValueError: `reduction` is unknown.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: must be one of {', '.join(REDUCTIONS)}")
    total = [_with_unique_rows(gradient) for gradient in sum_over_parts(tower_sums)]
    if total_weight is None:
        return total if reduction == "sum" else _divide(total, num_microbatches)
    mean = _divide(total, tf.where(total_weight > 0, total_weight, 1))  # 0 / 1 where all weigh 0
    return scale(mean, num_microbatches) if reduction == "sum" else mean


def _with_unique_rows(gradient: Gradient) -> Gradient:
    # Keras's Adam and its clipping square the rows of IndexedSlices one by one, which is right only
    # where no index comes twice. Rows are added in the order of the microbatches.
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, row_of = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, row_of, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean norm of all gradients together, float32 []; None counts as zero."""
    present = [g for g in gradients if g is not None]
    dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in present]
    return tf.linalg.global_norm(dense)
