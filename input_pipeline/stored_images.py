"""The pictures of a store as training batches by step, and as examples to evaluate.

One picture passes through these stages: its number, from the step and its place in the batch
(`batches`); the part of it that is seen, drawn from the same (`cuts`); its bytes, from the store;
its pixels, decoded and scaled (`pictures`); then, with the others of its batch, what happens to any
images (`preprocess`). None of it depends on who reads which share of a batch, nor on where a run
continues.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from towers import container_limits

from . import batches, cuts, decoded, pictures, preprocess, reading, store

IMAGE_SIZE = 224  # by default
_CHANNELS = 3


@dataclasses.dataclass(frozen=True)
class StoredImages:
    """One split of a data set whose pictures are on disk, of any size each.

    Attributes:
      store: holds them.
      image_size: pixels, the side of the square that each becomes.
      source: where they came from, one line for a person.
    """

    store: store.Store
    image_size: int
    source: str

    @property
    def num_examples(self) -> int:
        """How many pictures there are."""
        return len(self.store)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image as preprocessing gets it."""
        return (self.image_size, self.image_size, _CHANNELS)

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return self.store.class_names

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex over classes, labels and pictures."""
        return self.store.fingerprint

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`."""
        return self.at(batches.spread_out(np.arange(len(self.store)), count))

    def at(self, ids: Sequence[int]) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`."""
        ids, index = np.asarray(ids, np.int64), self.store.index
        sizes = index.sizes[ids]
        square, pixels = _square(self.image_size), []
        with tf.device("/CPU:0"):
            numbers = (index.kinds[ids].astype(np.int32), index.orientations[ids].astype(np.int32))
            cut = cuts.middle(tf.constant(sizes), self.image_size)
            looks = pictures.looks(*map(tf.constant, (*numbers, sizes)), cut, self.image_size)
            for content, *look in zip(self.store.reader(ids), *looks, strict=True):
                found = square(tf.constant(content), pictures.Looks(*look))
                pixels.append(np.clip(np.rint(found), 0, 255).astype(np.uint8))
        return np.stack(pixels)

    def names(self) -> list[str]:
        """What a person calls each picture: its path in the folder, or its number in the split."""
        return self.store.names()


@functools.cache
def _square(size: int) -> Callable:
    """`pictures.square` for one picture at a time, traced once."""
    return tf.function(functools.partial(pictures.square, size=size), autograph=False)


class _Pictures:
    """A store in the terms of TensorFlow's graphs."""

    def __init__(self, split: StoredImages):
        self._size, self._read = split.image_size, split.store.reader
        self.problem: decoded.DataError | None = None
        index = split.store.index
        with tf.device("/CPU:0"):
            self.labels = tf.constant(index.labels)
            self._sizes = tf.constant(index.sizes)
            self._kinds = tf.constant(index.kinds)
            self._orientations = tf.constant(index.orientations)

    def asked_for(
        self, ids: tf.Tensor, cut_of: Callable[[tf.Tensor], cuts.Cut]
    ) -> tuple[tf.Tensor, pictures.Looks]:
        """What `pictures.square` needs of each, the first axis of all being that of `ids`."""
        sizes = tf.gather(self._sizes, ids)
        [content] = tf.numpy_function(self._contents, [ids], [tf.string])
        content.set_shape(ids.shape)
        kinds, orientations = (
            tf.cast(tf.gather(of_all, ids), tf.int32)
            for of_all in (self._kinds, self._orientations)
        )
        return content, pictures.looks(kinds, orientations, sizes, cut_of(sizes), self._size)

    def _contents(self, ids: np.ndarray) -> np.ndarray:
        try:
            found = np.empty(len(ids), object)
            found[:] = self._read(ids)
            return found
        except decoded.DataError as error:
            self.problem = error  # TensorFlow would make its own error of it
            raise

    def decoded(
        self, asked: tf.data.Dataset, at_a_time: int, finished: Callable | None = None
    ) -> tf.data.Dataset:
        """Batches of so many images of what `asked_for` has given for each batch, in order.

        Args:
          asked: (what it has given, besides), the first axis of all being that of the pictures.
          at_a_time: images of a batch.
          finished: (float32 [1, size, size, 3], and what was given for it besides) to the final
            image; one at a time fits a core's cache, and a batch does not. None leaves images as
            they are.
        """

        def one(asked, *besides):
            image = pictures.square(*asked, self._size)
            if finished is None:
                return image
            return finished(image[tf.newaxis], *tf.nest.map_structure(_as_batch, besides))[0]

        # On all cores: decoding is what takes the time.
        one_by_one = asked.unbatch().map(
            _as_written(one),
            num_parallel_calls=container_limits.available_cores(),
            deterministic=True,
        )
        return one_by_one.batch(at_a_time, drop_remainder=True)

    def explained(self, dataset: tf.data.Dataset) -> Iterator:
        """Iterates; what is wrong with the store is raised as a DataError.

        Raises:
          DataError: a file of the store is gone or damaged.
        """
        iterator = reading.Reading(dataset)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except tf.errors.OpError as error:
                if self.problem is not None:
                    raise self.problem from error
                raise
            yield batch


_as_written = tf.autograph.experimental.do_not_convert


def _as_batch(one: tf.Tensor) -> tf.Tensor:
    return one[tf.newaxis]


class Training:
    """A source of training batches by step, for `towers.Run`.

    Attributes:
      num_examples: pictures of the split.
      fingerprint: sha256 of them, the preprocessing and the seed.
    """

    def __init__(self, split: StoredImages, preprocessing: preprocess.Preprocessing, seed: int):
        """
        Args:
          split: of a data set.
          preprocessing: from `preprocess.for_images`.
          seed: of the order of the pictures and of what preprocessing draws.
        """
        self.num_examples = split.num_examples
        self.fingerprint = preprocessing.fingerprint_of(split.fingerprint, seed)
        self._split, self._preprocessing, self._seed = split, preprocessing, seed

    def _cut(self, sizes: tf.Tensor, draws: batches.Draws) -> cuts.Cut:
        size = self._split.image_size
        if self._preprocessing.cuts_at_random:
            return cuts.at_random(sizes, draws, size)
        return cuts.middle(sizes, size)

    def batches(
        self,
        first_step: int,
        last_step: int,
        *,
        global_batch_size: int,
        share: range | None = None,
    ) -> Iterator:
        """As `batches.training_batches`, one after the other.

        Raises:
          DataError: as they are read, a file of the store is gone or damaged.
          ValueError: as `batches.training_batches`, and `mixing.Mixing` where images are mixed.
        """
        own, mixed = batches.places(share, global_batch_size), self._preprocessing.mixed
        of_store, count = _Pictures(self._split), self.num_examples
        with tf.device("/CPU:0"):
            coin_of_example = batches.coins(count, seed=self._seed)

        def ids_and_draws(step):
            ids = batches.example_ids(
                step, num_examples=count, global_batch_size=global_batch_size, seed=self._seed
            )[own.start : own.stop]
            return ids, batches.draws_of(
                step, ids, coin_of_example, share,
                global_batch_size=global_batch_size, seed=self._seed,
            )  # fmt: skip

        def asked_for(step):
            ids, draws = ids_and_draws(step)
            asked = of_store.asked_for(ids, lambda sizes: self._cut(sizes, draws))
            return (asked, augmentation.plan(draws, len(own))) if augmentation.is_any else (asked,)

        def as_planned(image, *plan):
            how = self._preprocessing
            return how.as_planned(image, None, *plan) if plan else how.train(image, None)

        augmentation = self._preprocessing.augmentation
        draws_nothing = self._preprocessing.cuts_at_random

        def finished(step, images):
            ids, draws = ids_and_draws(step)
            if not draws_nothing:
                images = self._preprocessing.in_training(images, draws)
            labels = tf.gather(of_store.labels, ids)
            return mixed(images, labels, draws)

        steps = tf.data.Dataset.range(first_step, last_step)
        images = of_store.decoded(
            batches.mapped(steps, asked_for), len(own), as_planned if draws_nothing else None
        )
        whole = batches.mapped(tf.data.Dataset.zip(steps, images), finished)
        return of_store.explained(whole)


class Evaluated:
    """Each picture of a split exactly once, as often as it is iterated over.

    Attributes:
      num_counted: pictures of the split.
    """

    def __init__(
        self,
        split: StoredImages,
        preprocessing: preprocess.Preprocessing,
        global_batch_size: int,
        share: range | None = None,
    ):
        """
        Args:
          split: of a data set.
          preprocessing: from `preprocess.for_images`.
          global_batch_size: as for `batches.evaluation_batches`.
          share: likewise.
        """
        own = batches.places(share, global_batch_size)
        self.num_counted = split.num_examples
        self._pictures = _Pictures(split)
        cut_of = functools.partial(cuts.middle, shorter=preprocessing.raw_shape[0])

        def ids_and_mask(index):
            places = index * global_batch_size + tf.range(own.start, own.stop, dtype=tf.int64)
            mask = places < self.num_counted
            return tf.where(mask, places, tf.zeros_like(places)), mask

        def asked_for(index):
            return (self._pictures.asked_for(ids_and_mask(index)[0], cut_of),)

        def finished(index, images):
            numbers, mask = ids_and_mask(index)
            labels = tf.gather(self._pictures.labels, numbers)
            return images, labels, mask

        # Made once, because TensorFlow keeps something of each; every iteration starts over.
        indices = tf.data.Dataset.range(-(-self.num_counted // global_batch_size))
        images = self._pictures.decoded(
            batches.mapped(indices, asked_for), len(own), preprocessing.evaluate
        )
        self._batches = batches.mapped(tf.data.Dataset.zip(indices, images), finished)

    def __iter__(self) -> Iterator:
        return self._pictures.explained(self._batches)
