"""Moving averages of the weights: what is evaluated and exported.

    average <- average - (1 - d) * (average - weight),   d = min(decay, (1 + step) / (10 + step))

with `step` the number of updates before this one. The warm start, from the tutorial and
`tf.train.ExponentialMovingAverage(num_updates=...)`, lets the averages follow the weights closely
while these still move fast.
"""

from collections.abc import Sequence

import tensorflow as tf


def update(
    averages: Sequence[tf.Variable], weights: Sequence[tf.Tensor], decay: float, step: tf.Tensor
) -> None:
    """Moves each average toward its weight.

    Called after the optimizer's update inside one `tf.function`, whose automatic control
    dependencies order the reads of the weights after their assignment.

    Args:
      averages: one variable per weight, of its shape and dtype.
      weights: the weights after the update.
      decay: in [0, 1).
      step: int64 [], updates made before this one.
    """
    step = tf.cast(step, tf.float32)
    one_minus_decay = 1.0 - tf.minimum(decay, (1.0 + step) / (10.0 + step))
    for average, weight in zip(averages, weights, strict=True):
        average.assign_sub(tf.cast(one_minus_decay, weight.dtype) * (average - weight))
