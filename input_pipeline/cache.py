"""Decoded images in the user's cache folder, so that a second start decodes nothing.

The folder is `$XDG_CACHE_HOME/towers`, or `~/.cache/towers`. An entry is a folder of `images.npy`,
`labels.npy` and `sha256`, the hash of both; its name ends in a hash of what they were made from, so
that other data never meets an old entry. Deleting entries is always safe. What cannot be read is
made again, and what cannot be written is used all the same.
"""

import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping

import numpy as np

from . import decoded

_log = logging.getLogger(__name__)


def folder() -> pathlib.Path:
    """The cache folder, which need not exist yet; RuntimeError if the user's home is unknown."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "towers"


def key(readable_name: str, identity: Mapping) -> str:
    """An entry's folder name: the readable name and a hash of the identity.

    Args:
      readable_name: for people who look into the cache.
      identity: everything the arrays depend on, as JSON values.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', readable_name).lstrip('.')}-{digest}"


def fingerprint(arrays: decoded.Decoded) -> str:
    """SHA-256 in hex over shape and bytes of the images, then of the labels."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load_or_make(
    entry_key: str, make: Callable[[], tuple[np.ndarray, np.ndarray]], read_only: bool = False
) -> tuple[decoded.Decoded, str]:
    """Loads an entry, or makes it and keeps it.

    Args:
      entry_key: from `key`.
      make: decodes images and labels; called only where no sound entry exists.
      read_only: keep nothing.

    Returns:
      The arrays, memory-mapped where there is an entry, and their `fingerprint`.
    """
    try:
        return _load(folder() / entry_key)
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever a damaged file makes NumPy raise
        _log.warning("Cached images %s are not used: %s", entry_key, error)
    arrays = decoded.Decoded(*make())
    sha256 = fingerprint(arrays)
    if read_only:
        return arrays, sha256
    try:
        _save(folder() / entry_key, arrays, sha256)
    except (OSError, RuntimeError) as error:
        _log.warning("Decoded images are not cached (%s).", error)
        return arrays, sha256
    del arrays  # before the files take their place
    return _load(folder() / entry_key)


def _load(path: pathlib.Path) -> tuple[decoded.Decoded, str]:
    # As private copies, which TensorFlow may share: only what is written to would be copied.
    images, labels = (
        np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        for name in decoded.Decoded._fields
    )
    arrays = decoded.Decoded(images, labels)
    sha256 = (path / "sha256").read_text().strip()
    if fingerprint(arrays) != sha256:
        raise ValueError("their bytes are not those that were written")
    return arrays, sha256


def _save(path: pathlib.Path, arrays: decoded.Decoded, sha256: str) -> None:
    """Writes an entry under another name, then renames it: it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        written = pathlib.Path(folder, path.name)
        written.mkdir()
        for name, array in arrays._asdict().items():
            np.save(written / f"{name}.npy", array)
        (written / "sha256").write_text(f"{sha256}\n")
        shutil.rmtree(path, ignore_errors=True)  # one that is damaged
        os.rename(written, path)
