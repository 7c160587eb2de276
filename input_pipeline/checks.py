"""The error of data that cannot be used, and the checks that all sources share."""

from collections.abc import Iterable

import psutil

from towers import errors, machine

# What a run needs when it trains, beyond what it has when it reads its images: 0.25 GB with the
# recipe `tutorial`, 0.7 GB with 16 images of 128 x 128 at a time (docs/speed.md).
_LEAST_TRAINING_BYTES, _MOST_TRAINING_BYTES = 0.25e9, 0.7e9


class DataError(errors.UserError):
    """Data cannot be used; the message tells the person at the keyboard what to do about it."""


def check_split(dataset: str, split: str, splits: Iterable[str]) -> None:
    """Raises a DataError with the splits that there are, where this one is not among them."""
    if split not in splits:
        raise DataError(f"dataset={dataset} has no split {split!r}; it has {', '.join(splits)}")


def check_memory(what: str, needed_bytes: int, otherwise: str = "") -> None:
    """Refuses images, named by `what`, that leave too little of the available memory for training.

    `otherwise` is what a person can do, as a sentence.
    """
    available_bytes = psutil.virtual_memory().available
    if limit := machine.memory_limit():
        available_bytes = min(available_bytes, limit - psutil.Process().memory_info().rss)
    training_bytes = min(max(needed_bytes, _LEAST_TRAINING_BYTES), _MOST_TRAINING_BYTES)
    if needed_bytes > available_bytes - training_bytes:
        raise DataError(
            f"{what} take {needed_bytes / 1e9:.1f} GB and training needs another "
            f"{training_bytes / 1e9:.2g} GB, but {available_bytes / 1e9:.1f} GB of memory is "
            f"available. {otherwise}".rstrip()
        )
