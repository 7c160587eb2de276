"""The global batch of a step as a pure function of the seed and the step.

Training reads an endless row of positions 0, 1, 2, ... of which step `s` takes the
`global_batch_size` positions from `s * global_batch_size` on. Position `p` lies in epoch
`p // n` at place `p % n` of that epoch's own permutation of the `n` examples. So every batch is
full, every example comes exactly once an epoch, batches run across the ends of epochs, and a
resumed run needs nothing but its step to continue with the data where it stopped.
"""

import atexit
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Draws for different purposes start from different streams of the one seed.
_SHUFFLING_STREAM, _AUGMENTATION_STREAM, _MIRRORING_STREAM = 1, 2, 3

# On a CPU, where batches are made, this is Philox. A draw that names Philox has the same bits, but
# TensorFlow 2.21 builds 50 operations for it instead of 8.
ALGORITHM = "auto_select"

# The op behind tf.random.experimental.index_shuffle, which fixes 4 rounds of its cipher. With 4,
# and seed and epoch as its key, the permutations of 50,000 in neighbouring epochs were found to
# correlate by up to 0.76; with 12 and a drawn key by no more than random ones (0.01).
_SHUFFLING_ROUNDS = 12


class Draws(NamedTuple):
    """What the distortions of one batch are drawn from: each image by its place in the batch."""

    seed: tf.Tensor  # int64 [2], of the step
    # bool [batch], whether it is the example's turn to be mirrored: in every other epoch, from the
    # first or the second one on, as a coin decides that is thrown once for each example.
    mirrored: tf.Tensor
    batch_size: int
    positions: tf.Tensor | None = None  # int64 [batch], in the endless row

    def uniform(
        self,
        kind: int,
        shape: Sequence[int] = (),
        low: float = 0.0,
        high: float = 1.0,
        dtype: tf.DType = tf.float32,
    ) -> tf.Tensor:
        """Numbers from `low` to below `high`: `[batch, *shape]`.

        Args:
          kind: which draw of the step; each has a stream of its own. 0 to 4 are of `preprocess`, 16
            of `images`, 32 to 41 of `augment`, and 48 to 54 of `mixing`.
          shape: of those of one image.
        """
        kind_seed = tf.random.experimental.stateless_fold_in(self.seed, kind, alg=ALGORITHM)
        shape = [self.batch_size, *shape]
        return tf.random.stateless_uniform(shape, kind_seed, low, high, dtype, alg=ALGORITHM)


@dataclasses.dataclass(eq=False)
class Order:
    """Which examples each step of a training takes, and what their distortions are drawn from.

    Attributes:
      num_examples: of an epoch, at least 1.
      global_batch_size: examples of a step, at least 1.
      seed: of the order and of the draws.
      shuffle: False takes the examples in their order, epoch by epoch.
    """

    num_examples: int
    global_batch_size: int
    seed: int
    shuffle: bool = True

    def __post_init__(self):
        if self.global_batch_size < 1:
            raise ValueError(f"global_batch_size={self.global_batch_size}: must be at least 1")
        stream = _stream_seed(self.seed, _MIRRORING_STREAM, 0)
        with tf.device("/CPU:0"):
            self._coins = tf.random.stateless_uniform(
                [self.num_examples], stream, 0, 2, tf.int64, alg=ALGORITHM
            )

    def __call__(self, step: tf.Tensor) -> tuple[tf.Tensor, Draws]:
        """The examples of a step, an int64 scalar from 0: int64 [batch], and their draws."""
        size = self.global_batch_size
        positions = step * size + tf.range(size, dtype=tf.int64)
        ids = positions % self.num_examples
        if self.shuffle:
            ids = example_ids(
                step, num_examples=self.num_examples, global_batch_size=size, seed=self.seed
            )
        turns = positions // self.num_examples + tf.gather(self._coins, ids)
        seed = augmentation_seed(step, seed=self.seed)
        return ids, Draws(seed, turns % 2 == 1, size, positions)


@dataclasses.dataclass(frozen=True)
class Source:
    """Training batches by step, for `towers.Run`.

    Attributes:
      examples: of an epoch, as of `arrays.Examples`.
      fingerprint: sha256 of what decides the batches.
      augment: (inputs, draws) to inputs, of a batch; None for nothing.
      mix: (inputs, labels, draws) to inputs and labels, likewise, after `augment`.
      seed, shuffle: of the `Order`.
    """

    examples: Any
    fingerprint: str
    augment: Callable[[tf.Tensor, Draws], tf.Tensor] | None = None
    mix: Callable[[tf.Tensor, tf.Tensor, Draws], tuple] | None = None
    seed: int = 0
    shuffle: bool = True

    @property
    def num_examples(self) -> int:
        """Of an epoch."""
        return self.examples.num_examples

    def batches(
        self, first_step: int, last_step: int, *, global_batch_size: int
    ) -> Iterator[tuple]:
        """The batches of steps `first_step` to `last_step - 1`.

        The batch of a step is the same whatever `first_step` is. It is made on the CPU, several
        steps ahead of the reader.

        Args:
          first_step: number of steps made already.
          last_step: number of steps made when the data set ends.
          global_batch_size: examples per step.

        Returns:
          An iterator over the `parts` of the examples, such as (inputs, labels).

        Raises:
          ValueError: a number is out of range.
          DataError: as they are read, a picture cannot be used, and is named.
        """
        if not 0 <= first_step <= last_step:
            raise ValueError(
                f"first_step={first_step}, last_step={last_step}: must be at least 0, and in order"
            )
        order = Order(self.num_examples, global_batch_size, self.seed, self.shuffle)

        def batch_of_step(step):
            ids, draws = order(step)  # int64 [batch]
            inputs, *others = self.examples.gather(ids, draws)  # [batch, ...] each
            if self.augment is not None:
                inputs = self.augment(inputs, draws)
            if self.mix is not None:
                inputs, others[0] = self.mix(inputs, others[0], draws)
            return inputs, *others

        steps = tf.data.Dataset.range(first_step, last_step)
        return iter(Repeatable(steps, batch_of_step, self.examples))


def example_ids(
    step: int | tf.Tensor, *, num_examples: int, global_batch_size: int, seed: int
) -> tf.Tensor:
    """Which examples make up the global batch of `step`.

    Args:
      step: int or int64 scalar, from 0.
      num_examples: size `n` of the training split, at least 1.
      global_batch_size: examples per step; may exceed `num_examples`.
      seed: of the run; with the epoch it determines that epoch's permutation.

    Returns:
      int64 [global_batch_size], in [0, num_examples).
    """
    first_position = tf.cast(step, tf.int64) * global_batch_size
    positions = first_position + tf.range(global_batch_size, dtype=tf.int64)
    epochs = positions // num_examples
    first_epoch = first_position // num_examples
    # A batch of B positions touches at most this many epochs, wherever it begins.
    num_epochs = (global_batch_size + num_examples - 2) // num_examples + 1
    streams = (_stream_seed(seed, _SHUFFLING_STREAM, first_epoch + i) for i in range(num_epochs))
    draw = tf.random.stateless_uniform
    keys = tf.stack([draw([3], s, None, None, tf.int64, alg=ALGORITHM) for s in streams])
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % num_examples,
        seed=tf.gather(keys, epochs - first_epoch),  # [global_batch_size, 3]
        max_index=tf.constant(num_examples - 1, tf.int64),
        rounds=_SHUFFLING_ROUNDS,
    )


def augmentation_seed(step: int | tf.Tensor, *, seed: int) -> tf.Tensor:
    """The seed, int64 [2], of every random draw made for the images of `step`."""
    return _stream_seed(seed, _AUGMENTATION_STREAM, step)


def _stream_seed(seed: int, stream: int, counter: int | tf.Tensor) -> tf.Tensor:
    # The result takes the dtype of the counter: an int32 would give another stream.
    counter = tf.cast(counter, tf.int64)
    stream_seed = tf.constant([seed, stream], tf.int64)
    return tf.random.experimental.stateless_fold_in(stream_seed, counter, alg=ALGORITHM)


def each_once(num_examples: int, batch_size: int) -> tf.data.Dataset:
    """The numbers of all examples in order, int64 [batch_size], and fewer in the last batch."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    return tf.data.Dataset.range(num_examples).batch(batch_size)


def mapped(
    indices: tf.data.Dataset, batch_at: Callable, ahead: int = tf.data.AUTOTUNE
) -> tf.data.Dataset:
    """The batch of each index, in order, so many of them ahead of the reader."""
    # Python is traced as it is written: else TensorFlow rewrites it into files in the temporary
    # folder, which a killed process leaves there.
    as_written = tf.autograph.experimental.do_not_convert(batch_at)
    batches = indices.map(as_written, num_parallel_calls=ahead, deterministic=True)
    options = tf.data.Options()
    # They rewrite the data set as a graph, which copies tensors in it; they do not improve these.
    options.experimental_optimization.apply_default_optimizations = False
    # TensorFlow's tuner may miss its end, for which a data set that is let go waits up to a minute.
    options.autotune.enabled = False
    return batches.prefetch(ahead).with_options(options)


class Repeatable:
    """Batches, as often as they are iterated over: `batch_at` makes one of each of the indices.

    They have the structure of the parts of `examples`. What could not be read of these is raised.

    A TensorFlow thread that reads ahead, and calls Python while Python ends, aborts the process or
    waits forever, even if the program stopped reading long before: all reading ends before.
    """

    def __init__(self, indices: tf.data.Dataset, batch_at: Callable, examples: Any):
        def flat_batch_at(index):  # in the structures of tf.data a list is one tensor
            return tuple(tf.nest.flatten(batch_at(index)))

        self._examples = examples
        # Made once, because TensorFlow keeps something of each.
        self._dataset = mapped(indices, flat_batch_at, examples.batches_ahead)

    def __iter__(self) -> Generator[tuple]:
        reading = self._read()
        _open.add(reading)
        return reading

    def _read(self) -> Generator[tuple]:
        try:
            for leaves in self._dataset:
                yield tf.nest.pack_sequence_as(self._examples.parts, leaves)
        except tf.errors.OpError as error:
            if self._examples.problem is None:
                raise
            raise self._examples.problem from error


_open: weakref.WeakSet[Generator] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for reading in list(_open):
        with contextlib.suppress(ValueError):  # another thread waits for its next batch
            reading.close()  # lets its data set go, and ends its threads
