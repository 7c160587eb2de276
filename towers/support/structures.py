"""Batches cut into parts, and the graph of a function of batches found fast."""

import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

# What a model takes: a tensor [n, ...], or a dict, tuple or list of these.
Structure = object


def split(tensor: tf.Tensor, parts: int | Sequence[int]) -> list[tf.Tensor]:
    """Cuts along the first axis into that many equal parts, or parts of these sizes, in order.

    By slices: GPUs have no kernel that splits int32, and labels would go back to the CPU for it.
    """
    if isinstance(parts, int):
        parts = [tensor.shape[0] // parts] * parts
    ends = itertools.accumulate(parts)
    return [tensor[end - size : end] for size, end in zip(parts, ends, strict=True)]


class Traced:
    """A `tf.function` for batches: it calls the graph of the last one while they are alike.

    That is, while their shapes, types and structures are. To find a graph, `tf.function` itself
    takes about half a millisecond, as long as a step of a small network. Call it on one device:
    the graph is that of the device of the call that made it.

    Attributes:
      function: the `tf.function`. Autograph would only read through code that has no Python control
        flow over tensors.
    """

    def __init__(self, function: Callable):
        self.function = tf.function(function, autograph=False)
        self._last = None, None  # what the arguments were like, and the graph for them

    def __call__(self, *arguments):
        """What the function returns."""
        if tf.config.functions_run_eagerly():  # to debug it
            return self.function(*arguments)
        kind = tf.nest.map_structure(_kind, arguments)
        if kind != self._last[0]:
            self._last = kind, self.function.get_concrete_function(*arguments)
        return self._last[1](*arguments)


def _kind(value: tf.Tensor | None) -> tuple | None:
    return None if value is None else (value.dtype, value.shape)
