"""Cutting a batch into microbatches of a fixed size, and joining what comes of them.

A batch is what Keras's data adapters yield: a tensor [n, ...], or a tuple, list or dict of these,
nested or not, in which None stands for what is not there. Nothing is padded: of n examples the last
microbatch may be shorter.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from keras import tree

Structure = object


def dense(batch: Structure) -> Structure:
    """The batch as tensors; empty optionals, which Keras's adapters make of None, are None again.

    Raises:
      TypeError: something in it is sparse or ragged.
      ValueError: its arrays do not have the same number of examples, or there are none.
    """

    def one(value):
        if isinstance(value, tf.experimental.Optional):
            return None
        if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(
                f"a batch has a {type(value).__name__}, which cannot be cut into microbatches: "
                "make it dense (tf.sparse.to_dense, to_tensor) in the data"
            )
        return tf.convert_to_tensor(value)

    batch = _map(one, batch)
    shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
    sizes = {shape[0] if shape else None for shape in shapes}
    if len(sizes) != 1 or not sizes.isdisjoint({None, 0}):
        raise ValueError(f"a batch has shapes {shapes}: all must have as many examples, at least 1")
    return batch


def _map(function: Callable, batch: Structure) -> Structure:
    return tree.map_structure(lambda value: None if value is None else function(value), batch)


def tensors(batch: Structure) -> list[tf.Tensor]:
    """All that is there, in flat order."""
    return [tensor for tensor in tree.flatten(batch) if tensor is not None]


def num_examples(batch: Structure) -> int:
    """The length of the first axis."""
    return tensors(batch)[0].shape[0]


def sizes(count: int, size: int) -> list[int]:
    """How many examples each microbatch has.

    Example:
      >>> sizes(150, 64)
      [64, 64, 22]
    """
    return [min(size, count - first) for first in range(0, count, size)]


def cut(batch: Structure, size: int) -> list[Structure]:
    """The microbatches of a batch, in order, each [size, ...] but for the last.

    By slices: GPUs have no kernel that splits int32, and labels would go back to the CPU for it.
    """
    return [share(batch, first, first + size) for first in range(0, num_examples(batch), size)]


def share(batch: Structure, first: int, end: int) -> Structure:
    """The examples from `first` to before `end`; if these are all, the batch itself, uncopied."""
    if first == 0 and end >= num_examples(batch):
        return batch
    return _map(lambda tensor: tensor[first:end], batch)


def join(parts: Sequence[Structure]) -> Structure:
    """The outputs of the microbatches, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return tree.map_structure(
        lambda *tensors: None if tensors[0] is None else tf.concat(tensors, axis=0), *parts
    )


def specs(batch: Structure) -> Structure:
    """Symbolic tensors like the batch, of any number of examples: models are built with them."""
    dtype = keras.backend.standardize_dtype
    return _map(lambda one: keras.KerasTensor([None, *one.shape[1:]], dtype(one.dtype)), batch)


def signature(batch: Structure) -> Structure:
    """What decides which graph a batch runs through: its structure, shapes and types."""
    return _map(lambda tensor: (tensor.dtype, tensor.shape), batch)
