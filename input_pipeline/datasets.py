"""A data set's name → its images and labels, in memory or in a store on disk.

`shapes` is drawn here and needs no files. `cifar10` is read from the original binary files where
`data_dir` holds them. `folder` is the pictures in `data_dir`. Every other name, and `cifar10`
without those files, goes to TensorFlow Datasets.

Images of one size are in memory: what has to be decoded or drawn is decoded once and then comes
from the user's cache folder. Pictures of different sizes, and any for which an image size is asked
for, are put into a store, and read and decoded as they are needed (docs/data.md). `data_dir` is
written to only where a set has to be downloaded.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from . import (
    array_source,
    batches,
    cache,
    cifar10_binary,
    decoded,
    folder_source,
    shapes,
    store,
    stored_images,
    tfds_source,
)

DataError = decoded.DataError

FOLDER = "folder"
SPLITS = ("train", "test")  # of `shapes` and CIFAR-10; TFDS's sets may have others

_SHAPES_SEED = 0


@dataclasses.dataclass(frozen=True)
class ImageArrays:
    """One split of a data set, in memory.

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

    @property
    def num_examples(self) -> int:
        """How many images there are."""
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image."""
        return self.images.shape[1:]

    def some(self, count: int) -> np.ndarray:
        """At most `count` images, evenly spread: uint8 `[n, *image_shape]`."""
        return batches.spread_out(self.images, count)

    def at(self, ids: Sequence[int]) -> np.ndarray:
        """The images of these numbers: uint8 `[n, *image_shape]`."""
        return self.images[np.asarray(ids, np.int64)]

    def names(self) -> list[str]:
        """What a person calls each image: its number."""
        return list(map(str, range(len(self.images))))


Images = ImageArrays | stored_images.StoredImages


def load(
    dataset: str,
    data_dir: str | None,
    split: str,
    *,
    image_size: int | None = None,
    store_dir: str | None = None,
    class_names: Sequence[str] | None = None,
    read_only: bool = False,
) -> Images:
    """Loads one split of a data set.

    The first load of a TFDS set or a folder runs TensorFlow operations to decode it. Logical
    devices have to be configured before that.

    Args:
      dataset: `shapes`, `cifar10`, `folder` or any image-classification set of TFDS.
      data_dir: the folder of the data; None for TFDS's own (`$TFDS_DATA_DIR`, or
        `~/tensorflow_datasets`). `shapes` does not look at it.
      split: `train` or `test`; of other sets any split by its plain name.
      image_size: the side of the square that each picture becomes, whose set is then in a store;
        None for images as they are, and for pictures of different sizes IMAGE_SIZE.
      store_dir: where stores are; None for the user's cache.
      class_names: of `folder`, in their order; None for those of its own folders.
      read_only: write no file: a set that is not prepared is refused, and nothing is cached.

    Raises:
      DataError: with a message for the person at the keyboard.
    """
    if dataset == "shapes":
        _refuse_size(dataset, image_size)
        _check_split(dataset, split)
        return _load_shapes(split, read_only)
    if dataset == FOLDER:
        if not data_dir:
            raise DataError(
                "dataset=folder needs `data_dir`, the folder of the pictures: class_name/*.jpg "
                "in it, or train/class_name/*.jpg and test/class_name/*.jpg."
            )
        pictures = folder_source.Folder(_data_folder(data_dir), split, class_names)
        return _stored(f"folder-{split}", pictures, image_size, store_dir, read_only)
    folder = _data_folder(data_dir)
    if dataset == "cifar10" and image_size is None:
        binary_folder = cifar10_binary.find_folder(folder)
        if binary_folder:
            _check_split(dataset, split)
            return _load_binary(binary_folder, split)
        _refuse_python_version(folder)
    if (
        dataset == "cifar10"
        and cifar10_binary.find_folder(folder)
        and not (folder / dataset).is_dir()
    ):
        raise DataError(
            f"image_size={image_size}: the binary files of CIFAR-10 in {folder} have one size "
            "and are not scaled; leave it out."
        )
    builder = tfds_source.open_prepared(dataset, folder, read_only)
    if image_size is None and tfds_source.has_one_size(builder):
        return _load_tfds(dataset, builder, split, read_only)
    pictures = tfds_source.Pictures(builder, split)
    return _stored(f"{dataset}-{split}", pictures, image_size, store_dir, read_only)


def from_arrays(
    images: np.ndarray | Sequence[np.ndarray] | Sequence[bytes],
    labels: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
    *,
    name: str = "arrays",
    image_size: int | None = None,
    store_dir: str | None = None,
) -> stored_images.StoredImages:
    """A split of a program's own images, in a store on disk: for more than fit in memory.

    Args:
      images: uint8 [n, height, width, channels], or n images or encoded pictures of any sizes;
        see `array_source.Arrays`.
      labels: integers [n], places in `class_names`.
      class_names: one per class.
      name: of the store, for people who look into its folder.
      image_size: the side of the square that each picture becomes; None for 224.
      store_dir: where stores are; None for the user's cache.

    Raises:
      DataError: the arrays do not fit, a picture cannot be used, or no store can be written.
    """
    source = array_source.Arrays(images, labels, class_names)
    return _stored(name, source, image_size, store_dir, read_only=False)


def _stored(
    readable: str, source: store.Source, image_size: int | None, store_dir, read_only: bool
) -> stored_images.StoredImages:
    found = store.open_or_make(readable, source, store_dir, read_only)
    size = stored_images.IMAGE_SIZE if image_size is None else image_size
    return stored_images.StoredImages(found, size, source.description)


def _refuse_size(name: str, image_size: int | None) -> None:
    if image_size is not None:
        raise DataError(
            f"image_size={image_size}: the images of dataset={name} have one size and are not "
            "scaled; leave it out."
        )


def _check_split(name: str, split: str) -> None:
    """Refuses other splits than the two of a set that does not come from TFDS."""
    if split not in SPLITS:
        raise tfds_source.no_such_split(name, split, SPLITS)


def default_split(name: str, data_dir: str | None, otherwise: str) -> str:
    """The split that is evaluated where none is named.

    Args:
      name: of the data set.
      data_dir: the folder of other pictures than the run's; None for the run's own.
      otherwise: the split that the run evaluates.

    Returns:
      `all` of a folder of other pictures that has no splits; else `otherwise`.
    """
    if name != FOLDER or not data_dir:
        return otherwise
    folder = _data_folder(data_dir)
    try:
        has_splits = folder_source.is_split(folder)
    except OSError as error:
        raise DataError(f"data_dir={folder} cannot be read: {error.strerror}") from error
    return otherwise if has_splits else folder_source.ALL


def at_hand(name: str, data_dir: str | None) -> bool:
    """Whether a set lies in `data_dir`, prepared, so that `load` has nothing to fetch or prepare.

    Args and errors are those of `load`.
    """
    if name == "shapes":
        return True
    folder = _data_folder(data_dir)
    if name == FOLDER:
        return True
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
                "with `data_dir`"
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
        f"data_dir={data_dir} {what}. Correct it, or make the folder if the data set is to be "
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
            f"data_dir={python_folder.parent}."
        )


def _load_tfds(name: str, builder, split: str, read_only: bool) -> ImageArrays:
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
