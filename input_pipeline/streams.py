"""Batches made elsewhere as a source for a run: a function, a tf.data.Dataset, a PyDataset.

Each gives whole global batches; with several workers each reads them all and takes its share. A
batch that is not full, as the last one of an epoch often is, is filled up with its own examples, in
turn, of weight 0: they add nothing to the loss and the gradients. Batch norm sees each example
about equally often (Keras's batch is shorter instead). So an epoch has as many steps as batches,
and counts as many examples as if they were full.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from . import batches as by_step


class _Stream:
    """What the sources below share.

    Attributes:
      num_examples: of an epoch; None where it is unknown.
      fingerprint: sha256 of the first batch.
    """

    def __init__(self, first_batch, batches_per_epoch: int | None, what: str):
        batch = _parts(first_batch, what)
        self._what, self._is_used = what, False
        self._batch_size = _size(batch, what)
        if batches_per_epoch is not None and not isinstance(batches_per_epoch, int):
            raise TypeError(f"{what}: batches_per_epoch={batches_per_epoch!r}: must be an integer")
        if batches_per_epoch is not None and batches_per_epoch < 1:
            raise ValueError(f"{what}: batches_per_epoch={batches_per_epoch}: must be at least 1")
        self.num_examples = batches_per_epoch and batches_per_epoch * self._batch_size
        self.fingerprint = _sha256(batch)

    def _use_once(self) -> None:
        """Refuses to begin again: what was read or shuffled has moved on."""
        if self._is_used:
            raise ValueError(
                f"{self._what}: it was read from already, and would continue with other batches; "
                "make the data set and the source again"
            )
        self._is_used = True

    def _all(self, first_step: int) -> Iterator:
        """The batches from a step on, without end."""
        raise NotImplementedError

    def batches(
        self,
        first_step: int,
        last_step: int,
        *,
        global_batch_size: int,
        share: range | None = None,
    ) -> Iterator[tuple]:
        """The batches of steps `first_step` to `last_step - 1`, or a share of each.

        Args:
          first_step: number of steps made already.
          last_step: number of steps made when they end.
          global_batch_size: examples of a full batch, which the stream must have, too.
          share: the places in each batch that are taken; None for all.

        Yields:
          (inputs, labels) or (inputs, labels, sample_weight).

        Raises:
          ValueError: a batch has other sizes.
        """
        if global_batch_size != self._batch_size:
            raise ValueError(
                f"{self._what}: its first batch has {self._batch_size} examples, but a step takes "
                f"global_batch_size={global_batch_size}"
            )
        places = by_step.places(share, global_batch_size)
        own = slice(places.start, places.stop)
        for given in itertools.islice(self._all(first_step), last_step - first_step):
            full = _filled_up(_parts(given, self._what), global_batch_size, self._what)
            yield tuple(tf.nest.map_structure(lambda array: array[own], part) for part in full)


class _Function(_Stream):
    def __init__(self, batch_at, batches_per_epoch):
        super().__init__(batch_at(0), batches_per_epoch, "of_function")
        self._batch_at = batch_at
        if _sha256(_parts(batch_at(0), "of_function")) != self.fingerprint:
            raise ValueError(
                "of_function: the function gives another batch for step 0 when it is called again; "
                "let the step decide all that it draws"
            )

    def _all(self, first_step):
        return map(self._batch_at, itertools.count(first_step))


class _Dataset(_Stream):
    def __init__(self, dataset, batches_per_epoch):
        if batches_per_epoch is None:
            known = int(dataset.cardinality())
            batches_per_epoch = known if known > 0 else None
        first = next(iter(dataset), None)
        if first is None:
            raise ValueError("of_dataset: the data set has no batches: give at least 1")
        super().__init__(first, batches_per_epoch, "of_dataset")
        self._dataset = dataset

    def _all(self, first_step):
        self._use_once()
        return iter(self._dataset.repeat().skip(first_step))


class _PyDataset(_Stream):
    def __init__(self, dataset):
        try:
            num_batches = dataset.num_batches
        except NotImplementedError:
            num_batches = None
        if num_batches is None:
            raise ValueError("of_pydataset: its length is unknown; give it a __len__")
        dataset.on_epoch_begin()
        super().__init__(dataset[0], int(num_batches), "of_pydataset")
        if _sha256(_parts(dataset[0], "of_pydataset")) != self.fingerprint:
            raise ValueError(
                "of_pydataset: its first batch differs when it is asked for again; let the place "
                "and the epoch decide all that __getitem__ draws"
            )
        self._dataset, self._num_batches = dataset, int(num_batches)

    def _all(self, first_step):
        self._use_once()
        for _ in range(first_step // self._num_batches):
            self._next_epoch()
        for step in itertools.count(first_step):
            yield self._dataset[step % self._num_batches]
            if (step + 1) % self._num_batches == 0:
                self._next_epoch()

    def _next_epoch(self) -> None:
        self._dataset.on_epoch_end()
        self._dataset.on_epoch_begin()


def of_function(batch_at: Callable[[int], tuple], *, batches_per_epoch: int | None = None):
    """A function from the step, counted from 0, to its batch: resuming costs nothing.

    Args:
      batch_at: (step) to (inputs, labels) or (inputs, labels, sample_weight), arrays or dicts,
        tuples and lists of them; the same batch whenever it is called with that step.
      batches_per_epoch: None where there are no epochs.

    Raises:
      TypeError, ValueError: it gives no such batch, or not the same one twice.
    """
    if not callable(batch_at):
        raise TypeError(f"of_function: a {type(batch_at).__name__} is not a function of a step")
    return _Function(batch_at, batches_per_epoch)


def of_dataset(dataset: tf.data.Dataset, *, batches_per_epoch: int | None = None):
    """A tf.data.Dataset of batches, repeated from its beginning whenever it ends.

    A run that continues reads and drops all batches of the steps already made: that takes as long
    as making these batches does. Give `shuffle` a seed and draw from seeds: a run whose first batch
    is not the one it began with is refused. With a shuffle that differs in every epoch, iterate
    over the data set nowhere else in the program.

    Args:
      dataset: of (inputs, labels) or (inputs, labels, sample_weight), in batches.
      batches_per_epoch: None for as many as the data set says that it has.

    Raises:
      TypeError, ValueError: it has no such batch.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"of_dataset: a {type(dataset).__name__} is not a tf.data.Dataset")
    return _Dataset(dataset, batches_per_epoch)


def of_pydataset(dataset: keras.utils.PyDataset):
    """A Keras PyDataset: batches by their place, between `on_epoch_begin` and `on_epoch_end`.

    `on_epoch_begin` of the first epoch is called at once. A run that continues calls both for each
    epoch already made, and reads no batch of them.
    `__getitem__` is called in the run's own thread; the data set's `workers` are not started.

    Args:
      dataset: with a length.

    Raises:
      TypeError, ValueError: it has no such batch, or no length.
    """
    if not isinstance(dataset, keras.utils.PyDataset):
        raise TypeError(f"of_pydataset: a {type(dataset).__name__} is not a keras.utils.PyDataset")
    return _PyDataset(dataset)


def _parts(batch, what: str) -> tuple:
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(
            f"{what}: a batch is a {type(batch).__name__}; must be (inputs, labels) or (inputs, "
            "labels, sample_weight)"
        )
    return tuple(tf.nest.map_structure(by_step.as_array, part) for part in batch)


def _size(batch: tuple, what: str) -> int:
    sizes = {len(array) if array.ndim else 0 for array in tf.nest.flatten(batch)}
    if len(sizes) != 1 or 0 in sizes:
        shapes = ", ".join(str(list(array.shape)) for array in tf.nest.flatten(batch))
        raise ValueError(
            f"{what}: the arrays of a batch must all have the same number of examples, at least 1; "
            f"they are {shapes}"
        )
    return sizes.pop()


def _filled_up(batch: tuple, global_batch_size: int, what: str) -> tuple:
    size = _size(batch, what)
    if size > global_batch_size:
        raise ValueError(
            f"{what}: a batch of {size} examples, but a step takes global_batch_size="
            f"{global_batch_size}"
        )
    if size == global_batch_size:
        return batch
    inputs, labels, *weight = batch
    weight = weight[0] if weight else np.ones(size, np.float32)
    places = np.arange(global_batch_size) % size
    inputs, labels = tf.nest.map_structure(lambda array: array[places], (inputs, labels))
    return inputs, labels, np.concatenate([weight, np.zeros(global_batch_size - size)])


def _sha256(batch: tuple) -> str:
    digest = hashlib.sha256()
    for array in tf.nest.flatten(batch):
        digest.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype == object:  # strings, which TensorFlow hands over as Python's
            array = array.astype("S")
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
