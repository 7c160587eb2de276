"""Pictures that a program holds in memory, or in a memory-mapped file, as the source of a store."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from . import decoded, store

_CHANNELS = (1, 3)


class Arrays:
    """Images or encoded pictures with their labels; a `store.Source`.

    An image is stored as PNG, which loses nothing; what is encoded already is stored as it is.

    Attributes:
      description, identity, class_names, num_examples, num_bytes, files: see `store.Source`.
    """

    files = None

    def __init__(
        self,
        images: np.ndarray | Sequence[np.ndarray] | Sequence[bytes],
        labels: Sequence[int] | np.ndarray,
        class_names: Sequence[str],
    ):
        """
        Args:
          images: uint8 [n, height, width, channels] with 1 or 3 channels; or n of such images of
            any sizes; or n encoded pictures (JPEG, PNG, BMP, WebP or GIF). They may lie in a
            memory-mapped file: all are read once for their hash, and again where there is no store.
          labels: integers [n], places in `class_names`.
          class_names: one per class.

        Raises:
          DataError: they are none of these, not as many as the labels, or a label has no class.
        """
        self._images, self._labels = images, np.asarray(labels)
        self.class_names, self.num_examples = tuple(map(str, class_names)), len(images)
        self._check()
        digest, self.num_bytes = hashlib.sha256(), 0
        for number in range(self.num_examples):
            image = self._image(number)
            content = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()
            shape = () if isinstance(image, bytes) else image.shape
            digest.update(repr((shape, len(content), int(self._labels[number]))).encode())
            digest.update(content)
            self.num_bytes += len(content)
        self.description = f"{self.num_examples:,} images of a program's own"
        self.identity = {
            "arrays_sha256": digest.hexdigest(), "class_names": list(self.class_names)
        }  # fmt: skip

    def _check(self) -> None:
        labels = self._labels
        if not self.num_examples:
            raise decoded.DataError("images: there are none; give at least 1")
        if labels.shape != (self.num_examples,) or labels.dtype.kind not in "iu":
            raise decoded.DataError(
                f"labels: must be {self.num_examples:,} integers, one for each image; they are "
                f"{labels.dtype} of shape {list(labels.shape)}"
            )
        if labels.min() < 0 or labels.max() >= len(self.class_names):
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise decoded.DataError(
                f"labels: {wrong} has no class name; with {len(self.class_names)} names, labels "
                f"are 0 to {len(self.class_names) - 1}"
            )

    def _image(self, number: int) -> np.ndarray | bytes:
        image = self._images[number]
        if isinstance(image, bytes):
            return image
        image = np.asarray(image)
        is_image = image.dtype == np.uint8 and image.ndim == 3 and image.size > 0
        if not (is_image and image.shape[-1] in _CHANNELS):
            raise decoded.DataError(
                f"image {number}: must be uint8 [height, width, channels] with 1 or 3 channels and "
                f"at least one pixel, or the bytes of a picture; it is {image.dtype} of shape "
                f"{list(image.shape)}"
            )
        return image

    def examples(self, first: int) -> Iterator[store.Example]:
        """As `store.Source.examples`; an image is named by its number."""
        for number in range(first, self.num_examples):
            image = self._image(number)
            if not isinstance(image, bytes):
                image = tf.io.encode_png(image).numpy()
            yield store.Example(f"image {number}", int(self._labels[number]), image)
