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
    augmentation: str = "none",
    random_erasing: float = 0.0,
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
) -> preprocess.Preprocessing:
    """The preprocessing called `name` for the images of a data set.

    Args:
      name: as for `preprocess.for_images`.
      split: of a data set.
      augmentation: as for `preprocess.for_images`.
      random_erasing: likewise.
      mixup_alpha: as of a `mixing.Mixing`.
      cutmix_alpha: likewise.

    Raises:
      ValueError: as `preprocess.for_images` and `mixing.Mixing`.
      DataError: it cuts pictures as they are decoded, and these already are.
    """
    mixed = mixing.Mixing(mixup_alpha, cutmix_alpha, len(split.class_names))
    found = preprocess.for_images(name, split.image_shape, augmentation, random_erasing, mixed)
    if found.cuts_at_random and isinstance(split, datasets.ImageArrays):
        height, width, _ = split.image_shape
        raise decoded.DataError(
            f"--preprocessing={name} cuts pictures as they are decoded, but this set is already "
            f"decoded to {height} x {width}: give --image_size, to read its pictures from disk, or "
            "another --preprocessing."
        )
    return found


def training(
    split: datasets.Images, prepared: preprocess.Preprocessing, seed: int
) -> "Training | stored_images.Training":
    """The split as a source of training batches, for `towers.Run`.

    Args:
      split: from `datasets.load`.
      prepared: from `preprocessing`.
      seed: of the order of the examples and of what preprocessing draws.
    """
    if isinstance(split, datasets.ImageArrays):
        return Training(split, prepared, seed)
    return stored_images.Training(split, prepared, seed)


def evaluated(
    split: datasets.Images,
    prepared: preprocess.Preprocessing,
    global_batch_size: int,
    share: range | None = None,
) -> "Evaluated | stored_images.Evaluated":
    """The split's examples, each exactly once; arguments as of `training` and `Evaluated`."""
    if isinstance(split, datasets.ImageArrays):
        return Evaluated(split, prepared.evaluate, global_batch_size, share)
    return stored_images.Evaluated(split, prepared, global_batch_size, share)


class Training:
    """A source of training batches by step, for `towers.Run`.

    Attributes:
      num_examples: images of the split.
      fingerprint: sha256 of the images and labels.
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
        self.num_examples, self.fingerprint = len(split.images), split.fingerprint
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
        preprocess: Callable,
        global_batch_size: int,
        share: range | None = None,
    ):
        """
        Args:
          split: of a data set.
          preprocess: as for `batches.evaluation_batches`.
          global_batch_size: likewise.
          share: likewise.
        """
        self.num_counted = len(split.images)
        # Made once, because TensorFlow keeps something of each; every iteration starts over.
        self._batches = batches.evaluation_batches(
            batches.as_tensor(split.images),
            split.labels,
            global_batch_size=global_batch_size,
            preprocess=preprocess,
            share=share,
        )

    def __iter__(self) -> Iterator:
        return iter(self._batches)
