"""What every source of images hands over, and how it fails.

The sources (`shapes`, `cifar10_binary`, `tfds_source`) and the cache share these two types, and
everything passes `check` before anyone trains on it.
"""

from typing import NamedTuple

import numpy as np
import psutil


class DataError(Exception):
    """Data cannot be used; the message tells the person at the keyboard what to do about it."""


class Decoded(NamedTuple):
    """One split, decoded.

    images: uint8 [n, height, width, channels].
    labels: int32 [n], indices into `class_names`.
    class_names: one name per class.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]


def check_memory(what: str, needed_bytes: int) -> None:
    """Refuses images that take over half the available memory: joining their parts takes it twice.

    Args:
      what: the images, for the message.
      needed_bytes: their size.

    Raises:
      DataError: with both sizes.
    """
    available_bytes = psutil.virtual_memory().available
    if needed_bytes > available_bytes / 2:
        raise DataError(
            f"{what} take {needed_bytes / 1e9:.1f} GB, and at most half of the "
            f"{available_bytes / 1e9:.1f} GB of available memory may be used."
        )


def check(decoded: Decoded, origin: str) -> None:
    """Refuses arrays that no network of ours could be trained on.

    Args:
      decoded: what a source has handed over.
      origin: where it came from, for the message.

    Raises:
      DataError: no images; images that are not uint8 [n, height, width, channels]; another number
        of labels than of images; a label outside the classes, named with its index.
    """
    images, labels, class_names = decoded
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(
            f"{origin}: images are {images.dtype} {list(images.shape)}; "
            "needed are uint8 [n, height, width, channels]."
        )
    if 0 in images.shape:
        raise DataError(f"{origin}: there are no images (shape {list(images.shape)}).")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{origin}: {len(images)} images but labels of shape {list(labels.shape)}.")
    outside = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
    if outside.size:
        index = int(outside[0])
        raise DataError(
            f"{origin}: example {index} has label {int(labels[index])}; "
            f"with {len(class_names)} classes, labels are 0 to {len(class_names) - 1}."
        )
