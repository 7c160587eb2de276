"""Examples in memory, or of any data set with random access, as a source of training batches.

The order of the examples is that of `batches`: every epoch its own permutation, from the seed.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from . import batches as by_step
from . import reading

_HASHED_EXAMPLES = 8


def batches(
    inputs,
    labels=None,
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
      labels: likewise.
      sample_weight: [n], at least 0; None weighs all examples the same.
      augment: (inputs, draws) to inputs, of a batch as tensors, such as the `in_training` of a
        `preprocess.Preprocessing`. It is traced as it is written: Python's `if` on a tensor is an
        error, `tf.where` and `tf.cond` are not.
      mix: (inputs, labels, draws) to inputs and labels, such as a `mixing.Mixing`, after `augment`;
        not together with `sample_weight`. A Mixing needs a share of even size for each worker,
        which microbatches of even size give.
      seed: of the order and of what `augment` and `mix` draw.
      shuffle: False takes the examples of arrays in their order, epoch by epoch.

    Raises:
      TypeError, ValueError: they are not arrays, have a mask, or differ in their number of
        examples.
    """
    is_pydataset = isinstance(inputs, keras.utils.PyDataset)
    if is_pydataset or hasattr(inputs, "to_iter_dataset"):
        if labels is not None or sample_weight is not None:
            raise ValueError("labels and sample_weight: must be in the data set's own elements")
        shuffle, examples = False, _PyDataset(inputs) if is_pydataset else _Grain(inputs)
    else:
        parts = (inputs, labels) if sample_weight is None else (inputs, labels, sample_weight)
        examples = InMemory(*(tf.nest.map_structure(_as_array, part) for part in parts))
        if sample_weight is not None:
            _check_weight(examples.parts[2], is_mixed=mix is not None)
    changes = f"{seed} {shuffle} {augment is None} {mix is None}"
    fingerprint = hashlib.sha256(f"{changes} {examples.fingerprint}".encode()).hexdigest()
    return source(examples, fingerprint, augment, mix, seed, shuffle)


def source(examples, fingerprint: str, augment, mix, seed: int, shuffle: bool = True):
    """The `batches.Source` of an `InMemory`, or of a data set with random access.

    Args:
      fingerprint: of the source.
      augment, mix, seed, shuffle: as for `batches`.
    """

    def read(order: by_step.Order, first_step: int, last_step: int) -> Iterator[tuple]:
        def batch_of_step(step):
            ids, draws = order(step)  # int64 [share]
            inputs, labels, *weight = examples.gather(ids, order.positions(step))
            # Each [share, ...].
            if augment is not None:
                inputs = augment(inputs, draws)
            if mix is not None:
                inputs, labels = mix(inputs, labels, draws)
            # Flat: in the structures of tf.data a list is one tensor.
            return tuple(tf.nest.flatten((inputs, labels, *weight)))

        steps = tf.data.Dataset.range(first_step, last_step)
        flat = reading.Reading(by_step.mapped(steps, batch_of_step))
        return map(functools.partial(tf.nest.pack_sequence_as, examples.parts), flat)

    return by_step.Source(examples.num_examples, fingerprint, read, seed, shuffle)


class InMemory:
    """Arrays, from which examples are gathered with NumPy; or tensors, with TensorFlow."""

    def __init__(self, *parts):
        self.parts, self._leaves = parts, tf.nest.flatten(parts)
        for leaf in self._leaves:
            dtype = np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
            if dtype.kind not in "biuf" or not leaf.ndim:
                raise TypeError(
                    f"arrays: {leaf.dtype} {list(leaf.shape)}; must be numbers or booleans [n, ...]"
                )
        lengths = [len(leaf) for leaf in self._leaves]
        if len(set(lengths)) != 1 or 0 in lengths:
            raise ValueError(
                "arrays must all have the same number of examples, at least 1; they have "
                f"{', '.join(map(str, lengths))}"
            )
        self.num_examples = lengths[0]

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for leaf in self._leaves:
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            for first in range(0, len(leaf), 4096):  # one that is memory-mapped is not read whole
                digest.update(np.ascontiguousarray(leaf[first : first + 4096]))
        return digest.hexdigest()

    def gather(self, ids: tf.Tensor, positions: tf.Tensor | None = None) -> tuple:
        # With NumPy, from arrays as they are: tensors would be a second copy of them.
        arrays = [leaf for leaf in self._leaves if not tf.is_tensor(leaf)]
        gathered = iter(
            _in_python(lambda ids: [leaf[ids] for leaf in arrays], ids, arrays) if arrays else ()
        )
        values = [
            tf.gather(leaf, ids) if tf.is_tensor(leaf) else next(gathered) for leaf in self._leaves
        ]
        return tf.nest.pack_sequence_as(self.parts, values)


def _check_weight(weight, is_mixed: bool) -> None:
    is_column = isinstance(weight, np.ndarray) and weight.ndim == 1
    if not (is_column and np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("arrays: sample_weight must be [n], every one finite and at least 0")
    if is_mixed:
        raise ValueError(
            "arrays: sample_weight and mix do not go together: an example of weight 0 would be "
            "mixed into its neighbour"
        )


class _Grain:
    """A `grain.MapDataset`, whose element `i` is an example, for any `i` from 0.

    Past its length it goes on with the next epoch, which may shuffle and augment otherwise.
    """

    def __init__(self, dataset):
        self._dataset, self.num_examples = dataset, len(dataset)
        if not self.num_examples:
            raise ValueError("the data set has no examples: must have at least 1")
        places = by_step.spread_out(np.arange(self.num_examples), _HASHED_EXAMPLES)
        first, *others = [self._example(int(place)) for place in places]
        if not isinstance(first, tuple) or len(first) not in (2, 3):
            raise TypeError(f"an example is {type(first).__name__}: must be (inputs, labels)")
        # A batch of one, for the structure, the types and the shapes.
        self.parts = tf.nest.map_structure(lambda leaf: np.asarray(leaf)[np.newaxis], first)
        digest = hashlib.sha256(f"{self.num_examples}".encode())
        for leaf in map(np.asarray, tf.nest.flatten((first, others))):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
        self.fingerprint = digest.hexdigest()

    def _example(self, position: int):
        return self._dataset[position]

    def gather(self, ids: tf.Tensor, positions: tf.Tensor) -> tuple:
        def stacked(positions):
            rows = [tf.nest.flatten(self._example(int(position))) for position in positions]
            return [np.stack(leaves) for leaves in zip(*rows, strict=True)]

        values = _in_python(stacked, positions, tf.nest.flatten(self.parts))
        return tf.nest.pack_sequence_as(self.parts, values)


class _PyDataset(_Grain):
    """The examples of a `keras.utils.PyDataset`, whose last batch may be smaller."""

    def __init__(self, dataset: keras.utils.PyDataset):
        count = dataset.num_batches
        if not count:
            raise ValueError(f"the PyDataset has {count} batches: must be a number, at least 1")

        @functools.lru_cache(maxsize=16)
        def batch(number):
            leaves = tf.nest.flatten(elements := dataset[number])
            if number < count - 1 and len(leaves[0]) != self._size:
                raise ValueError(
                    f"batch {number} has {len(leaves[0])} examples: all but the last must have "
                    f"{self._size}, as the first"
                )
            return elements

        self._batch = batch
        self._size, last = (len(tf.nest.flatten(dataset[n])[0]) for n in (0, count - 1))
        super().__init__(range((count - 1) * self._size + last))

    def _example(self, position: int):
        batch, row = divmod(position % len(self._dataset), self._size)
        return tf.nest.map_structure(lambda leaf: np.asarray(leaf)[row], self._batch(batch))


def _in_python(function: Callable, numbers: tf.Tensor, like: list[np.ndarray]) -> list[tf.Tensor]:
    """What a function of examples' numbers gives, with types and shapes of batches of `like`."""
    types = [_type_in_batches(leaf.dtype) for leaf in like]

    def converted(numbers):
        return [
            value.astype(dtype, copy=False)
            for value, dtype in zip(function(numbers), types, strict=True)
        ]

    values = tf.numpy_function(converted, [numbers], types)
    for value, leaf in zip(values, like, strict=True):
        value.set_shape([numbers.shape[0], *leaf.shape[1:]])
    return values


def _as_array(values) -> np.ndarray:
    """An array, not copied if it is one.

    Raises:
      TypeError: it has a mask, which would be lost.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            "a masked array: training would see what is under its mask; fill it (`.filled(...)`), "
            "or give such examples sample_weight 0"
        )
    return np.asarray(values)


def _type_in_batches(dtype: np.dtype) -> np.dtype:
    """What TensorFlow takes, of this machine's byte order; float32 for all longer floats."""
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")
