"""Batches of several arrays: dicts, tuples and lists of them, [n, ...] for n examples."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

# A tensor [n, ...], or a dict, tuple or list of these, nested or not.
Structure = object


def split(structure: Structure, parts: int | Sequence[int]) -> list[Structure]:
    """Cuts along the first axis into that many equal parts, or parts of these sizes, in order.

    By slices: GPUs have no kernel that splits int32, and labels would go back to the CPU for it.
    """
    if isinstance(parts, int):
        parts = [num_examples(structure) // parts] * parts
    ends = list(itertools.accumulate(parts))
    cut = [
        [tensor[end - size : end] for size, end in zip(parts, ends, strict=True)]
        for tensor in tf.nest.flatten(structure)
    ]
    return [tf.nest.pack_sequence_as(structure, part) for part in zip(*cut, strict=True)]


def num_examples(structure: Structure) -> int:
    """The length of the first axis, which all tensors of a structure have in common."""
    return tf.nest.flatten(structure)[0].shape[0]


def filled_up(structure: Structure, filling: int) -> Structure:
    """With the first example added after the last, `filling` times."""
    return tf.nest.map_structure(
        lambda tensor: tf.concat([tensor, tf.repeat(tensor[:1], filling, axis=0)], axis=0),
        structure,
    )


def converted(structure: Structure, to: tf.DType | None) -> Structure:
    """With its float32 tensors in another type; None leaves them as they are."""

    def one(tensor):
        is_float32 = to is not None and tf.as_dtype(tensor.dtype) == tf.float32
        return tf.cast(tensor, to) if is_float32 else tensor

    return tf.nest.map_structure(one, structure)


def is_of_several(structure: Structure) -> bool:
    """Whether it is a dict, tuple or list, and not a single tensor."""
    return isinstance(structure, (Mapping, tuple, list))


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

    def __call__(self, *arguments: Structure | None):
        """What the function returns."""
        if tf.config.functions_run_eagerly():  # to debug it
            return self.function(*arguments)
        kind = tf.nest.map_structure(_kind, arguments)
        if kind != self._last[0]:
            self._last = kind, self.function.get_concrete_function(*arguments)
        return self._last[1](*arguments)


def _kind(value: tf.Tensor | None) -> tuple | None:
    return None if value is None else (value.dtype, value.shape)
