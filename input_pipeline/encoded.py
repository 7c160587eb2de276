"""Pictures that are read and decoded when they are needed, by step and for an evaluation.

One picture passes through these stages: its number, from the step and its place in the batch
(`batches`); its bytes and its header; the part of it that is seen, drawn from the step and the
place (`cuts`); its pixels, decoded and scaled (`pictures`); then, with the others of its batch,
what happens to any images (`preprocess`). None of it depends on who reads which share of a batch,
nor on where a run continues.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tqdm

from towers import container_limits

from . import batches, cuts, decoded, pictures, preprocess

IMAGE_SIZE = 224  # by default
_CHECKED_AT_A_TIME = 1024  # pictures


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """One split of a data set whose pictures are encoded, of any size each.

    Attributes:
      read: number to the encoded picture and its label, an index into `class_names`; OSError or
        ValueError where it cannot be read. Several threads call it.
      name: number to what a person calls the picture, such as its path in the folder.
      num_examples: how many pictures there are.
      class_names: one name per class.
      source: where they came from, one line for a person.
      fingerprint: SHA-256 in hex; the same pictures, labels and classes have the same.
      image_size: pixels, the side of the square that each becomes.
    """

    read: Callable[[int], tuple[bytes, int]]
    name: Callable[[int], str]
    num_examples: int
    class_names: tuple[str, ...]
    source: str
    fingerprint: str
    image_size: int = IMAGE_SIZE

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image as preprocessing gets it."""
        return (self.image_size, self.image_size, 3)

    def names(self) -> list[str]:
        """What a person calls each picture."""
        return list(map(self.name, range(self.num_examples)))

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`."""
        return self.at(batches.spread_out(np.arange(self.num_examples), count))

    def at(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`.

        Raises:
          DataError: one cannot be used, and is named.
        """
        numbers = np.asarray(ids, np.int64)
        squares = self._squares(tf.data.Dataset.from_tensors(numbers), self._middles, len(numbers))
        [(images, _)] = self._read_all(squares, lambda _: numbers)
        return np.clip(np.rint(images), 0, 255).astype(np.uint8)

    def _middles(self, ids: tf.Tensor) -> tuple:
        """What is asked for where the middle of each picture is."""
        return ids, lambda sizes: cuts.middle(sizes, self.image_size)

    def without_broken(self) -> "EncodedImages":
        """The split without the pictures that cannot be used, which are listed on stderr.

        All pictures are read and decoded for it.

        Raises:
          DataError: none can be used.
        """
        broken = dict(self.broken())
        for number, reason in broken.items():
            print(f"skipped: {self.name(number)} {reason}", file=sys.stderr, flush=True)
        kept = np.setdiff1d(np.arange(self.num_examples), list(broken))
        if not kept.size:
            raise decoded.DataError(f"{self.source}: no picture can be used.")
        if not broken:
            return self
        digest = hashlib.sha256(self.fingerprint.encode() + kept.astype("<i8").tobytes())
        return dataclasses.replace(
            self,
            read=lambda number: self.read(int(kept[number])),
            name=lambda number: self.name(int(kept[number])),
            num_examples=len(kept),
            source=f"{self.source} ({len(broken):,} that cannot be used are skipped)",
            fingerprint=digest.hexdigest(),
        )

    def broken(self) -> Iterator[tuple[int, str]]:
        """The numbers of the pictures that cannot be used, and why; decodes all, on all cores."""
        cores = container_limits.available_cores()
        with (
            tqdm.tqdm(desc="pictures checked", total=self.num_examples, disable=None) as bar,
            concurrent.futures.ThreadPoolExecutor(cores) as pool,
        ):
            for first in range(0, self.num_examples, _CHECKED_AT_A_TIME):
                numbers = range(self.num_examples)[first : first + _CHECKED_AT_A_TIME]
                for number, problem in zip(numbers, pool.map(self._problem, numbers), strict=True):
                    bar.update()
                    if problem:
                        yield number, problem

    def _problem(self, number: int) -> str:
        """Why a picture cannot be used; empty where it can."""
        try:
            pictures.check(self._labelled(number)[0])
        except pictures.NoPicture as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"cannot be read ({getattr(error, 'strerror', None) or error})"
        return ""

    def _labelled(self, number: int) -> tuple[bytes, int]:
        content, label = self.read(number)
        if not 0 <= label < len(self.class_names):
            raise pictures.NoPicture(f"has label {label}: must be 0 to {len(self.class_names) - 1}")
        return content, label

    @functools.cached_property
    def _headers(self) -> np.ndarray:
        """int32 [n, 3], each a `pictures.Header`, once a picture has been read; 0 before."""
        return np.zeros([self.num_examples, len(pictures.Header._fields)], np.int32)

    def _read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Encoded pictures [n], their headers int32 [n, 3] and labels int32 [n]."""
        contents, labels = np.empty(len(ids), object), np.empty(len(ids), np.int32)
        headers = self._headers  # once: of two threads that come first, each may make its own
        for place, number in enumerate(ids.tolist()):
            contents[place], labels[place] = self._labelled(number)
            if not headers[number, 0]:
                headers[number] = pictures.header(contents[place])
        return contents, headers[ids], labels

    def _squares(
        self,
        elements: tf.data.Dataset,
        ask: Callable,
        at_a_time: int,
        finish: Callable | None = None,
    ) -> tf.data.Dataset:
        """Decoded pictures: (float32 [n, size, size, 3], labels int32 [n]), in order.

        Args:
          elements: of steps, or of whatever `ask` takes.
          ask: an element to (ids int64 [n], function of sizes [n, 2] to a `cuts.Cut`, and what
            `finish` needs besides, the first axis of all being that of the pictures).
          at_a_time: n.
          finish: (float32 [1, size, size, 3], and what `ask` has for it besides) to the final
            image; one at a time fits a core's cache, and a batch does not. None leaves images as
            they are.
        """

        def read(element):
            ids, cut_of, *besides = ask(element)
            types = [tf.string, tf.int32, tf.int32]
            contents, headers, labels = tf.numpy_function(self._read, [ids], types)
            contents.set_shape(ids.shape)
            headers.set_shape([ids.shape[0], len(pictures.Header._fields)])
            labels.set_shape(ids.shape)
            looks = pictures.looks(headers, cut_of(headers[:, :2]), self.image_size)
            return contents, looks, labels, *besides

        def decode(content, look, label, *besides):
            image = pictures.square(content, look, self.image_size)  # [size, size, 3]
            if finish is not None:
                batch = tf.nest.map_structure(lambda value: value[tf.newaxis], (image, *besides))
                image = finish(*batch)[0]
            return image, label

        # On all cores: decoding is what takes the time.
        cores = container_limits.available_cores()
        decode = tf.autograph.experimental.do_not_convert(decode)
        one_by_one = batches.mapped(elements, read).unbatch().map(decode, cores, deterministic=True)
        return one_by_one.batch(at_a_time)

    def _read_all(
        self, dataset: tf.data.Dataset, ids_at: Callable[[int], Iterable[int]]
    ) -> Iterator[tuple]:
        """Iterates; a picture that cannot be used is named.

        Args:
          dataset: whose elements are read.
          ids_at: place of an element to the numbers of its pictures.

        Raises:
          DataError: with the picture's name, why it cannot be used, and what to do.
        """
        place = -1
        try:
            for place, batch in enumerate(batches.Reading(dataset)):  # noqa: B007
                yield batch
        except tf.errors.OpError as error:
            for number in map(int, ids_at(place + 1)):
                if problem := self._problem(number):
                    raise decoded.DataError(
                        f"{self.name(number)} {problem} ({self.source}). Repair it or take it "
                        "out of the set; `skip_broken` leaves out and lists all such pictures."
                    ) from error
            raise

    def training(self, prepared: preprocess.Preprocessing, seed: int) -> batches.Source:
        """Training batches: each picture cut, decoded and prepared as its step has drawn."""
        one_by_one = prepared.cuts_at_random  # which draws nothing else for a batch

        def read(order: batches.Order, first_step: int, last_step: int) -> Iterator[tuple]:
            count = len(order.places)

            def ask(step):
                ids, draws = order(step)
                if not one_by_one:
                    return self._middles(ids)
                plan = prepared.augmentation.plan(draws, count)
                return ids, lambda sizes: cuts.at_random(sizes, draws, self.image_size), plan

            def finish(image, plan):
                return prepared.as_planned(image, None, plan)

            def finished(step, squares):
                images, labels = (tf.ensure_shape(x, [count, *x.shape[1:]]) for x in squares)
                _, draws = order(step)
                images = images if one_by_one else prepared.in_training(images, draws)
                return prepared.mixed(images, labels, draws)

            steps = tf.data.Dataset.range(first_step, last_step)
            squares = self._squares(steps, ask, count, finish if one_by_one else None)
            whole = batches.mapped(tf.data.Dataset.zip(steps, squares), finished)
            return self._read_all(
                whole, lambda place: order(tf.constant(first_step + place, tf.int64))[0]
            )

        fingerprint = prepared.fingerprint_of(self.fingerprint, seed)
        return batches.Source(self.num_examples, fingerprint, read, seed)

    def evaluated(
        self, prepared: preprocess.Preprocessing, batch_size: int
    ) -> Callable[[], Iterator[tuple]]:
        """Iterates over batches (images, labels) of all pictures in order, again at each call."""

        def ask(ids):
            return ids, lambda sizes: cuts.middle(sizes, prepared.raw_shape[0])

        def ids_at(place):
            return range(self.num_examples)[place * batch_size :][:batch_size]

        numbers = batches.each_once(self.num_examples, batch_size)
        squares = self._squares(numbers, ask, batch_size, prepared.evaluate)
        return lambda: self._read_all(squares, ids_at)
