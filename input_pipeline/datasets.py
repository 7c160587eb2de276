"""A data set's name → its images and labels in memory.

`shapes` is drawn here and needs no files. `cifar10` is read from the original binary files where
`data_dir` holds them. Every other name, and `cifar10` without those files, goes to TensorFlow
Datasets. What has to be decoded or drawn is decoded once and then comes from the user's cache
folder; `data_dir` is written to only where a set has to be downloaded.
"""

import dataclasses
import functools
import os
import pathlib

import numpy as np

from . import cache, cifar10_binary, decoded, shapes, tfds_source

DataError = decoded.DataError

SPLITS = ("train", "test")  # of `shapes` and CIFAR-10; TFDS's sets may have others

_SHAPES_SEED = 0


@dataclasses.dataclass(frozen=True)
class ImageArrays:
    """One split of a data set.

    Attributes:
      images: uint8 [n, height, width, channels].
      labels: int32 [n], each at least 0 and below `len(class_names)`.
      class_names: one name per class.
      source: where it came from, one line for a person.
      fingerprint: SHA-256 in hex over images and labels; the same data has the same fingerprint.
    """

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    source: str
    fingerprint: str


def load(name: str, data_dir: str | None, split: str) -> ImageArrays:
    """Loads one split of a data set.

    The first load of a TFDS set runs TensorFlow operations to decode it. Logical devices have to be
    configured before that.

    Args:
      name: `shapes`, `cifar10` or any image-classification set of TFDS.
      data_dir: the folder of the data; None for TFDS's own (`$TFDS_DATA_DIR`, or
        `~/tensorflow_datasets`). `shapes` does not look at it.
      split: `train` or `test`; of TFDS's sets any split by its plain name.

    Raises:
      DataError: with a message for the person at the keyboard.
    """
    return _load(name, data_dir, split, read_only=False)


def load_prepared(name: str, data_dir: str | None, split: str) -> ImageArrays:
    """As `load`, but writes no file: a set that is not prepared is refused, and nothing is cached.

    Args, result and errors are those of `load`.
    """
    return _load(name, data_dir, split, read_only=True)


def _load(name: str, data_dir: str | None, split: str, read_only: bool) -> ImageArrays:
    if name == "shapes":
        _check_split(name, split)
        return _load_shapes(split, read_only)
    folder = _data_folder(data_dir)
    if name == "cifar10":
        binary_folder = cifar10_binary.find_folder(folder)
        if binary_folder:
            _check_split(name, split)
            return _load_binary(binary_folder, split)
        _refuse_python_version(folder)
    return _load_tfds(name, folder, split, read_only)


def _check_split(name: str, split: str) -> None:
    """Refuses other splits than the two of a set that does not come from TFDS."""
    if split not in SPLITS:
        raise tfds_source.no_such_split(name, split, SPLITS)


def at_hand(name: str, data_dir: str | None) -> bool:
    """Whether a set lies in `data_dir`, prepared, so that `load` has nothing to fetch or prepare.

    Args and errors are those of `load`.
    """
    if name == "shapes":
        return True
    folder = _data_folder(data_dir)
    has_binary = name == "cifar10" and cifar10_binary.find_folder(folder) is not None
    return has_binary or any((folder / name).glob("**/dataset_info.json"))


def _load_shapes(split: str, read_only: bool) -> ImageArrays:
    source = f"drawn (generator {shapes.GENERATOR_VERSION}, seed {_SHAPES_SEED})"
    identity = {
        "source": "shapes",
        "generator_version": shapes.GENERATOR_VERSION,
        "seed": _SHAPES_SEED,
        "split": split,
    }
    make = functools.partial(_draw_shapes, split)
    entry = cache.load_or_make(cache.key(f"shapes-{split}", identity), source, make, read_only)
    return _image_arrays(entry, source)


def _draw_shapes(split: str) -> decoded.Decoded:
    images, labels = shapes.make(split, _SHAPES_SEED)
    return decoded.Decoded(images, labels, shapes.CLASS_NAMES)


def _data_folder(data_dir: str | None) -> pathlib.Path:
    """The folder to look in; one that was named has to be there and readable."""
    if not data_dir:
        default = os.environ.get("TFDS_DATA_DIR") or os.path.join("~", "tensorflow_datasets")
        folder = os.path.expanduser(default)
        if folder.startswith("~"):
            raise DataError(
                f"{default}: HOME is not set, and the user has no home; name the data sets' folder "
                "with --data_dir"
            )
        return pathlib.Path(folder)
    folder = pathlib.Path(os.path.expanduser(data_dir))
    try:
        with os.scandir(folder):
            return folder
    except FileNotFoundError:
        what = "does not exist"
    except NotADirectoryError:
        what = "is not a folder"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    raise DataError(
        f"--data_dir={data_dir} {what}. Correct it, or make the folder if the data set is to be "
        "downloaded there."
    )


def _load_binary(folder: pathlib.Path, split: str) -> ImageArrays:
    """The binary files are as quick to read as a cache entry, so none is made of them."""
    source = f"binary files in {folder}"
    entry = cache.without_cache(cifar10_binary.read(folder, split), source)
    return _image_arrays(entry, source)


def _refuse_python_version(folder: pathlib.Path) -> None:
    """Says that the pickled files are the wrong ones, unless TFDS has something to read as well."""
    python_folder = cifar10_binary.find_python_folder(folder)
    archive = folder / "downloads" / "manual" / "cifar-10-binary.tar.gz"
    if python_folder and not (folder / "cifar10").is_dir() and not archive.exists():
        raise DataError(
            f"{python_folder} holds the python version of CIFAR-10, which is pickled and is not "
            "read here. The binary version is needed: unpack cifar-10-binary.tar.gz so that "
            f"{python_folder.parent / cifar10_binary.FOLDER}/ exists, and use "
            f"--data_dir={python_folder.parent}."
        )


def _load_tfds(name: str, folder: pathlib.Path, split: str, read_only: bool) -> ImageArrays:
    builder = tfds_source.open_prepared(name, folder, read_only)
    source = f"TFDS {builder.info.full_name} in {builder.data_dir_root}"
    make = functools.partial(tfds_source.read, builder, split)
    identity = tfds_source.identity(builder, split)
    if identity is None:
        entry = cache.without_cache(make(), source)
    else:
        entry = cache.load_or_make(cache.key(f"{name}-{split}", identity), source, make, read_only)
    return _image_arrays(entry, source)


def _image_arrays(entry: cache.Entry, source: str) -> ImageArrays:
    images, labels, class_names = entry.arrays
    return ImageArrays(images, labels, class_names, source, entry.fingerprint)
