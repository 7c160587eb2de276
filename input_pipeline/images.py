"""The images of a data set as a source of training batches, and as examples to evaluate.

`training` and `evaluated` do it for any set that `datasets.load` gives: for one in memory, and for
one whose pictures are read when they are needed (`encoded`).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from . import arrays, batches, decoded, encoded, mixing, preprocess


@dataclasses.dataclass(frozen=True)
class ImageArrays:
    """One split of a data set, in memory.

    Attributes:
      images: uint8 [n, height, width, channels].
      labels: int32 [n], each at least 0 and below `len(class_names)`.
      class_names: one name per class.
      source: where it came from, one line for a person.
      fingerprint: SHA-256 in hex over images and labels; the same data has the same fingerprint.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    source: str
    fingerprint: str

    def __post_init__(self):
        if not self.images.size or len(self.labels) != len(self.images):
            raise decoded.DataError(
                f"{self.source}: {len(self.images):,} images of {list(self.image_shape)} and "
                f"{len(self.labels):,} labels; there must be one label for each of at least one "
                "image."
            )
        decoded.check_labels(self.labels, len(self.class_names), self.source)

    @property
    def num_examples(self) -> int:
        """How many images there are."""
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image."""
        return self.images.shape[1:]

    @functools.cached_property
    def examples(self) -> arrays.InMemory:
        """Images and labels as tensors in the arrays' memory, to be gathered by their numbers."""
        return arrays.InMemory(batches.as_tensor(self.images), batches.as_tensor(self.labels))

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`."""
        return batches.spread_out(self.images, count)

    def at(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`."""
        return self.images[np.asarray(ids, np.int64)]

    def names(self) -> list[str]:
        """What a person calls each image: its number."""
        return list(map(str, range(len(self.images))))

    def training(self, prepared: preprocess.Preprocessing, seed: int) -> batches.Source:
        """Training batches, in the order and with the draws of the seed."""
        fingerprint = prepared.fingerprint_of(self.fingerprint, seed)
        return arrays.source(self.examples, fingerprint, prepared.in_training, prepared.mixed, seed)

    def evaluated(
        self, prepared: preprocess.Preprocessing, batch_size: int
    ) -> Callable[[], Iterator[tuple]]:
        """Iterates over batches (images, labels) of all images in order, again at each call."""
        examples = self.examples

        def batch_of(ids):
            images, labels = examples.gather(ids)  # [n, height, width, channels]
            return prepared.evaluate(images), labels

        # Made once, because TensorFlow keeps something of each; every iteration starts over.
        dataset = batches.mapped(batches.each_once(len(self.images), batch_size), batch_of)
        return lambda: batches.Reading(dataset, examples)


Images = ImageArrays | encoded.EncodedImages


def preprocessing(
    name: str,
    split: Images,
    *,
    augmentation: str = "none",
    random_erasing: float = 0.0,
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
) -> preprocess.Preprocessing:
    """What happens to the images of a data set between the set and the network.

    Args:
      name: as for `preprocess.for_images`; `random_resized_crop` is for encoded pictures.
      split: of a data set, from `datasets.load`.
      augmentation, random_erasing: in training, as for `preprocess.for_images`.
      mixup_alpha, cutmix_alpha: in training, as of `mixing.Mixing`.

    Returns:
      Its `train` and `evaluate` give float32 `[n, *output_shape]`.

    Raises:
      ValueError: no preprocessing or augmentation has that name, a number is out of its range, or
        it does not take such images.
      DataError: it crops pictures while it decodes them, and these are decoded already.
    """
    mixed = mixing.Mixing(mixup_alpha, cutmix_alpha, len(split.class_names))
    prepared = preprocess.for_images(name, split.image_shape, augmentation, random_erasing, mixed)
    _check_fits(split, prepared)
    return prepared


def _check_fits(split: Images, prepared: preprocess.Preprocessing) -> None:
    if tuple(split.image_shape) != prepared.image_shape:
        raise ValueError(
            f"preprocessing={prepared.name} was made for images of {list(prepared.image_shape)}, "
            f"but those of this split are {list(split.image_shape)}; make another for it"
        )
    if prepared.cuts_at_random and isinstance(split, ImageArrays):
        height, width, _ = split.image_shape
        raise decoded.DataError(
            f"preprocessing={prepared.name} crops pictures while it decodes them, but this set is "
            f"already decoded, to {height} x {width}: give `image_size`, to decode its pictures "
            "when they are needed, or another `preprocessing`."
        )


def training(split: Images, prepared: preprocess.Preprocessing, seed: int) -> batches.Source:
    """The split as a source of training batches, for `towers.Run`.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`; ValueError or DataError where it is for other images.
      seed: of the order of the examples and of what preprocessing draws.
    """
    _check_fits(split, prepared)
    return split.training(prepared, seed)


def evaluated(split: Images, prepared: preprocess.Preprocessing, batch_size: int) -> "Evaluated":
    """The split's examples, each exactly once, as often as the result is iterated over.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`; ValueError or DataError where it is for other images.
      batch_size: images of a batch, at least 1; the last batch may have fewer.

    Returns:
      Batches (images float32 `[n, *output_shape]`, labels int32 [n]), in the order of the split.
    """
    _check_fits(split, prepared)
    return Evaluated(split.evaluated(prepared, batch_size))


class Evaluated:
    """Each image of a split exactly once, in order, as often as it is iterated over."""

    def __init__(self, iterate: Callable[[], Iterator[tuple]]):
        self._iterate = iterate

    def __iter__(self) -> Iterator[tuple]:
        return self._iterate()
