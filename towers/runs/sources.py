"""The batches of an epoch, from any of its steps on."""

import collections
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towers import cutting, hashes

from keras.src.backend.tensorflow.trainer import TFEpochIterator  # isort: skip
from keras.src.trainers.data_adapters import array_slicing  # isort: skip
from keras.src.utils import io_utils, rng_utils  # isort: skip


def is_source(data: object) -> bool:
    """Whether data can be read at any position, as those of `input_pipeline` can."""
    return all(hasattr(data, name) for name in ("batches", "num_examples", "fingerprint"))


def evaluated(data: Any) -> Any:
    """What is evaluated, as Keras's `evaluate` takes it.

    Batches of a list, or of another object that can be iterated over again and again, become one
    data set.
    """
    if data is None or isinstance(data, (tuple, tf.data.Dataset, keras.utils.PyDataset)):
        return data
    first = tuple(next(iter(data)))

    def specified(part):
        spec = tf.type_spec_from_value(tf.convert_to_tensor(part))
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)

    signature = keras.tree.map_structure(specified, first)
    # Made once: TensorFlow keeps each data set of a Python function until the process ends.
    return tf.data.Dataset.from_generator(lambda: map(tuple, data), output_signature=signature)


class FromSource:
    """Epochs of a source that can be read at any position; a step may begin one and end another.

    Attributes:
      num_examples: of an epoch.
      definition: what identifies the data and their order, by name.
    """

    def __init__(self, source: Any, batch_size: int | None, epochs: int, max_steps: int | None):
        """Reads `source.batches(first_step, last_step, global_batch_size=)` to the end.

        Raises:
          ValueError: `batch_size` is None, or more than an epoch has.
        """
        if batch_size is None:
            raise ValueError("batch_size=None: give the examples of a step; a source does not")
        if batch_size > source.num_examples:
            raise ValueError(
                f"batch_size={batch_size}: must be at most the source's {source.num_examples} "
                "examples"
            )
        self._source, self._batch = source, batch_size
        self.num_examples = source.num_examples
        ends = self._first_step(epochs)
        self._end = ends if max_steps is None else min(ends, max_steps)
        self._reader: Iterator = iter(())  # of the batches from a step on, to the end
        self._reads_from = -1  # that step
        digest = hashlib.sha256(source.fingerprint.encode()).hexdigest()
        self.definition = {"data": digest[:12], "batch_size": batch_size}

    def _first_step(self, epoch: int) -> int:
        """Of an epoch: the first that begins with or after its first example."""
        return -(-epoch * self.num_examples // self._batch)

    def steps(self, epoch: int) -> int:
        """How many steps an epoch has; they may differ by one."""
        return self._first_step(epoch + 1) - self._first_step(epoch)

    def first_batch(self) -> cutting.Structure:
        """For what has to be built before the first step; it is not lost."""
        reader = self._read(0, self._end)
        batch = _first(reader)
        self._reader, self._reads_from = itertools.chain([batch], reader), 0
        return batch

    def batches(self, epoch: int, first: int) -> Iterator:
        """The batches of an epoch from its step `first` on, which end where the run does."""
        begin, end = self._first_step(epoch) + first, self._first_step(epoch + 1)
        if self._reads_from != begin:  # else it reads on, and has some batches ready
            self._reader = self._read(begin, max(begin, self._end))
        self._reads_from = end
        return itertools.islice(self._reader, end - begin)

    def _read(self, begin: int, end: int) -> Iterator:
        read = self._source.batches(begin, end, global_batch_size=self._batch)
        return (cutting.dense(tuple(batch)) for batch in read)


class FromKeras:
    """Epochs of whatever Keras's `fit` takes; what was read before a run stopped is read over.

    Arrays are shuffled anew for each epoch, in an order that its number and the seed of
    `keras.utils.set_random_seed` decide: Keras's could not be repeated.

    Attributes:
      num_examples: None; an epoch may have any number.
      definition: what identifies arrays and how they are read, by name; of data sets and generators
        the sizes alone.
    """

    num_examples = None

    def __init__(self, x, y, batch_size, steps_per_epoch, sample_weight, class_weight, shuffle):
        self._data = {"x": x, "y": y, "sample_weight": sample_weight}
        self._options = {
            "batch_size": batch_size,
            "steps_per_epoch": steps_per_epoch,
            "class_weight": class_weight,
        }
        leaves = keras.tree.flatten((x, y, sample_weight))
        are_arrays = all(map(array_slicing.can_slice_array, leaves))
        self._is_shuffled = are_arrays and shuffle
        self._seed = rng_utils.get_random_seed() or 0
        self._num_rows = len(leaves[0]) if self._is_shuffled else None
        self._epochs_read = 0 if not are_arrays else None  # of data that have a state
        self._reader: TFEpochIterator | None = None
        self._begun: Iterator | None = None  # the first epoch, once its first batch was looked at
        arrays = [np.asarray(leaf) for leaf in leaves] if are_arrays else []
        digest = hashes.sha256(array for array in arrays if array.dtype != object)
        self.definition = {
            "data": digest[:12],
            "batch_size": batch_size,
            "steps_per_epoch": steps_per_epoch,
            "class_weight": class_weight and {str(k): float(v) for k, v in class_weight.items()},
            "shuffle": self._seed if self._is_shuffled else False,
        }

    def _iterator(self, epoch: int) -> TFEpochIterator:
        if self._reader is None or self._is_shuffled:
            data = self._data
            if self._is_shuffled:
                order = np.random.default_rng([self._seed, epoch]).permutation(self._num_rows)
                data = keras.tree.map_structure(
                    lambda part: None if part is None else np.asarray(part)[order], data
                )
            self._reader = TFEpochIterator(
                **data, **self._options, shuffle=False, distribute_strategy=_NoStrategy
            )
        return self._reader

    def _epoch(self, epoch: int) -> Iterator:
        for _, _, iterator in self._iterator(epoch):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            yield cutting.dense(batch)

    def steps(self, epoch: int) -> int | None:
        """How many steps an epoch has; None where it is unknown."""
        return (self._reader or self._iterator(epoch)).num_batches

    def first_batch(self) -> cutting.Structure:
        """For what has to be built before the first step; it is not lost."""
        epoch = self._epoch(0)
        batch = _first(epoch)
        self._begun = None if self._is_shuffled else itertools.chain([batch], epoch)
        return batch

    def batches(self, epoch: int, first: int) -> Iterator:
        """The batches of an epoch from its step `first` on.

        A data set may shuffle otherwise in each epoch, and a generator goes on: where a run
        resumes, their earlier epochs are read again.
        """
        begun, self._begun = self._begun, None
        if self._epochs_read is not None:
            if earlier := epoch - self._epochs_read:
                io_utils.print_msg(f"reading {earlier} earlier epochs of the data again")
            for one in range(self._epochs_read, epoch):
                collections.deque(begun or self._epoch(one), maxlen=0)
                begun = None
            self._epochs_read = epoch + 1
        return itertools.islice(begun or self._epoch(epoch), first, None)


def _first(batches: Iterator):
    """The first batch.

    Raises:
      ValueError: there is none.
    """
    batch = next(batches, None)
    if batch is None:
        raise ValueError("x has no batches: give at least one example")
    return batch


class _NoStrategy:
    """In place of a tf.distribute strategy: leaves data sets as they are."""

    @staticmethod
    def experimental_distribute_dataset(dataset):
        return dataset
