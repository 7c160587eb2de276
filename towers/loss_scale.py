"""The loss scale of float16: what an optimizer divides gradients by."""

import keras
import tensorflow as tf

from towers import one_gradient


def of(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """What the optimizer will divide gradients by, float32 []; None for nothing."""
    if is_dynamic(optimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale.value)
    factor = optimizer.loss_scale_factor
    return None if factor is None else tf.constant(factor, tf.float32)


def is_dynamic(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the scale changes, and an update is left out where gradients overflow."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def taken_off(
    optimizer: keras.optimizers.Optimizer, gradients: list[one_gradient.Gradient]
) -> list[one_gradient.Gradient]:
    """The gradients without the scale."""
    scale = of(optimizer)
    if scale is None:
        return gradients
    return [one_gradient.times(gradient, 1.0 / scale) for gradient in gradients]
