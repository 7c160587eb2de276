"""The images of a data set as a source of training batches, and as examples to evaluate."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from . import arrays, batches, decoded, mixing, preprocess


class Images(arrays.Examples):
    """One split of a data set, from `datasets.load`; its examples are (image, label).

    Attributes:
      num_examples: how many images there are.
      class_names: one name per class.
      source: where it came from, one line for a person.
      fingerprint: SHA-256 in hex; the same images, labels and classes have the same.
      name: an image's number to what a person calls it.
    """

    class_names: tuple[str, ...]
    source: str
    fingerprint: str
    name: Callable[[int], str]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image as preprocessing gets it."""
        return self.parts[0].shape[1:]

    def squares(self, size: int, at_random: bool = False) -> "Images":
        """The same, of that many pixels a side where they are decoded as they are needed.

        Args:
          size: pixels.
          at_random: whether a training gets parts of such pictures at random, or the middle.
        """
        return self

    def at(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`.

        Raises:
          DataError: one cannot be used, and is named.
        """
        return self.rows(np.asarray(ids, np.int64))[0]

    def names(self) -> list[str]:
        """What a person calls each image."""
        return list(map(self.name, range(self.num_examples)))

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`."""
        return self.at(arrays.spread_out(self.num_examples, count))


@dataclasses.dataclass(eq=False)
class ImageArrays(Images, arrays.InMemory):
    """One split of a data set, in memory.

    Attributes:
      images: uint8 [n, height, width, channels].
      labels: int32 [n], each at least 0 and below `len(class_names)`.
      class_names, source, fingerprint: as of `Images`.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    source: str
    fingerprint: str
    name = staticmethod(str)

    def __post_init__(self):
        arrays.InMemory.__init__(self, self.images, self.labels)
        decoded.check_labels(self.labels, len(self.class_names), self.source)


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


def training(
    split: Images, prepared: preprocess.Preprocessing, seed: int, one_hot: bool = False
) -> batches.Source:
    """The split as a source of training batches, for `towers.Run`.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`; ValueError or DataError where it is for other images.
      seed: of the order of the examples and of what preprocessing draws.
      one_hot: whether labels are the share of each class, float32 [n, classes], as those of images
        that are mixed always are.
    """
    _check_fits(split, prepared)

    def mixed(images, labels, draws):
        images, labels = prepared.mixed(images, labels, draws)
        is_mixed = labels.dtype.is_floating
        return images, labels if is_mixed else _shares(labels, split, one_hot)

    examples = split.squares(split.image_shape[0], prepared.cuts_at_random)
    fingerprint = prepared.fingerprint_of(split.fingerprint, seed)
    return batches.Source(examples, fingerprint, prepared.in_training, mixed, seed)


def evaluated(
    split: Images, prepared: preprocess.Preprocessing, batch_size: int, one_hot: bool = False
) -> batches.Repeatable:
    """The split's examples, each exactly once, as often as the result is iterated over.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`; ValueError or DataError where it is for other images.
      batch_size: images of a batch, at least 1; the last batch may have fewer.
      one_hot: as of `training`.

    Returns:
      Batches (images float32 `[n, *output_shape]`, labels int32 [n]), in the order of the split.
    """
    _check_fits(split, prepared)
    examples = split.squares(prepared.raw_shape[0])

    def batch_of(ids):
        images, labels = examples.gather(ids)
        return prepared.evaluate(images), _shares(labels, split, one_hot)

    ids = batches.each_once(split.num_examples, batch_size)
    return batches.Repeatable(ids, batch_of, examples)


def _shares(labels: tf.Tensor, split: Images, one_hot: bool) -> tf.Tensor:
    return tf.one_hot(labels, len(split.class_names)) if one_hot else labels
