"""Images in memory, how a source of images fails, and whether images fit into memory."""

from typing import NamedTuple

import numpy as np
import psutil

from towers import container_limits, errors

# What a run needs when it trains, beyond what it has when it reads its images: 0.25 GB with the
# recipe `tutorial`, 0.7 GB with 16 images of 128 x 128 at a time (docs/speed.md). The larger is
# kept free beside sets of more than half the memory.
_TRAINING_BYTES, _LEAST_TRAINING_BYTES = 0.7e9, 0.25e9


class DataError(errors.UserError):
    """Data cannot be used; the message tells the person at the keyboard what to do about it."""


class Decoded(NamedTuple):
    """One split, decoded.

    Attributes:
      images: uint8 [n, height, width, channels].
      labels: int32 [n], indices into the class names.
    """

    images: np.ndarray
    labels: np.ndarray


def check_labels(labels: np.ndarray, num_classes: int, source: str) -> None:
    """Raises a DataError that names the first label, [n], that is no index of a class."""
    for example in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
        raise DataError(
            f"{source}: example {example} has label {labels[example]}; with {num_classes} classes, "
            f"labels are 0 to {num_classes - 1}."
        )


def check_memory(what: str, needed_bytes: int, otherwise: str = "") -> None:
    """Refuses images that leave too little of the available memory for training.

    Args:
      what: the images, for the message.
      needed_bytes: their size.
      otherwise: what a person can do, as a sentence.
    """
    available_bytes = psutil.virtual_memory().available
    in_container = container_limits.available_memory()
    if in_container is not None:
        available_bytes = min(available_bytes, in_container)
    is_large = needed_bytes > available_bytes / 2
    training_bytes = _TRAINING_BYTES if is_large else _LEAST_TRAINING_BYTES
    if needed_bytes > available_bytes - training_bytes:
        raise DataError(
            f"{what} take {needed_bytes / 1e9:.1f} GB and training needs another "
            f"{training_bytes / 1e9:g} GB, but {available_bytes / 1e9:.1f} GB of memory is "
            f"available. {otherwise}".rstrip()
        )
