"""The gradient of a bias in bfloat16, which TensorFlow gets wrong.

TensorFlow 2.21's operation for it, `BiasAddGrad`, adds up in bfloat16 on a CPU. The significand of
bfloat16 has 8 bits, so a sum that is 256 times as large as what is added stays as it is. On a GPU,
the operation adds up the sums of its blocks in bfloat16. (docs/reliability.md has errors.)
"""

import contextlib
import contextvars

import tensorflow as tf

from tensorflow.python.framework import ops  # isort: skip

_is_wanted = contextvars.ContextVar("sum gradients of biases in float32", default=False)


@contextlib.contextmanager
def summed_in_float32():
    """Gradients that this thread builds here sum those of biases in float32, and round once."""
    before = _is_wanted.set(True)
    try:
        yield
    finally:
        _is_wanted.reset(before)


def _gradient(op, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the values and of the bias."""
    if upstream.dtype != tf.bfloat16 or not _is_wanted.get():
        return _tensorflow_s(op, upstream)
    rank = upstream.shape.rank
    axes = tf.range(tf.rank(upstream)) if rank is None else list(range(rank))
    has_channels_first = op.get_attr("data_format") == b"NCHW"
    others = tf.concat([axes[:1], axes[2:]], axis=0) if has_channels_first else axes[:-1]
    # On a CPU, a sum of bfloat16 is made in float32.
    has_gpu = bool(tf.config.get_visible_devices("GPU"))
    values = tf.cast(upstream, tf.float32) if has_gpu else upstream
    return upstream, tf.cast(tf.reduce_sum(values, others), tf.bfloat16)


# There is no public way to choose the gradient of operations that layers of others make.
_tensorflow_s = ops.gradient_registry.lookup("BiasAdd")
ops.gradient_registry._registry["BiasAdd"] |= {"type": _gradient}
