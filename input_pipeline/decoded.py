"""What every source of images hands over, and how it fails.

The sources (`shapes`, `cifar10_binary`, `tfds_source`) and the cache share these two types, and
everything passes `check` before anyone trains on it.
"""

import math
from typing import NamedTuple

import numpy as np
import psutil

from towers import container_limits

TENSOR_ALIGNMENT = 64  # bytes; TensorFlow's own tensors begin at multiples of it

# What a run needs when it trains, beyond what it has when it reads its images: 0.25 GB with the
# recipe `tutorial`, 0.7 GB with 16 images of 128 x 128 at a time (docs/speed.md).
_TRAINING_BYTES, _LEAST_TRAINING_BYTES = 0.7e9, 0.25e9


class DataError(Exception):
    """Data cannot be used; the message tells the person at the keyboard what to do about it."""

    exit_code = 1  # of a command that ends with it


class NoSuchSplitError(DataError):
    """A data set has no split of that name; the message lists those that it has."""


class Decoded(NamedTuple):
    """One split, decoded.

    images: uint8 [n, height, width, channels]; made with `empty`, they need no copy in TensorFlow.
    labels: int32 [n], indices into `class_names`.
    class_names: one name per class.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """A uint8 array to be filled, which begins where a tensor may: `batches.as_tensor` shares it.

    Large images are in memory once only if each source fills one such array, and joins no parts.
    """
    size = math.prod(shape)
    memory = np.empty(size + TENSOR_ALIGNMENT - 1, np.uint8)
    first = -memory.ctypes.data % TENSOR_ALIGNMENT
    return memory[first : first + size].reshape(shape)


def check_memory(what: str, needed_bytes: int) -> None:
    """Refuses images that leave too little of the available memory for training.

    They are in memory once. Training with the recipes needs 0.25 to 0.7 GB besides: the larger is
    kept free beside large sets, the smaller beside those that take less than half.

    Args:
      what: the images, for the message.
      needed_bytes: their size.

    Raises:
      DataError: with all sizes.
    """
    available_bytes = psutil.virtual_memory().available
    of_container = container_limits.available_memory()
    if of_container is not None:
        available_bytes = min(available_bytes, of_container)
    is_large = needed_bytes > available_bytes / 2
    training_bytes = _TRAINING_BYTES if is_large else _LEAST_TRAINING_BYTES
    if needed_bytes > available_bytes - training_bytes:
        raise DataError(
            f"{what} take {needed_bytes / 1e9:.1f} GB and training needs another "
            f"{training_bytes / 1e9:g} GB, but {available_bytes / 1e9:.1f} GB of memory is "
            "available."
        )


def check(decoded: Decoded, origin: str) -> None:
    """Refuses arrays that none of our networks could be trained on.

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
            "must be uint8 [n, height, width, channels]."
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
