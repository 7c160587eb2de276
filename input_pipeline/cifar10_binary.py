"""Reads CIFAR-10's original binary files, `cifar-10-batches-bin/`, with NumPy alone.

A file is a row of records without a header; a record is one label byte and 3,072 bytes of pixels,
first the red plane, then the green, then the blue, each 32 rows of 32
(https://www.cs.toronto.edu/~kriz/cifar.html). The original files hold 10,000 records each. Files
with fewer or more are read as they are, so that people can cut them down; only a size that is not a
whole number of records is refused.
"""

import pathlib

import numpy as np

from . import decoded

FOLDER = "cifar-10-batches-bin"
SPLIT_FILES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}
CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
RECORD_BYTES = 1 + 3 * 32 * 32
_REMEDY = "Unpack cifar-10-binary.tar.gz again."


def find_folder(data_dir: pathlib.Path) -> pathlib.Path | None:
    """The folder of binary files that `data_dir` holds or is, or None."""
    if (data_dir / FOLDER).is_dir():
        return data_dir / FOLDER
    is_one = data_dir.name == FOLDER or any(
        (data_dir / name).is_file() for names in SPLIT_FILES.values() for name in names
    )
    return data_dir if is_one and data_dir.is_dir() else None


def read(folder: pathlib.Path, split: str) -> decoded.Decoded:
    """Reads one split.

    Args:
      folder: holds the `.bin` files.
      split: `train` (five files, in order) or `test`.

    Returns:
      images: uint8 [n, 32, 32, 3], labels: int32 [n].

    Raises:
      DataError: a file is missing, not a file, empty, cut short, too large or has a label over 9.
    """
    paths = [folder / name for name in SPLIT_FILES[split]]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    decoded.check_memory(f"{folder} is too large: the files of {split}", size)
    records = np.concatenate([*map(_read_records, paths)])
    planes = records[:, 1:].reshape(-1, 3, 32, 32)  # [n, channel, row, column]
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))  # [n, row, column, channel]
    return decoded.Decoded(images, records[:, 0].astype(np.int32))


def _read_records(path: pathlib.Path) -> np.ndarray:
    """The records of one file: uint8 [n, 3073], labels checked."""
    if not path.is_file():
        raise decoded.DataError(
            f"{path} is missing, or not a file. {_REMEDY} A split needs all its files "
            f"({', '.join(name for files in SPLIT_FILES.values() for name in files)})."
        )
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise decoded.DataError(f"{path} cannot be read: {error.strerror}. {_REMEDY}") from error
    if not content.size or content.size % RECORD_BYTES:
        raise decoded.DataError(
            f"{path} has {content.size:,} bytes, not a multiple of {RECORD_BYTES:,} (one "
            f"record: label and 32x32 RGB pixels). It was cut short or is another file. {_REMEDY}"
        )
    records = content.reshape(-1, RECORD_BYTES)
    decoded.check_labels(records[:, 0], len(CLASS_NAMES), str(path))
    return records
