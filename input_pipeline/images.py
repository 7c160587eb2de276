"""The images of a data set: in memory, or pictures that are decoded when they are needed.

A picture passes through these stages: its number, from the step and its place in the batch
(`batches`); its bytes; the part of it that is seen, drawn from the step and the place; its pixels,
decoded and scaled (`pictures`); then, with the others of its batch, what happens to any images
(`preprocess`). None of it depends on who reads which share of a batch, nor on where a run
continues.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from towers import hashes, machine

from . import arrays, batches, checks, pictures, preprocess

IMAGE_SIZE = 224  # of pictures that are decoded when they are needed, by default
_CUT_DRAW = 16


@dataclasses.dataclass(eq=False, kw_only=True)
class Images(arrays.Examples):
    """One split of a data set, from `datasets.load`; its examples are (image, label).

    Attributes:
      class_names: one name per class.
      source: where it came from, one line for a person.
      fingerprint: SHA-256 in hex; the same images, labels and classes have the same.
    """

    class_names: tuple[str, ...]
    source: str
    fingerprint: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image as preprocessing gets it."""
        return self.parts[0].shape[1:]

    def shares(self, labels: tf.Tensor) -> tf.Tensor:
        """Of labels, the share of each class, float32 [n, classes]; of such shares, these."""
        return tf.one_hot(labels, len(self.class_names)) if labels.dtype.is_integer else labels

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`, or a DataError."""
        return self._rows(arrays.spread_out(self.num_examples, count))[0]


@dataclasses.dataclass(eq=False)
class ImageArrays(Images, arrays.InMemory):
    """One split of a data set, in memory.

    Attributes:
      images: uint8 [n, height, width, channels].
      labels: int32 [n], of any integers, each at least 0 and below `len(class_names)`.
    """

    images: np.ndarray
    labels: np.ndarray
    fingerprint: str = dataclasses.field(init=False)

    def __post_init__(self):
        count = len(self.class_names)
        for example in np.flatnonzero((self.labels < 0) | (self.labels >= count))[:1]:
            raise checks.DataError(
                f"{self.source}: example {example} has label {self.labels[example]}; with {count} "
                f"classes, labels are 0 to {count - 1}."
            )
        self.labels = self.labels.astype(np.int32, copy=False)
        arrays.InMemory.__init__(self, self.images, self.labels)
        self.fingerprint = hashes.sha256(self.parts)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that decode, in all as many as there are cores; Pillow runs beside Python."""
    return concurrent.futures.ThreadPoolExecutor(machine.available_cores(), "decode")


@dataclasses.dataclass(eq=False)
class EncodedImages(Images):
    """One split of a data set whose pictures are encoded, of any size each.

    Attributes:
      read: number to the encoded picture and its label, an index into `class_names`; OSError or
        ValueError where it cannot be read. Several threads call it.
      name: number to what a person calls the picture, such as its path in the folder.
      num_examples: how many there are.
      image_size: pixels, the side of the square that each becomes.
      at_random: whether a training gets a part of each at random, or the middle.
    """

    batches_ahead = 3  # they are large, and every one of them is made on all cores

    read: Callable[[int], tuple[bytes, int]]
    name: Callable[[int], str]
    num_examples: int
    image_size: int = IMAGE_SIZE
    at_random: bool = False

    @property
    def parts(self) -> tuple:  # type: ignore[override]
        return np.empty([1, self.image_size, self.image_size, 3], np.uint8), np.empty([1], np.int32)

    def gather(self, ids: tf.Tensor, draws: batches.Draws | None = None) -> tuple:
        """As of `arrays.Examples`; a part of each is decoded then, on all cores."""
        if self.at_random and draws is not None:
            return self._call_rows(ids, draws.uniform(_CUT_DRAW, [pictures.NUMBERS_OF_A_CUT]))
        return self._call_rows(ids)

    def _rows(self, ids, drawn=None):
        cuts: Iterable[pictures.Cut] = itertools.repeat(pictures.middle)
        if drawn is not None:
            cuts = (functools.partial(pictures.at_random, drawn=each) for each in drawn.tolist())
        try:
            squares, labels = zip(*_pool().map(self._square, ids.tolist(), cuts), strict=True)
        except checks.DataError as error:
            self.problem = error
            raise
        return [np.stack(squares), np.array(labels, np.int32)]

    def _square(self, number: int, cut: pictures.Cut) -> tuple[np.ndarray, int]:
        try:
            content, label = self._content(number)
            return pictures.square(content, cut, self.image_size), label
        except pictures.NoPicture as error:
            raise checks.DataError(
                f"{self.name(number)} {error} ({self.source}). Repair it or take it out of the set."
            ) from error

    def _content(self, number: int) -> tuple[bytes, int]:
        """As of `read`, or a NoPicture that says why not."""
        try:
            content, label = self.read(number)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise pictures.NoPicture(f"cannot be read ({why})") from error
        if not 0 <= label < len(self.class_names):
            raise pictures.NoPicture(f"has label {label}: must be 0 to {len(self.class_names) - 1}")
        return content, label


def check_fits(split: Images, prepared: preprocess.Preprocessing) -> None:
    """Raises a ValueError or a DataError where images cannot be prepared so."""
    if tuple(split.image_shape) != prepared.image_shape:
        raise ValueError(
            f"preprocessing={prepared.name} was made for images of {list(prepared.image_shape)}, "
            f"but those of this split are {list(split.image_shape)}; make another for it"
        )
    if prepared.cuts_at_random and isinstance(split, ImageArrays):
        raise checks.DataError(
            f"preprocessing={prepared.name} crops pictures while it decodes them, but these are in "
            "memory: give `image_size`, to decode them as needed, or another `preprocessing`."
        )


def training(
    split: Images, prepared: preprocess.Preprocessing, seed: int, one_hot: bool = False
) -> batches.Source:
    """The split as a source of training batches, for `towers.Run`.

    Args:
      split: from `datasets.load`.
      prepared: as for `check_fits`.
      seed: of the order of the examples and of what preprocessing draws.
      one_hot: whether labels are the share of each class, float32 [n, classes], as those of images
        that are mixed always are.
    """
    check_fits(split, prepared)

    def mixed(images, labels, draws):
        images, labels = prepared.mixed(images, labels, draws)
        return images, split.shares(labels) if one_hot else labels

    examples = split
    if isinstance(split, EncodedImages):
        examples = dataclasses.replace(split, at_random=prepared.cuts_at_random)
    how = f"{prepared.name} {prepared.image_shape} {prepared.augmentation} {prepared.mixed}"
    fingerprint = hashlib.sha256(f"{split.fingerprint} {seed} {how}".encode()).hexdigest()
    return batches.Source(examples, fingerprint, prepared.in_training, mixed, seed)


def evaluated(
    split: Images, prepared: preprocess.Preprocessing, batch_size: int, one_hot: bool = False
) -> batches.Repeatable:
    """The split's examples, each exactly once, as often as the result is iterated over.

    Args:
      split: from `datasets.load`.
      prepared: as for `check_fits`.
      batch_size: images of a batch, at least 1; the last batch may have fewer.
      one_hot: as of `training`.

    Returns:
      Batches (images float32 `[n, *output_shape]`, labels int32 [n]), in the order of the split.
    """
    check_fits(split, prepared)
    examples = split
    if isinstance(split, EncodedImages):
        examples = dataclasses.replace(split, image_size=prepared.raw_shape[0])

    def batch_of(ids):
        images, labels = examples.gather(ids)
        return prepared.evaluate(images), split.shares(labels) if one_hot else labels

    ids = batches.each_once(split.num_examples, batch_size)
    return batches.Repeatable(ids, batch_of, examples)
