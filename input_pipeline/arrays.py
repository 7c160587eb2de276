"""Examples in memory, or of any data set with random access, as a source of training batches."""

import functools
import hashlib
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towers import hashes

from . import batches as by_step
from . import checks

_HASHED_EXAMPLES = 8


def batches(
    inputs: Any,
    labels: Any = None,
    sample_weight: np.ndarray | None = None,
    *,
    augment: Callable[[tf.Tensor, by_step.Draws], tf.Tensor] | None = None,
    mix: Callable[[tf.Tensor, tf.Tensor, by_step.Draws], tuple] | None = None,
    seed: int = 0,
    shuffle: bool = True,
) -> by_step.Source:
    """Training batches of arrays, in an order of their own in every epoch.

    The source's fingerprint is of the arrays, the seed and whether they are shuffled; of a data
    set, of its length and of eight of its examples. What `augment` and `mix` do is not in it.

    Args:
      inputs: [n, ...], or a dict, tuple or list of these, nested or not. They are not copied, and
        may be memory-mapped; float64 becomes float32 batch by batch. Or a `grain.MapDataset` of
        (inputs, labels), or a `keras.utils.PyDataset` of batches of these: they are read in their
        own order, epoch by epoch, and have to give the same for a position every time.
      labels: likewise; None where the model has a loss of its own.
      sample_weight: [n], at least 0; None weighs all examples the same.
      augment: (inputs, draws) to inputs, of a batch as tensors, such as the `in_training` of a
        `preprocess.Preprocessing`. It is traced as it is written: Python's `if` on a tensor is an
        error, `tf.where` and `tf.cond` are not.
      mix: (inputs, labels, draws) to inputs and labels, such as a `mixing.Mixing`, after `augment`;
        not together with `sample_weight`. A Mixing needs a batch of even size.
      seed: of the order and of what `augment` and `mix` draw.
      shuffle: False takes the examples of arrays in their order, epoch by epoch.

    Raises:
      TypeError, ValueError: they are not arrays, have a mask, or differ in their number of
        examples.
    """
    examples: Examples
    is_pydataset = isinstance(inputs, keras.utils.PyDataset)
    if is_pydataset or hasattr(inputs, "to_iter_dataset"):
        if labels is not None or sample_weight is not None:
            raise ValueError("labels and sample_weight: must be in the data set's own elements")
        shuffle = False
        examples = _ByPosition(_Unbatched(inputs) if is_pydataset else inputs)
        rows = tf.nest.flatten(examples.some)
        content = f"{examples.num_examples} {hashes.sha256(rows)}"
    else:
        if labels is None and not (sample_weight is None and mix is None):
            raise ValueError("arrays: sample_weight and mix need labels")
        examples = InMemory(*(p for p in (inputs, labels, sample_weight) if p is not None))
        content = hashes.sha256(tf.nest.flatten(examples.parts))
    if sample_weight is not None:
        weight = examples.parts[2]
        if np.ndim(weight) != 1 or not np.all((weight >= 0) & np.isfinite(weight)):
            raise ValueError("arrays: sample_weight must be [n], every one finite and at least 0")
        if mix is not None:  # an example of weight 0 would be mixed into its neighbour
            raise ValueError("arrays: sample_weight and mix do not go together")
    how = f"{seed} {shuffle} {augment is None} {mix is None}"
    fingerprint = hashlib.sha256(f"{how} {content}".encode()).hexdigest()
    return by_step.Source(examples, fingerprint, augment, mix, seed, shuffle)


class Examples:
    """Examples with random access.

    Attributes:
      num_examples: of an epoch.
      parts: (inputs, labels, sample_weight) or the first of these, arrays [n, ...] for any n;
        batches have their structure, types and shapes.
      batches_ahead: how many are made ahead of the reader.
      problem: what ended the reading, where it was something that a person can repair.
    """

    num_examples: int
    parts: tuple
    batches_ahead = tf.data.AUTOTUNE
    problem: checks.DataError | None = None

    def gather(self, ids: tf.Tensor, draws: by_step.Draws | None = None) -> tuple:
        """A batch, as `parts`, of the examples of these numbers, int64 [n].

        `draws` are of a training; by them pictures may be cut.
        """
        return self._call_rows(ids)

    def _rows(self, *arguments):
        """The leaves of a batch, arrays [n, ...], of what `gather` calls it with."""
        raise NotImplementedError

    def _call_rows(self, *arguments: tf.Tensor) -> tuple:
        """What `_rows` gives of tensors, with the structure of `parts`."""
        leaves = tf.nest.flatten(self.parts)
        types = [_type_in_batches(leaf.dtype) for leaf in leaves]
        # TensorFlow keeps the function forever, which must not keep the arrays.
        examples = weakref.proxy(self)

        def rows(*arguments):
            pairs = zip(examples._rows(*arguments), types, strict=True)
            return [value.astype(dtype, copy=False) for value, dtype in pairs]

        values = tf.numpy_function(rows, arguments, types)
        for value, leaf in zip(values, leaves, strict=True):
            value.set_shape([arguments[0].shape[0], *leaf.shape[1:]])
        return tf.nest.pack_sequence_as(self.parts, values)


class InMemory(Examples):
    """Arrays as they are: tensors would be a second copy of them."""

    def __init__(self, *parts: Any):
        leaves = tf.nest.flatten(parts)
        if any(isinstance(leaf, np.ma.MaskedArray) for leaf in leaves):
            raise TypeError(
                "a masked array: training would see what is under its mask; fill it "
                "(`.filled(...)`), or give such examples sample_weight 0"
            )
        self.parts = tf.nest.map_structure(np.asarray, parts)
        self._leaves = tf.nest.flatten(self.parts)
        for leaf in self._leaves:
            if leaf.dtype.kind not in "biuf" or not leaf.ndim:
                raise TypeError(
                    f"arrays: {leaf.dtype} {list(leaf.shape)}; must be numbers or booleans [n, ...]"
                )
        lengths = [len(leaf) for leaf in self._leaves]
        if len(set(lengths)) != 1 or 0 in lengths:
            raise ValueError(f"arrays have {lengths} examples: must be one number, at least 1")
        self.num_examples = lengths[0]

    def _rows(self, ids):
        return [leaf[ids] for leaf in self._leaves]


class _ByPosition(Examples):
    """A `grain.MapDataset`, whose element `i` is an example, for any `i` from 0.

    Past its length it goes on with the next epoch, which may shuffle and augment otherwise.
    """

    def __init__(self, dataset):
        self._dataset, self.num_examples = dataset, len(dataset)
        self.some = [dataset[int(n)] for n in spread_out(self.num_examples, _HASHED_EXAMPLES)]
        first = next(iter(self.some), None)
        if not isinstance(first, tuple) or len(first) not in (2, 3):
            raise TypeError("the data set must have examples, each a tuple (inputs, labels)")
        # A batch of one, for the structure, the types and the shapes.
        self.parts = tf.nest.map_structure(lambda leaf: np.asarray(leaf)[np.newaxis], first)

    def gather(self, ids: tf.Tensor, draws: by_step.Draws | None = None) -> tuple:
        assert draws is not None  # they are read for training alone
        return self._call_rows(draws.positions)

    def _rows(self, positions):
        rows = [tf.nest.flatten(self._dataset[int(position)]) for position in positions]
        return [np.stack(leaves) for leaves in zip(*rows, strict=True)]


class _Unbatched:
    """The examples of a `keras.utils.PyDataset` by position, epoch after epoch."""

    def __init__(self, dataset: keras.utils.PyDataset):
        if not dataset.num_batches:
            raise ValueError(f"the PyDataset has {dataset.num_batches} batches: must have some")
        # Threads that read ahead come to the same few batches.
        self._batch = functools.lru_cache(maxsize=16)(dataset.__getitem__)
        self._last = dataset.num_batches - 1
        self._size = self._length(0)

    def _length(self, number: int) -> int:
        return len(tf.nest.flatten(self._batch(number))[0])

    def __len__(self) -> int:
        return self._last * self._size + self._length(self._last)

    def __getitem__(self, position: int):
        number, row = divmod(position % len(self), self._size)
        if number < self._last and self._length(number) != self._size:
            raise ValueError(
                f"batch {number} has {self._length(number)} examples: must have {self._size}, too"
            )
        return tf.nest.map_structure(lambda leaf: np.asarray(leaf)[row], self._batch(number))


def spread_out(num_examples: int, count: int) -> np.ndarray:
    """The numbers of at most `count` examples, int64 [n]: sorted classes all have some."""
    places = np.linspace(0, num_examples - 1, min(count, num_examples))
    return places.astype(np.int64)


def _type_in_batches(dtype: np.dtype) -> np.dtype:
    """What TensorFlow takes, of this machine's byte order; float32 for all longer floats."""
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")
