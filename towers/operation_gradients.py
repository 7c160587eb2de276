"""Gradients of two operations that TensorFlow gets wrong, or XLA makes slow.

**Of a bias in bfloat16.** TensorFlow 2.21's operation for it, `BiasAddGrad`, adds up in bfloat16 on
a CPU. The significand of bfloat16 has 8 bits, so a sum that is 256 times as large as what is added
stays as it is. On a GPU, the operation adds up the sums of its blocks in bfloat16.
(docs/reliability.md has errors.)

**Of max pooling, where XLA compiles it.** XLA's is a scatter: on a GPU, additions in no particular
order, whose last bits differ from run to run.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import tensorflow as tf

from tensorflow.python.framework import ops  # isort: skip

# Whether XLA compiles the tower whose gradients this thread builds; None outside of towers.
_in_xla: contextvars.ContextVar[bool | None] = contextvars.ContextVar("in_xla", default=None)


@contextlib.contextmanager
def corrected(jit_compile: bool) -> Iterator[None]:
    """Gradients that this thread builds here are those of this module.

    Args:
      jit_compile: whether XLA compiles them.
    """
    before = _in_xla.set(jit_compile)
    try:
        yield
    finally:
        _in_xla.reset(before)


def _bias_add_gradient(op, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the values and of the bias, which is summed in float32 and rounded once."""
    if upstream.dtype != tf.bfloat16 or _in_xla.get() is None:
        return _tensorflow_s["BiasAdd"](op, upstream)
    rank = upstream.shape.rank
    axes = tf.range(tf.rank(upstream)) if rank is None else list(range(rank))
    has_channels_first = op.get_attr("data_format") == b"NCHW"
    others = tf.concat([axes[:1], axes[2:]], axis=0) if has_channels_first else axes[:-1]
    # On a CPU, a sum of bfloat16 is made in float32.
    has_gpu = bool(tf.config.get_visible_devices("GPU"))
    values = tf.cast(upstream, tf.float32) if has_gpu else upstream
    return upstream, tf.cast(tf.reduce_sum(values, others), tf.bfloat16)


def _max_pool_gradient(op, upstream: tf.Tensor) -> tf.Tensor:
    """The first maximum of a window takes all; what an input gets from several is added in order.

    The same bits as TensorFlow's own kernel. An input's windows, in their order, meet it at places
    of decreasing number, so the places are taken from the last to the first.
    """
    x, strides, sizes = op.inputs[0], op.get_attr("strides"), op.get_attr("ksize")
    is_known = None not in (*x.shape[1:], *upstream.shape[1:])
    is_of_images = op.get_attr("data_format") == b"NHWC" and sizes[0] == sizes[3] == 1
    is_padded_alike = op.get_attr("padding") in (b"SAME", b"VALID")
    if not (_in_xla.get() and is_known and is_of_images and is_padded_alike):
        return _tensorflow_s["MaxPool"](op, upstream)
    pads = [[0, 0]] * 4
    for axis in (1, 2):
        needed = (upstream.shape[axis] - 1) * strides[axis] + sizes[axis] - x.shape[axis]
        if op.get_attr("padding") == b"SAME":
            pads[axis] = [max(needed, 0) // 2, max(needed, 0) - max(needed, 0) // 2]
    padded = tf.pad(x, pads, constant_values=-float("inf"))
    lengths = [(upstream.shape[axis] - 1) * strides[axis] + 1 for axis in (1, 2)]
    cut = {"begin_mask": 0b1001, "end_mask": 0b1001}  # all examples and channels
    places = [  # in a window: what all windows have there is one strided slice
        ([0, row, column, 0], [0, row + lengths[0], column + lengths[1], 0], strides)
        for row in range(sizes[1])
        for column in range(sizes[2])
    ]
    values = [tf.strided_slice(padded, *place, **cut) for place in places]
    largest, first = values[0], tf.zeros_like(values[0], tf.int32)
    for number, value in enumerate(values[1:], start=1):
        first = tf.where(value > largest, number, first)
        largest = tf.maximum(value, largest)
    spread = [
        tf.raw_ops.StridedSliceGrad(
            shape=tf.shape(padded), begin=begin, end=end, strides=step, **cut,
            dy=tf.where(first == number, upstream, tf.zeros_like(upstream)),
        )
        for number, (begin, end, step) in enumerate(places)
    ]  # fmt: skip
    total = functools.reduce(tf.add, reversed(spread))
    return tf.slice(total, [before for before, _ in pads], tf.shape(x))


# There is no public way to choose the gradient of operations that layers of others make.
_tensorflow_s = {name: ops.gradient_registry.lookup(name) for name in ("BiasAdd", "MaxPool")}
ops.gradient_registry._registry["BiasAdd"] |= {"type": _bias_add_gradient}
ops.gradient_registry._registry["MaxPool"] |= {"type": _max_pool_gradient}
