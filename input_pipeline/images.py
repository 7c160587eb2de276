"""The images of a data set as a source of training batches, and as examples to evaluate."""

from collections.abc import Callable, Iterator

import tensorflow as tf

from . import batches, datasets


class Training:
    """A source of training batches by step, for `towers.Run`.

    Attributes:
      num_examples: images of the split.
      fingerprint: sha256 of the images and labels.
    """

    def __init__(self, split: datasets.ImageArrays, preprocess: Callable, seed: int):
        """
        Args:
          split: of a data set.
          preprocess: as for `batches.training_batches`.
          seed: likewise.
        """
        self.num_examples, self.fingerprint = len(split.images), split.fingerprint
        self._images, self._labels = batches.as_tensor(split.images), split.labels
        self._preprocess, self._seed = preprocess, seed

    def batches(
        self,
        first_step: int,
        last_step: int,
        *,
        global_batch_size: int,
        share: range | None = None,
    ) -> tf.data.Dataset:
        """As `batches.training_batches`."""
        return batches.training_batches(
            self._images,
            self._labels,
            global_batch_size=global_batch_size,
            seed=self._seed,
            first_step=first_step,
            last_step=last_step,
            preprocess=self._preprocess,
            share=share,
        )


class Evaluated:
    """Each image of a split exactly once, whenever it is iterated over.

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
        # Made once, for TensorFlow keeps something of each; every iteration starts anew.
        self._batches = batches.evaluation_batches(
            batches.as_tensor(split.images),
            split.labels,
            global_batch_size=global_batch_size,
            preprocess=preprocess,
            share=share,
        )

    def __iter__(self) -> Iterator:
        return iter(self._batches)
