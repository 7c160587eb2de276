"""Pictures that are read and decoded when they are needed, by step and for an evaluation.

One picture passes through these stages: its number, from the step and its place in the batch
(`batches`); its bytes; the part of it that is seen, drawn from the step and the place (`cuts`); its
pixels, decoded and scaled (`pictures`); then, with the others of its batch, what happens to any
images (`preprocess`). None of it depends on who reads which share of a batch, nor on where a run
continues.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tqdm

from towers import container_limits

from . import arrays, batches, cuts, decoded, images, pictures

IMAGE_SIZE = 224  # by default
_CHECKED_AT_A_TIME = 1024  # pictures


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that decode, in all as many as there are cores; Pillow runs beside Python."""
    return concurrent.futures.ThreadPoolExecutor(container_limits.available_cores(), "decode")


@dataclasses.dataclass(frozen=True)
class EncodedImages(images.Images):
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
    def image_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """(height, width, channels) of an image as preprocessing gets it."""
        return (self.image_size, self.image_size, 3)

    def at(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`.

        Raises:
          DataError: one cannot be used, and is named.
        """
        return Squares(self, self.image_size).rows(np.asarray(ids))[0]

    def examples(self, size: int, cuts_at_random: bool) -> "Squares":
        """As of `images.Images`."""
        return Squares(self, size, cuts_at_random)

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
        with tqdm.tqdm(desc="pictures checked", total=self.num_examples, disable=None) as bar:
            for first in range(0, self.num_examples, _CHECKED_AT_A_TIME):
                numbers = range(self.num_examples)[first : first + _CHECKED_AT_A_TIME]
                for number, problem in zip(
                    numbers, _pool().map(self._problem, numbers), strict=True
                ):
                    bar.update()
                    if problem:
                        yield number, problem

    def _problem(self, number: int) -> str:
        """Why a picture cannot be used; empty where it can."""
        try:
            pictures.decode(self._labelled(number)[0])
        except (OSError, ValueError) as error:
            return _reason(error)
        return ""

    def _labelled(self, number: int) -> tuple[bytes, int]:
        content, label = self.read(number)
        if not 0 <= label < len(self.class_names):
            raise pictures.NoPicture(f"has label {label}: must be 0 to {len(self.class_names) - 1}")
        return content, label

    def square(self, number: int, cut: Callable[[int, int], cuts.Cut], size: int) -> tuple:
        """A picture's part, uint8 [size, size, 3], as of `pictures.square`, and its label.

        Raises:
          DataError: it cannot be used, and is named.
        """
        try:
            content, label = self._labelled(number)
            return pictures.square(content, cut, size), label
        except (OSError, ValueError) as error:
            raise decoded.DataError(
                f"{self.name(number)} {_reason(error)} ({self.source}). Repair it or take it out "
                "of the set; `skip_broken` leaves out and lists all such pictures."
            ) from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, pictures.NoPicture):
        return str(error)
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


class Squares(arrays.Examples):
    """Pictures as examples: each one's part is decoded as it is gathered, on all cores."""

    batches_ahead = 3  # they are large, and every one of them is made on all cores

    def __init__(self, split: EncodedImages, size: int, cuts_at_random: bool = False):
        """
        Args:
          split: of the pictures.
          size: pixels, the side of each.
          cuts_at_random: whether a training gets a part at random, or the middle, too.
        """
        self._split, self._size, self._at_random = split, size, cuts_at_random
        self.num_examples = split.num_examples
        self.parts = np.empty([1, size, size, 3], np.uint8), np.empty([1], np.int32)

    def gather(self, ids: tf.Tensor, draws: batches.Draws | None = None) -> tuple:
        """As of `arrays.Examples`."""
        numbers = [ids]
        if self._at_random and draws is not None:
            numbers.append(cuts.draw(draws))
        return arrays.call_python(self.rows, numbers, self.parts)

    def rows(self, ids: np.ndarray, drawn: np.ndarray | None = None) -> list[np.ndarray]:
        """Squares, uint8 [n, size, size, 3], and labels, int32 [n]."""

        def square(place: int) -> tuple[np.ndarray, int]:
            cut = cuts.middle
            if drawn is not None:
                cut = functools.partial(cuts.at_random, drawn=drawn[place].tolist())
            return self._split.square(int(ids[place]), cut, self._size)

        try:
            squares, labels = zip(*_pool().map(square, range(len(ids))), strict=True)
        except decoded.DataError as error:
            self.problem = error
            raise
        return [np.stack(squares), np.array(labels, np.int32)]
