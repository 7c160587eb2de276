"""Reads CIFAR-10's original binary files, `cifar-10-batches-bin/`, with NumPy alone.

A file is a row of records without a header; a record is one label byte and 3,072 bytes of pixels,
first the red plane, then the green, then the blue, each 32 rows of 32
(https://www.cs.toronto.edu/~kriz/cifar.html). The original files hold 10,000 records each. Files
with fewer or more are read as they are, so that people can cut them down; only a size that is not a
whole number of records is refused.
"""

import os
import pathlib

import numpy as np

from . import decoded, regular_files

FOLDER = "cifar-10-batches-bin"
PYTHON_FOLDER = "cifar-10-batches-py"
SPLIT_FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
NAMES_FILE = "batches.meta.txt"
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
RECORD_BYTES = 1 + 3 * 32 * 32


def find_folder(data_dir: pathlib.Path) -> pathlib.Path | None:
    """The folder of binary files that `data_dir` holds or is, or None."""
    if (data_dir / FOLDER).is_dir():
        return data_dir / FOLDER
    names = (name for files in SPLIT_FILES.values() for name in files)
    if data_dir.is_dir() and any((data_dir / name).is_file() for name in names):
        return data_dir
    if data_dir.is_dir() and data_dir.name == FOLDER:
        return data_dir
    return None


def find_python_folder(data_dir: pathlib.Path) -> pathlib.Path | None:
    """The folder of pickled files (the "python version") that `data_dir` holds or is, or None."""
    if (data_dir / PYTHON_FOLDER).is_dir():
        return data_dir / PYTHON_FOLDER
    if data_dir.is_dir() and data_dir.name == PYTHON_FOLDER:
        return data_dir
    return None


def read(folder: pathlib.Path, split: str) -> decoded.Decoded:
    """Reads one split.

    Args:
      folder: holds the `.bin` files.
      split: `train` (five files, in order) or `test`.

    Returns:
      images: uint8 [n, 32, 32, 3], labels: int32 [n], and ten class names, from
      `batches.meta.txt` where the folder has one.

    Raises:
      DataError: a file is missing, not a file, empty, cut short, too large or has a label over 9.
    """
    class_names = _read_class_names(folder / NAMES_FILE)
    paths = [folder / name for name in SPLIT_FILES[split]]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    decoded.check_memory(f"{folder} is too large: the files of {split}", size)
    count = size // RECORD_BYTES
    images, labels = decoded.empty((count, 32, 32, 3)), np.empty(count, np.int32)
    first = 0
    for path in paths:
        records = _read_records(path)
        place = slice(first, first + len(records))
        labels[place] = records[:, 0]
        planes = records[:, 1:].reshape(-1, 3, 32, 32)  # [n, channel, row, column]
        images[place] = planes.transpose(0, 2, 3, 1)  # [n, row, column, channel]
        first = place.stop
    return decoded.Decoded(images, labels, class_names)


def _read_class_names(path: pathlib.Path) -> tuple[str, ...]:
    if not os.path.lexists(path):
        return CLASS_NAMES
    lines = _read(path).decode("utf-8-sig", errors="replace").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != len(CLASS_NAMES):
        raise decoded.DataError(
            f"{path} holds {len(names)} class names; CIFAR-10 has {len(CLASS_NAMES)}. "
            "Restore the file, or delete it to use the usual names."
        )
    return names


def _read_records(path: pathlib.Path) -> np.ndarray:
    """The records of one file: uint8 [n, 3073], labels checked."""
    if not os.path.lexists(path):
        raise decoded.DataError(
            f"{path} is missing. Unpack cifar-10-binary.tar.gz again: a split needs all its files "
            f"({', '.join(name for files in SPLIT_FILES.values() for name in files)})."
        )
    content = np.frombuffer(_read(path), np.uint8)
    if content.size == 0:
        raise decoded.DataError(f"{path} is empty. Unpack cifar-10-binary.tar.gz again.")
    if content.size % RECORD_BYTES:
        raise decoded.DataError(
            f"{path} has {content.size:,} bytes, not a multiple of {RECORD_BYTES:,} (one "
            "record: label and 32x32 RGB pixels). It was cut short or is another file; unpack "
            "cifar-10-binary.tar.gz again."
        )
    records = content.reshape(-1, RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASS_NAMES))
    if wrong.size:
        raise decoded.DataError(
            f"{path}: record {wrong[0]} has label {records[wrong[0], 0]}; CIFAR-10's labels are "
            f"0 to {len(CLASS_NAMES) - 1}. Is this file from another data set?"
        )
    return records


def _read(path: pathlib.Path) -> bytes:
    try:
        return regular_files.read(path)
    except OSError as error:
        raise decoded.DataError(
            f"{path} cannot be read: {error.strerror}. Unpack cifar-10-binary.tar.gz again."
        ) from error
