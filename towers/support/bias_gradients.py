"""The gradient of a bias in bfloat16 on a CPU, which TensorFlow gets wrong.

There, TensorFlow 2.21's operation for it, `BiasAddGrad`, adds up in bfloat16, which has 8 bits: a
sum that is 256 times as large as what is added stays as it is (docs/reliability.md has errors).
"""

import contextlib

import tensorflow as tf

from tensorflow.python.framework import ops  # isort: skip


@contextlib.contextmanager
def summed_in_float32(wanted: bool):
    """Gradients that are built here sum those of biases in float32, and round once.

    TensorFlow's own gradient of `tf.nn.bias_add` is replaced in the meantime: it has no public way
    to choose another one for operations that layers of others make.

    Args:
      wanted: False leaves it as it is.
    """
    registered = ops.gradient_registry._registry
    own = registered["BiasAdd"]
    if wanted:
        registered["BiasAdd"] = own | {"type": _gradient}
    try:
        yield
    finally:
        registered["BiasAdd"] = own


def _gradient(op, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the values and of the bias."""
    channels = 1 if op.get_attr("data_format") == b"NCHW" else -1
    rank = upstream.shape.rank
    if upstream.dtype != tf.bfloat16 or rank is None:
        return upstream, tf.raw_ops.BiasAddGrad(
            out_backprop=upstream, data_format=op.get_attr("data_format")
        )
    others = [axis for axis in range(rank) if axis != channels % rank]
    return upstream, tf.reduce_sum(upstream, others)
