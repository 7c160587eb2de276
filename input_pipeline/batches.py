"""The global batch of a step as a pure function of the seed and the step.

Training reads an endless row of positions 0, 1, 2, ... of which step `s` takes the
`global_batch_size` positions from `s * global_batch_size` on. Position `p` lies in epoch
`p // n` at place `p % n` of that epoch's own permutation of the `n` examples. So every batch is
full, every example comes exactly once an epoch, batches run across the ends of epochs, and a
resumed run needs nothing but its step to continue with the data where it stopped.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from . import decoded

# Draws for different purposes start from different streams of the one seed.
_SHUFFLING_STREAM = 1
_AUGMENTATION_STREAM = 2
_MIRRORING_STREAM = 3

# On a CPU, where batches are made, this is Philox. A draw that names Philox has the same bits, but
# TensorFlow 2.21 builds 50 operations for it instead of 8.
ALGORITHM = "auto_select"

# The op behind tf.random.experimental.index_shuffle, which fixes 4 rounds of its cipher. With 4,
# and seed and epoch as its key, the permutations of 50,000 in neighbouring epochs were found to
# correlate by up to 0.76; with 12 and a drawn key by no more than random ones (0.01).
_SHUFFLING_ROUNDS = 12


def places(share: range | None, global_batch_size: int) -> range:
    """The places in a batch that a reader reads: those of its share, or all.

    Raises:
      ValueError: the share is not a run of places in the batch.
    """
    whole = range(global_batch_size)
    if share is None:
        return whole
    if not (share and share.step == 1 and share[0] in whole and share[-1] in whole):
        raise ValueError(
            f"share={share}: must be a run of places in a batch of global_batch_size="
            f"{global_batch_size}"
        )
    return share


class Draws(NamedTuple):
    """What the distortions of one batch, or of a share of it, are drawn from.

    Draws are made for the whole batch, and a share takes its own: an image's distortion depends on
    its place in the global batch, and not on who reads it.
    """

    seed: tf.Tensor  # int64 [2], of the step
    # bool [images], whether it is the example's turn to be mirrored: in every other epoch, from the
    # first or the second one on, as a coin decides that is thrown once for each example.
    mirrored: tf.Tensor
    share: range | None = None  # places in the batch; None for all
    global_batch_size: int = 0  # where a share is given

    def own(self, draw: Callable, count: int | tf.Tensor) -> tuple:
        """The share's part of what `draw` makes for the number of images in the whole batch.

        Args:
          draw: (count) to a named tuple of tensors [count].
          count: images of the share.
        """
        if self.share is None:
            return draw(count)
        drawn = draw(self.global_batch_size)
        own = slice(self.share.start, self.share.stop)
        return type(drawn)(*(values[own] for values in drawn))


def draws_of(
    step: tf.Tensor, ids: tf.Tensor, coin_of_example: tf.Tensor, share: range | None, *,
    global_batch_size: int, seed: int,
) -> Draws:  # fmt: skip
    """The draws for the examples `ids`, in the places `share` of the batch of `step`."""
    own = places(share, global_batch_size)
    turn = step * global_batch_size + tf.range(own.start, own.stop, dtype=tf.int64)
    turn = turn // len(coin_of_example) + tf.gather(coin_of_example, ids)
    return Draws(augmentation_seed(step, seed=seed), turn % 2 == 1, share, global_batch_size)


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
    keys = tf.stack([_permutation_key(seed, first_epoch + i) for i in range(num_epochs)])
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % num_examples,
        seed=tf.gather(keys, epochs - first_epoch),  # [global_batch_size, 3]
        max_index=tf.constant(num_examples - 1, tf.int64),
        rounds=_SHUFFLING_ROUNDS,
    )


def _permutation_key(seed: int, epoch: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(
        [3],
        _stream_seed(seed, _SHUFFLING_STREAM, epoch),
        minval=None,
        maxval=None,
        dtype=tf.int64,
        alg=ALGORITHM,
    )


def augmentation_seed(step: int | tf.Tensor, *, seed: int) -> tf.Tensor:
    """The seed, int64 [2], of every random draw made for the images of `step`."""
    return _stream_seed(seed, _AUGMENTATION_STREAM, step)


def coins(num_examples: int, *, seed: int) -> tf.Tensor:
    """A coin thrown for each example, int64 [num_examples], 0 or 1."""
    stream_seed = _stream_seed(seed, _MIRRORING_STREAM, 0)
    return tf.random.stateless_uniform([num_examples], stream_seed, 0, 2, tf.int64, alg=ALGORITHM)


def _stream_seed(seed: int, stream: int, counter: int | tf.Tensor) -> tf.Tensor:
    # The result takes the dtype of the counter: an int32 would give another stream.
    counter = tf.cast(counter, tf.int64)
    stream_seed = tf.constant([seed, stream], tf.int64)
    return tf.random.experimental.stateless_fold_in(stream_seed, counter, alg=ALGORITHM)


def training_batches(
    images: np.ndarray | tf.Tensor,
    labels: np.ndarray | tf.Tensor,
    *,
    global_batch_size: int,
    seed: int,
    last_step: int,
    first_step: int = 0,
    preprocess: Callable[[tf.Tensor, Draws], tf.Tensor] | None = None,
    mix: Callable[[tf.Tensor, tf.Tensor, Draws], tuple[tf.Tensor, tf.Tensor]] | None = None,
    share: range | None = None,
) -> tf.data.Dataset:
    """The global batches of steps `first_step` to `last_step - 1`, in order, or a share of each.

    The element of a step is the same whatever `first_step` is. Examples are gathered and
    preprocessed as one batch on the CPU, several steps ahead of the reader.

    Args:
      images: uint8 [n, height, width, channels]; any dtype and shape [n, ...] where `preprocess`
        takes it or is None. An array is copied; `as_tensor` makes a tensor of it that is not.
      labels: numbers or booleans [n, ...]: classes, or targets of a regression.
      global_batch_size: examples per step, at least 1.
      seed: of the run, for the order of the examples and for the augmentation.
      last_step: number of steps made when the data set ends.
      first_step: number of steps made already.
      preprocess: (images [n, ...], draws) -> float32 [n, ...], of the n images of the share, traced
        as it is written: Python's `if` on a tensor is an error, `tf.where` and `tf.cond` are not.
        None leaves images as they are, uint8 cast to float32.
      mix: (preprocessed images, labels, draws) to images and labels, such as a `mixing.Mixing`.
      share: the places in each batch that are read and preprocessed, such as a worker's
        `Trainer.shares.examples`; None for all.

    Returns:
      A data set of (float32 [n, height, width, channels], labels [n, ...]), with n the global
      batch size, or the size of the share. Integer labels are int32, or int64 where one does not
      fit; others keep their type, unless `mix` gives other ones.

    Raises:
      TypeError: labels are not numbers.
      ValueError: there are no examples, images and labels differ in number, the batch size is
        below 1, the share is not one of the batch, or `last_step` is before `first_step`; or a
        label does not fit into int64.
    """
    num_examples = _checked_length(images, labels, global_batch_size)
    own = places(share, global_batch_size)
    if not 0 <= first_step <= last_step:
        raise ValueError(
            f"first_step={first_step}, last_step={last_step}: the first must be at least 0 and at "
            "most the last"
        )
    images, labels = _in_memory(images, labels)
    with tf.device("/CPU:0"):
        coin_of_example = coins(num_examples, seed=seed)

    def batch_of_step(step):
        ids = example_ids(
            step, num_examples=num_examples, global_batch_size=global_batch_size, seed=seed
        )[own.start : own.stop]
        batch = tf.gather(images, ids)  # [len(own), height, width, channels]
        draws = draws_of(
            step, ids, coin_of_example, share, global_batch_size=global_batch_size, seed=seed
        )
        batch = _as_float(batch) if preprocess is None else preprocess(batch, draws)
        of_batch = tf.gather(labels, ids)
        return (batch, of_batch) if mix is None else mix(batch, of_batch, draws)

    return mapped(tf.data.Dataset.range(first_step, last_step), batch_of_step)


def evaluation_batches(
    images: np.ndarray | tf.Tensor,
    labels: np.ndarray | tf.Tensor,
    *,
    global_batch_size: int,
    preprocess: Callable[[tf.Tensor], tf.Tensor] | None,
    share: range | None = None,
) -> tf.data.Dataset:
    """Every example exactly once, in the order of the data, in full batches with a mask.

    With shares, once over all of them together; each has the same number of batches.

    The last batch is filled up with copies of example 0, which the mask leaves out: metrics add
    up under the mask, and the number of true entries over all batches is the number of examples.

    Args:
      images: uint8 [n, height, width, channels], as for `training_batches`.
      labels: numbers or booleans [n, ...], as for `training_batches`.
      global_batch_size: examples per batch, at least 1.
      preprocess: (images [n, ...]) -> float32 [n, ...], traced as it is written. None leaves images
        as they are, uint8 cast to float32.
      share: the places in each batch that are read and preprocessed, such as a worker's
        `Trainer.shares.examples`; None for all.

    Returns:
      A data set of (float32 [n, height, width, channels], labels [n, ...], mask bool [n]), with n
      the global batch size, or the size of the share; labels as from `training_batches`.

    Raises:
      TypeError: labels are not numbers.
      ValueError: there are no examples, images and labels differ in number, the batch size is
        below 1, the share is not one of the batch, or a label does not fit into int64.
    """
    num_examples = _checked_length(images, labels, global_batch_size)
    own = places(share, global_batch_size)
    images, labels = _in_memory(images, labels)

    def batch_at(index):
        ids = index * global_batch_size + tf.range(own.start, own.stop, dtype=tf.int64)
        mask = ids < num_examples
        ids = tf.where(mask, ids, tf.zeros_like(ids))
        batch = tf.gather(images, ids)  # [len(own), height, width, channels]
        batch = _as_float(batch) if preprocess is None else preprocess(batch)
        return batch, tf.gather(labels, ids), mask

    num_batches = -(-num_examples // global_batch_size)
    return mapped(tf.data.Dataset.range(num_batches), batch_at)


def as_array(given) -> np.ndarray:
    """`given` as a NumPy array.

    Raises:
      TypeError: it has a mask, which would be lost.
    """
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            "a masked array: training would see what is under its mask; fill it (`.filled(...)`), "
            "or give such examples sample_weight 0"
        )
    return np.asarray(given)


def as_tensor(images: np.ndarray) -> tf.Tensor:
    """A tensor in the array's own memory, so that a large data set is in memory once.

    The array cannot be written to from then on. One that cannot be written to already, does not
    begin where tensors do (`decoded.empty` makes those that do), or has gaps, is copied.
    """
    aligned = images.ctypes.data % decoded.TENSOR_ALIGNMENT == 0
    if not (aligned and images.flags.c_contiguous and images.flags.writeable):
        with tf.device("/CPU:0"):
            return tf.convert_to_tensor(images)
    tensor = tf.experimental.dlpack.from_dlpack(images.__dlpack__())
    images.flags.writeable = False
    return tensor


def spread_out(images: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of `images`, [n, ...], evenly spread: sorted classes all have some."""
    places = np.linspace(0, len(images) - 1, min(count, len(images))).astype(np.int64)
    return images[places]


def _checked_length(images, labels, global_batch_size: int) -> int:
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels: give one for each")
    if len(images) == 0:
        raise ValueError("0 examples: must be at least 1")
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size={global_batch_size}: must be at least 1")
    return len(images)


def _in_memory(images, labels) -> tuple[tf.Tensor, tf.Tensor]:
    # Eager tensors are inputs of the mapped function; arrays would become constants in its graph.
    # Without the pin they would be copied to a GPU, and back for each batch.
    with tf.device("/CPU:0"):
        return tf.convert_to_tensor(images), tf.convert_to_tensor(_as_labels(labels))


def _as_labels(labels) -> np.ndarray | tf.Tensor:
    """Integers as int32, or as int64 where one does not fit; other numbers as they are."""
    if isinstance(labels, (list, tuple)):
        labels = np.asarray(labels)
        if labels.dtype == np.float64:  # Python's numbers have no type to keep
            labels = labels.astype(np.float32)
    dtype = tf.as_dtype(labels.dtype)
    if dtype.is_floating or dtype.is_bool:
        return labels
    if not dtype.is_integer:
        raise TypeError(f"labels are {labels.dtype}: must be numbers or booleans")
    values = np.asarray(labels)
    smallest, largest = int(values.min()), int(values.max())
    if largest > np.iinfo(np.int64).max:
        raise ValueError(f"a label is {largest}: must fit into int64")
    narrow = np.iinfo(np.int32)
    fits = narrow.min <= smallest and largest <= narrow.max
    return values.astype(np.int32 if fits else np.int64)


def _as_float(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32) if images.dtype == tf.uint8 else images


def mapped(indices: tf.data.Dataset, batch_at: Callable) -> tf.data.Dataset:
    """The batch of each index, several ahead of the reader, in order."""
    # Python is traced as it is written: else TensorFlow rewrites it into files in the temporary
    # folder, which a killed process leaves there.
    as_written = tf.autograph.experimental.do_not_convert(batch_at)
    batches = indices.map(as_written, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    # They rewrite the data set as a graph, which copies all images; they do not improve these two
    # operations.
    options.experimental_optimization.apply_default_optimizations = False
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)
