"""A data set's name → its images and labels, in memory or encoded on disk.

Images of one size are in memory, decoded or drawn at each start. Pictures of different sizes, and
any for which an image size is asked for, are decoded as they are needed (docs/data.md). `data_dir`
is written to only where a set has to be downloaded.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence

from . import checks, folder, images, shapes

DataError = checks.DataError
Images = images.Images
ImageArrays = images.ImageArrays

FOLDER = "folder"


def load(
    dataset: str,
    data_dir: str | None,
    split: str,
    *,
    image_size: int | None = None,
    class_names: Sequence[str] | None = None,
    read_only: bool = False,
) -> Images:
    """Loads one split of a data set.

    The first load of a TFDS set runs TensorFlow operations to decode it. Logical devices have to be
    configured before that.

    Args:
      dataset: `shapes`, which is drawn; `folder`, the pictures in `data_dir`; or the name of an
        image-classification set of TFDS.
      data_dir: the folder of the data; None for TFDS's own (`$TFDS_DATA_DIR`, or
        `~/tensorflow_datasets`). `shapes` does not look at it.
      split: `train` or `test`; of other sets any split by its plain name.
      image_size: the side of the square that each picture becomes, as it is needed; None for images
        as they are, and for pictures of different sizes 224.
      class_names: of `folder`, in their order; None for those of its own folders.
      read_only: write no file: a set that is not prepared is refused.

    Raises:
      DataError: with a message for the person at the keyboard.
    """
    if dataset == "shapes":
        if image_size is not None:
            raise DataError(f"image_size={image_size}: must be left out with dataset=shapes")
        arrays = shapes.make(split)
        return ImageArrays(*arrays, class_names=shapes.CLASS_NAMES, source="drawn")
    if dataset == FOLDER and not data_dir:
        raise DataError(
            "dataset=folder needs `data_dir`, the folder of the pictures: class_name/*.jpg in it, "
            "or train/class_name/*.jpg and test/class_name/*.jpg."
        )
    with _data_folder(data_dir, is_tfdss=dataset != FOLDER) as where:
        if dataset == FOLDER:
            return folder.load(where, split, image_size or images.IMAGE_SIZE, class_names)
        from . import tfds_source  # with TFDS, which no other set needs

        return tfds_source.load(dataset, where, split, image_size, read_only)


@contextlib.contextmanager
def _data_folder(data_dir: str | None, is_tfdss: bool) -> Iterator[pathlib.Path]:
    """The folder to look in; makes a sentence of what the system says of it or of what is in it."""
    default = os.environ.get("TFDS_DATA_DIR") or os.path.join("~", "tensorflow_datasets")
    try:
        path = pathlib.Path(data_dir or default).expanduser()
    except RuntimeError as error:
        raise DataError(f"{error} Name the data sets' folder with `data_dir`.") from error
    try:
        if data_dir:
            os.scandir(path).close()
        yield path
    except OSError as error:
        where = " (make the folder to download a set there)" if is_tfdss else ""
        if error.filename and str(error.filename) != str(path):
            where = f": {error.filename}"
        raise DataError(f"data_dir={path}{where} cannot be read: {error.strerror}") from error
