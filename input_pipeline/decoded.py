"""Images in memory: what fits, and a copy in the user's cache, so that a second start decodes none.

The cache folder is `$XDG_CACHE_HOME/towers`, or `~/.cache/towers`. An entry is a folder of
`images.npy`, `labels.npy` and `sha256`, the hash of both; its name ends in a hash of what they were
made from, so that other data never meets an old entry. Deleting entries is always safe. What cannot
be read is made again, and what cannot be written is used all the same.
"""

import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import psutil

from towers import errors, hashes, machine

# What a run needs when it trains, beyond what it has when it reads its images: 0.25 GB with the
# recipe `tutorial`, 0.7 GB with 16 images of 128 x 128 at a time (docs/speed.md).
_LEAST_TRAINING_BYTES, _MOST_TRAINING_BYTES = 0.25e9, 0.7e9

Arrays = tuple[np.ndarray, np.ndarray]  # images, uint8 [n, height, width, channels]; labels [n]

_log = logging.getLogger(__name__)


class DataError(errors.UserError):
    """Data cannot be used; the message tells the person at the keyboard what to do about it."""


def check_split(dataset: str, split: str, splits: Iterable[str]) -> None:
    """Raises a DataError with the splits that there are, where this one is not among them."""
    if split not in splits:
        raise DataError(f"dataset={dataset} has no split {split!r}; it has {', '.join(splits)}")


def check_labels(labels: np.ndarray, num_classes: int, source: str) -> None:
    """Raises a DataError that names the first label, [n], that is no index of a class."""
    for example in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
        raise DataError(
            f"{source}: example {example} has label {labels[example]}; with {num_classes} classes, "
            f"labels are 0 to {num_classes - 1}."
        )


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


def load_or_make(
    name: str, identity: Mapping, make: Callable[[], Arrays], read_only: bool = False
) -> tuple[Arrays, str]:
    """Loads an entry of the cache, or makes it and keeps it.

    Args:
      name: for people who look into the cache.
      identity: everything the arrays depend on, as JSON values.
      make: decodes images and labels; called only where no sound entry exists.
      read_only: keep nothing.

    Returns:
      The arrays, memory-mapped where there is an entry, and their `hashes.sha256`.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    entry = f"{re.sub(r'[^A-Za-z0-9._-]', '-', name).lstrip('.')}-{digest}"
    path = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "towers", entry)
    try:
        return _load(path.expanduser())
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever a damaged file makes NumPy raise; no home
        _log.warning("Cached images %s are not used: %s", entry, error)
    arrays = make()
    sha256 = hashes.sha256(arrays)
    if read_only:
        return arrays, sha256
    try:
        _save(path.expanduser(), arrays, sha256)
    except (OSError, RuntimeError) as error:
        _log.warning("Decoded images are not cached (%s).", error)
        return arrays, sha256
    del arrays  # before the files take their place
    return _load(path.expanduser())


def _load(path: pathlib.Path) -> tuple[Arrays, str]:
    # As private copies, which TensorFlow may share: only what is written to would be copied.
    images, labels = (
        np.load(path / name, mmap_mode="c", allow_pickle=False)
        for name in ("images.npy", "labels.npy")
    )
    sha256 = (path / "sha256").read_text().strip()
    if hashes.sha256((images, labels)) != sha256:
        raise ValueError("their bytes are not those that were written")
    return (images, labels), sha256


def _save(path: pathlib.Path, arrays: Arrays, sha256: str) -> None:
    """Writes an entry under another name, then renames it: it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        written = pathlib.Path(folder, path.name)
        written.mkdir()
        for name, array in zip(("images.npy", "labels.npy"), arrays, strict=True):
            np.save(written / name, array)
        (written / "sha256").write_text(f"{sha256}\n")
        shutil.rmtree(path, ignore_errors=True)  # one that is damaged
        os.rename(written, path)
