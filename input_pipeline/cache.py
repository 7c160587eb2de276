"""Decoded arrays in the user's cache folder, so that a second start decodes nothing.

The folder is `$XDG_CACHE_HOME/towers`, or `~/.cache/towers`. An entry is a folder of `images.npy`,
`labels.npy` and `meta.json`; its name ends in a hash of what the arrays were made from, so that
other data never meets an old entry. Deleting entries is always safe. The cache never stands in the
way: what cannot be read is made again, and what cannot be written is used all the same.

`meta.json` has the hash of the arrays and one of itself: a changed bit anywhere is noticed.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import decoded, regular_files

FORMAT = 2  # to be raised when an entry's files change; older entries are then made again

_TEMPORARY_PREFIX = ".tmp-"
_ABANDONED_SECONDS = 24 * 3600  # no process writes one entry for a day

_NO_FILE = (FileNotFoundError, NotADirectoryError, regular_files.NotRegularError)

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One cached split.

    arrays: images, labels and class names.
    fingerprint: see `fingerprint`.
    """

    arrays: decoded.Decoded
    fingerprint: str


class _BrokenEntry(Exception):
    """An entry that this code did not finish, or did not write."""


class _OtherFormat(_BrokenEntry):
    """An entry of another version of this code."""


def folder() -> pathlib.Path:
    """The cache folder, which need not exist yet.

    Raises:
      OSError: the user's home is unknown.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # still `~`, which would be a folder in the current one
        raise OSError("HOME is not set, and the user has no home")
    return pathlib.Path(base) / "towers"


def key(readable_name: str, identity: dict[str, Any]) -> str:
    """An entry's folder name: the readable name and a hash of the identity.

    Args:
      readable_name: for people who look into the cache; other characters than letters, digits,
        `.`, `_` and `-` become `-`.
      identity: everything the arrays depend on, as JSON values.
    """
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', readable_name).lstrip('.')}-{digest}"


def fingerprint(arrays: decoded.Decoded) -> str:
    """SHA-256 in hex over shape and bytes of the images, then of the labels."""
    digest = hashlib.sha256()
    for array in (arrays.images, arrays.labels):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def load_or_make(
    entry_key: str, source: str, make: Callable[[], decoded.Decoded], read_only: bool = False
) -> Entry:
    """Loads an entry, or makes it and keeps it.

    Args:
      entry_key: from `key`.
      source: where the arrays come from, one line, kept in the entry for people who look into it.
      make: decodes the arrays; called only where no sound entry exists. What it raises passes.
      read_only: keep nothing, and leave a broken entry where it is.

    Raises:
      DataError: the images would not fit in memory; or the arrays just made are unusable, and are
        not kept.
    """
    try:
        path = folder() / entry_key
    except OSError as error:
        _log.warning("Decoded images are not cached (%s).", error)
        return without_cache(make(), source)
    _check_memory(path, source)
    entry = _load(path, read_only)
    if entry is None:
        entry = without_cache(make(), source)
        if not read_only:
            _save(path, entry, source)
    return entry


def _check_memory(path: pathlib.Path, source: str) -> None:
    with contextlib.suppress(OSError):
        size = (path / "images.npy").stat().st_size
        decoded.check_memory(f"{source}: the data set is too large: its images", size)


def without_cache(arrays: decoded.Decoded, source: str) -> Entry:
    """The entry for arrays just made: checked, with their fingerprint.

    Raises:
      DataError: the arrays are unusable.
    """
    decoded.check(arrays, source)
    return Entry(arrays, fingerprint(arrays))


def _load(path: pathlib.Path, read_only: bool) -> Entry | None:
    """The entry at `path`, or None where there is none; a broken one is removed if it may be."""
    try:
        if not os.path.lexists(path):
            return None
        return _read(path)
    except _BrokenEntry as error:
        level = logging.INFO if isinstance(error, _OtherFormat) else logging.WARNING
        _log.log(level, "Cache entry %r is broken (%s); making it again.", str(path), error)
        if not read_only:
            _remove(path)
    except OSError as error:
        _log.warning("Cache entry %r cannot be read (%s); continuing without.", str(path), error)
    return None


def _read(path: pathlib.Path) -> Entry:
    """Reads an entry, sizes first: they show a truncated file before NumPy meets it.

    The fingerprint shows all other damage to the arrays, in a tenth of a second for CIFAR-10.
    """
    try:
        meta = json.loads(regular_files.read(path / "meta.json"))
        if meta["format"] != FORMAT:
            raise _OtherFormat(f"format {meta['format']!r} instead of {FORMAT}")
        if meta.pop("sha256") != _sha256(meta):
            raise _BrokenEntry("meta.json is not what was written")
        if meta["key"] != path.name:
            raise _BrokenEntry(f"it is the entry of {meta['key']!r}")
        for name in ("images.npy", "labels.npy"):
            actual_bytes = regular_files.check(path / name).st_size
            expected_bytes = meta["sizes"][name]
            if actual_bytes != expected_bytes:
                raise _BrokenEntry(f"{name} has {actual_bytes} bytes instead of {expected_bytes}")
        images = _read_images(path / "images.npy")
        with regular_files.open_to_read(path / "labels.npy") as file:
            labels = np.load(file, allow_pickle=False)
        if labels.dtype != np.int32:
            raise _BrokenEntry(f"its labels are {labels.dtype}")
        arrays = decoded.Decoded(images, labels, tuple(meta["class_names"]))
        decoded.check(arrays, "it")
        if fingerprint(arrays) != meta["fingerprint"]:
            raise _BrokenEntry("its bytes are not those that were written")
        return Entry(arrays, meta["fingerprint"])
    except _BrokenEntry:
        raise
    except decoded.DataError as error:
        raise _BrokenEntry(str(error)) from error
    except OSError as error:
        if isinstance(error, _NO_FILE):
            raise _BrokenEntry(str(error)) from error
        raise
    except Exception as error:  # whatever a damaged file makes json and NumPy raise
        raise _BrokenEntry(f"{type(error).__name__}: {error}") from error


def _read_images(path: pathlib.Path) -> np.ndarray:
    """What `np.load` would read, into memory that TensorFlow can use as it is.

    Raises:
      ValueError: it is not a file of uint8 in C order, or too short.
    """
    with regular_files.open_to_read(path) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of the file format")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        if fortran_order or dtype != np.uint8:
            raise ValueError(f"{dtype} in {'Fortran' if fortran_order else 'C'} order")
        images = decoded.empty(shape)
        if file.readinto(images.reshape(-1)) != images.size:
            raise ValueError("fewer bytes than its shape needs")
    return images


def _save(path: pathlib.Path, entry: Entry, source: str) -> None:
    """Writes an entry under another name, then renames it: it appears whole or not at all."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=path.parent))
        _write_files(temporary, path.name, entry, source)
        try:
            os.rename(temporary, path)
        except OSError:
            # Another process has finished the same entry first: its arrays are as good as ours.
            if not (path / "meta.json").exists():
                raise
    except OSError as error:
        _log.warning("Decoded images are not cached in %r (%s).", str(path.parent), error)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_files(target: pathlib.Path, entry_key: str, entry: Entry, source: str) -> None:
    arrays = {"images.npy": entry.arrays.images, "labels.npy": entry.arrays.labels}
    for name, array in arrays.items():
        np.save(target / name, array, allow_pickle=False)
    meta = {
        "format": FORMAT,
        "key": entry_key,
        "class_names": list(entry.arrays.class_names),
        "fingerprint": entry.fingerprint,
        "source": source,
        "sizes": {name: (target / name).stat().st_size for name in arrays},
    }
    meta["sha256"] = _sha256(meta)
    (target / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def _sha256(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _remove(path: pathlib.Path) -> None:
    """Takes an entry away by renaming it first, so that nobody reads it half deleted."""
    try:
        holder = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=path.parent))
        try:
            os.rename(path, holder / path.name)
        finally:
            shutil.rmtree(holder, ignore_errors=True)
    except OSError as error:
        _log.warning("Cache entry %r cannot be removed (%s).", str(path), error)


def _remove_abandoned(cache_folder: pathlib.Path) -> None:
    """Removes what killed processes have left half-written."""
    for path in cache_folder.glob(f"{_TEMPORARY_PREFIX}*"):
        try:
            abandoned = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
        except OSError:
            continue  # another process has just finished or removed it
        if abandoned:
            shutil.rmtree(path, ignore_errors=True)
