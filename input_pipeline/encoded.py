"""Pictures that are read and decoded when they are needed, by step and for an evaluation.

One picture passes through these stages: its number, from the step and its place in the batch
(`batches`); its bytes; the part of it that is seen, drawn from the step and the place; its pixels,
decoded and scaled (`pictures`); then, with the others of its batch, what happens to any
images (`preprocess`). None of it depends on who reads which share of a batch, nor on where a run
continues.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf
import tqdm

from towers import container_limits

from . import batches, decoded, images, pictures

IMAGE_SIZE = 224  # by default
_CHECKED_AT_A_TIME = 1024  # pictures
_CUT_DRAW = 16


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that decode, in all as many as there are cores; Pillow runs beside Python."""
    return concurrent.futures.ThreadPoolExecutor(container_limits.available_cores(), "decode")


@dataclasses.dataclass(eq=False)
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
      at_random: whether a training gets a part of each at random, or the middle.
    """

    batches_ahead = 3  # they are large, and every one of them is made on all cores

    read: Callable[[int], tuple[bytes, int]]
    name: Callable[[int], str]
    num_examples: int
    class_names: tuple[str, ...]
    source: str
    fingerprint: str
    image_size: int = IMAGE_SIZE
    at_random: bool = False

    @property
    def parts(self) -> tuple:  # type: ignore[override]
        """As of `arrays.Examples`."""
        return np.empty([1, self.image_size, self.image_size, 3], np.uint8), np.empty([1], np.int32)

    def squares(self, size: int, at_random: bool = False) -> "EncodedImages":
        """As of `images.Images`."""
        return dataclasses.replace(self, image_size=size, at_random=at_random)

    def gather(self, ids: tf.Tensor, draws: batches.Draws | None = None) -> tuple:
        """As of `arrays.Examples`; each one's part is decoded then, on all cores."""
        if self.at_random and draws is not None:
            return self._call_rows(ids, draws.uniform(_CUT_DRAW, [pictures.NUMBERS_OF_A_CUT]))
        return self._call_rows(ids)

    def rows(  # type: ignore[override]
        self, ids: np.ndarray, drawn: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Squares, uint8 [n, image_size, image_size, 3], and labels, int32 [n]."""
        cuts: Iterable[pictures.Cut] = itertools.repeat(pictures.middle)
        if drawn is not None:
            cuts = (functools.partial(pictures.at_random, drawn=each) for each in drawn.tolist())
        try:
            squares, labels = zip(*_pool().map(self._square, ids.tolist(), cuts), strict=True)
        except decoded.DataError as error:
            self.problem = error
            raise
        return [np.stack(squares), np.array(labels, np.int32)]

    def _square(self, number: int, cut: pictures.Cut) -> tuple[np.ndarray, int]:
        try:
            content, label = self._labelled(number)
            return pictures.square(content, cut, self.image_size), label
        except (OSError, ValueError) as error:
            raise decoded.DataError(
                f"{self.name(number)} {_reason(error)} ({self.source}). Repair it or take it out "
                "of the set; `skip_broken` leaves out and lists all such pictures."
            ) from error

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
        numbers, at_a_time = range(self.num_examples), _CHECKED_AT_A_TIME
        problems = itertools.chain.from_iterable(
            _pool().map(self._problem, numbers[first : first + at_a_time])
            for first in range(0, self.num_examples, at_a_time)
        )
        shown = tqdm.tqdm(problems, "pictures checked", self.num_examples, disable=None)
        return ((number, problem) for number, problem in enumerate(shown) if problem)

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


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, pictures.NoPicture):
        return str(error)
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
