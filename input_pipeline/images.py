"""The images of a data set as a source of training batches, and as examples to evaluate.

`training` and `evaluated` do it for any set that `datasets.load` gives: for one in memory, here;
for one on disk, by `stored_images`.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf

from . import batches, datasets, decoded, mixing, preprocess, stored_images


def preprocessing(
    name: str,
    split: datasets.Images,
    *,
    augmentation: str = "none",
    random_erasing: float = 0.0,
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
) -> preprocess.Preprocessing:
    """What happens to the images of a data set between the set and the network.

    Args:
      name: `crop_flip_colour`, `pad_crop_flip`, `shift_alternating_flip`, or, for pictures on disk,
        `random_resized_crop` (`preprocess.for_images` says what each does).
      split: of a data set, from `datasets.load`.
      augmentation: in training: `none`, `trivial_augment`, `rand_augment` or `colour_jitter`.
      random_erasing: in training: the probability that a rectangle of an image is erased, 0 to 1.
      mixup_alpha: in training: of the Beta distribution by which images are mixed; 0 for no mixup.
      cutmix_alpha: likewise, of CutMix.

    Returns:
      Its `train` and `evaluate` give float32 `[n, *output_shape]`.

    Raises:
      ValueError: no preprocessing or augmentation has that name, a number is out of its range, or
        it does not take such images.
      DataError: it crops pictures while it decodes them, and these are decoded already.
    """
    mixed = mixing.Mixing(mixup_alpha, cutmix_alpha, len(split.class_names))
    found = preprocess.for_images(name, split.image_shape, augmentation, random_erasing, mixed)
    _check_fits(split, found)
    return found


def _check_fits(split: datasets.Images, prepared: preprocess.Preprocessing) -> None:
    if tuple(split.image_shape) != prepared.image_shape:
        raise ValueError(
            f"preprocessing={prepared.name} was made for images of {list(prepared.image_shape)}, "
            f"but those of this split are {list(split.image_shape)}; make another for it"
        )
    if prepared.cuts_at_random and isinstance(split, datasets.ImageArrays):
        height, width, _ = split.image_shape
        raise decoded.DataError(
            f"preprocessing={prepared.name} crops pictures while it decodes them, but this set is "
            f"already decoded, to {height} x {width}: give `image_size`, to read its pictures "
            "from disk, or another `preprocessing`."
        )


def training(
    split: datasets.Images, prepared: preprocess.Preprocessing, seed: int
) -> "Training | stored_images.Training":
    """The split as a source of training batches, for `towers.Run`.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`.
      seed: of the order of the examples and of what preprocessing draws.

    Raises:
      ValueError, DataError: `prepared` is not for the images of this split.
    """
    _check_fits(split, prepared)
    if isinstance(split, datasets.ImageArrays):
        return Training(split, prepared, seed)
    return stored_images.Training(split, prepared, seed)


def evaluated(
    split: datasets.Images,
    prepared: preprocess.Preprocessing,
    global_batch_size: int,
    share: range | None = None,
) -> "Evaluated | stored_images.Evaluated":
    """The split's examples, each exactly once, as often as the result is iterated over.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`.
      global_batch_size: images of a batch, on all workers together; at least 1. The last batch is
        filled up, and its mask says with what.
      share: the places in each batch that this worker takes; None for all.

    Returns:
      Batches (images float32 `[n, *output_shape]`, labels int32 [n], mask bool [n], true for the
      examples that count).

    Raises:
      ValueError, DataError: `prepared` is not for the images of this split.
    """
    _check_fits(split, prepared)
    if isinstance(split, datasets.ImageArrays):
        return Evaluated(split, prepared.evaluate, global_batch_size, share)
    return stored_images.Evaluated(split, prepared, global_batch_size, share)


class Training:
    """A source of training batches by step, for `towers.Run`.

    Attributes:
      num_examples: images of the split.
      fingerprint: sha256 of the images and labels, the preprocessing and the seed.
    """

    def __init__(
        self,
        split: datasets.ImageArrays,
        prepared: preprocess.Preprocessing,
        seed: int,
    ):
        """
        Args:
          split: of a data set.
          prepared: what happens to its images.
          seed: as for `batches.training_batches`.
        """
        self.num_examples = len(split.images)
        self.fingerprint = prepared.fingerprint_of(split.fingerprint, seed)
        self._images, self._labels = batches.as_tensor(split.images), split.labels
        self._prepared, self._seed = prepared, seed

    def batches(
        self,
        first_step: int,
        last_step: int,
        *,
        global_batch_size: int,
        share: range | None = None,
    ) -> tf.data.Dataset:
        """As `batches.training_batches`, and `mixing.Mixing` where images are mixed."""
        return batches.training_batches(
            self._images,
            self._labels,
            global_batch_size=global_batch_size,
            seed=self._seed,
            first_step=first_step,
            last_step=last_step,
            preprocess=self._prepared.in_training,
            mix=self._prepared.mixed,
            share=share,
        )


class Evaluated:
    """Each image of a split exactly once, as often as it is iterated over.

    Attributes:
      num_counted: images of the split.
    """

    def __init__(
        self,
        split: datasets.ImageArrays,
        evaluate: Callable,
        global_batch_size: int,
        share: range | None = None,
    ):
        """
        Args:
          split: of a data set.
          evaluate: `preprocess` of `batches.evaluation_batches`.
          global_batch_size: likewise.
          share: likewise.
        """
        self.num_counted = len(split.images)
        # Made once, because TensorFlow keeps something of each; every iteration starts over.
        self._batches = batches.evaluation_batches(
            batches.as_tensor(split.images),
            split.labels,
            global_batch_size=global_batch_size,
            preprocess=evaluate,
            share=share,
        )

    def __iter__(self) -> Iterator:
        return iter(self._batches)
