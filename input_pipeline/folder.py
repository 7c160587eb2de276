"""A folder of pictures as a list of paths, with a folder in it for each class.

    root/class_name/*.jpg              two splits are cut from it, and there is a third: all
    root/train/class_name/*.jpg        each folder beside train is a split of its own
    root/test/class_name/*.jpg

Where there is no folder `train`, every tenth picture is for `test`, chosen by a hash of its path:
adding pictures moves none of the others. The split `all` has both.
"""

import array
import collections
import hashlib
import itertools
import os
import pathlib
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from . import decoded, encoded, pictures

TRAIN, TEST, ALL = "train", "test", "all"
_TEST_SHARE = 10  # one picture of so many is for `test`

# Pictures that TensorFlow cannot read: leaving them out silently would be wrong.
_OTHER_PICTURES = (
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".svg", ".psd", ".raw",
    ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".dng", ".tga", ".ppm", ".pgm", ".pbm", ".pnm",
    ".exr", ".hdr", ".apng", ".ico", ".dib", ".pcx",
)  # fmt: skip
# Folders of these names look like splits, not classes.
_LIKE_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
_OF_SYSTEMS = ("__MACOSX", "@eaDir")  # what archives and file servers put beside pictures
_MOST_NAMED = 5


def load(
    root: pathlib.Path, split: str, image_size: int, class_names: Sequence[str] | None = None
) -> encoded.EncodedImages:
    """Lists the pictures of one split; they are read when they are needed.

    Args:
      root: of the pictures.
      split: a folder beside `train`; or train, test or all where there is none.
      image_size: pixels, the side of the square that each becomes.
      class_names: what classes there are, in their order; None for the folders of `train`, or of
        `root`, sorted.

    Raises:
      DataError: no such split, no pictures, a folder that is not a class's, or files that cannot be
        looked at or are pictures that cannot be read.
    """
    try:
        return _load(root, split, image_size, class_names)
    except OSError as error:
        where = f"{root}: {error.filename}" if error.filename else str(root)
        raise decoded.DataError(f"data_dir={where} cannot be read: {error.strerror}") from error


def _load(root, split, image_size, class_names) -> encoded.EncodedImages:
    has_splits, splits = is_split(root), split_names(root)
    if split not in splits:
        raise decoded.NoSuchSplitError(
            f"dataset=folder has no split {split!r} in {root}; it has {', '.join(splits)}"
        )
    top = root / split if has_splits else root
    folders = _class_folders(top)
    names = tuple(class_names or _class_folders(root / TRAIN if has_splits else root))
    _check_classes(root, names, folders, has_splits)
    _check_no_strays(root, {root, top})
    listing = _Listing(top)
    for label, name in enumerate(names):
        before = len(listing.paths)
        for path, size in itertools.chain(*map(listing.pictures, folders.get(name, ()))):
            if has_splits or split == ALL or is_for_test(path) == (split == TEST):
                listing.add(path, size, label)
        if split == TRAIN and class_names is None and len(listing.paths) == before:
            held_out = "" if has_splits else f" beside those held out for {TEST}"
            raise _wrong(
                root,
                f"the class {name!r} has no pictures in {split}{held_out}; put some there "
                f"({', '.join(pictures.ENDINGS)}), or remove its folder.",
            )
    if listing.others:
        raise _wrong(
            root,
            f"{len(listing.others):,} pictures are in formats that are not read, such as "
            f"{_some(sorted(listing.others))}; save them as JPEG or PNG, or take them out of the "
            "folder.",
        )
    if not listing.paths:
        few = (
            f" One in {_TEST_SHARE} is held out for {TEST}, and there are too few; add more, "
            f"or make folders {TRAIN}/ and {TEST}/."
        )
        raise _wrong(root, f"there are no pictures in {split}.{'' if has_splits else few}")
    is_cut = not has_splits and split != ALL
    cut = f", every {_TEST_SHARE}th for {TEST} by a hash of its path" if is_cut else ""
    return encoded.EncodedImages(
        read=listing.read,
        name=listing.paths.__getitem__,
        num_examples=len(listing.paths),
        class_names=names,
        source=f"pictures in {top}{cut}{listing.skipped_files()}",
        fingerprint=listing.fingerprint(names),
        image_size=image_size,
    )


class _Listing:
    """The pictures of a split: their paths, sizes and labels."""

    def __init__(self, top: pathlib.Path):
        self.top, self.paths = top, []
        self.others: list[str] = []  # in formats that are not read
        self._skipped: collections.Counter = collections.Counter()  # files of each ending
        self._sizes, self._labels = array.array("q"), array.array("i")
        self._digest = hashlib.sha256()

    def pictures(self, folder: str) -> Iterator[tuple[str, int]]:
        """The paths, below `top`, and sizes of a class's pictures, sorted."""
        for entry in _entries(self.top / folder):
            path = f"{folder}/{entry.name}"
            ending = os.path.splitext(entry.name)[1].lower()
            if not entry.is_dir():
                if ending in pictures.ENDINGS:
                    status = entry.stat()
                    if not stat.S_ISREG(status.st_mode):
                        raise _wrong(self.top, f"{path} is not a file.")
                    yield path, status.st_size
                    continue
                self._skipped[ending or "none"] += 1
                if ending in _OTHER_PICTURES:
                    self.others.append(path)
            elif entry.is_symlink():
                raise _wrong(
                    self.top,
                    f"{path} is a link to a folder, which is not followed within a class; move the "
                    "pictures, or link each of them.",
                )
            else:
                yield from self.pictures(path)

    def add(self, path: str, size: int, label: int) -> None:
        self.paths.append(path)
        self._sizes.append(size)
        self._labels.append(label)
        self._digest.update(f"{_composed(path)}\0{size}\n".encode("utf-8", "surrogateescape"))

    def read(self, number: int) -> tuple[bytes, int]:
        """A picture and its label.

        Raises:
          OSError: it is gone, or has another size than when it was listed.
        """
        with open(f"{self.top}/{self.paths[number]}", "rb", buffering=0) as file:
            content = file.read()
        if len(content) != self._sizes[number]:
            raise OSError("has changed since the folder was listed")
        return content, self._labels[number]

    def fingerprint(self, names: Sequence[str]) -> str:
        digest = self._digest.copy()
        digest.update(np.array(self._labels, "<i4"))
        digest.update("\0".join(names).encode())
        return digest.hexdigest()

    def skipped_files(self) -> str:
        count, endings = sum(self._skipped.values()), ", ".join(sorted(self._skipped))
        return f" ({count:,} files with other endings skipped: {endings})" if count else ""


def is_split(root: pathlib.Path) -> bool:
    """Whether the folders in `root` are splits, and not classes: there is a `train` of folders."""
    return (root / TRAIN).is_dir() and bool(_class_folders(root / TRAIN))


def split_names(root: pathlib.Path) -> list[str]:
    """The splits that a folder of pictures has."""
    return sorted(_class_folders(root)) if is_split(root) else [TRAIN, TEST, ALL]


def is_for_test(path: str) -> bool:
    """Whether a picture is held out for `test` where no folder says so; by its path below root."""
    digest = hashlib.sha256(_composed(path).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % _TEST_SHARE == 0


def _composed(name: str) -> str:
    """A name as Unicode composes it (NFC): systems store the same one composed or decomposed."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _entries(folder: str | os.PathLike) -> list[os.DirEntry]:
    """What a folder holds, sorted, without what is hidden."""
    with os.scandir(folder) as entries:
        shown = [e for e in entries if not e.name.startswith(".") and e.name not in _OF_SYSTEMS]
    return sorted(shown, key=lambda entry: (_composed(entry.name), entry.name))


def _class_folders(root: pathlib.Path) -> dict[str, list[str]]:
    """The folders in `root` by the classes' names: one each, unless it is spelled in two ways."""
    folders = collections.defaultdict(list)
    for entry in filter(os.DirEntry.is_dir, _entries(root)):
        folders[_composed(entry.name)].append(entry.name)
    return folders


def _wrong(root: pathlib.Path, what: str) -> decoded.DataError:
    return decoded.DataError(f"data_dir={root}: {what}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED])


def _check_no_strays(root: pathlib.Path, folders: Iterable[pathlib.Path]) -> None:
    """Refuses pictures that lie beside the folders of classes, and would be left out."""
    kinds = pictures.ENDINGS + _OTHER_PICTURES
    strays = [
        str(pathlib.Path(entry.path).relative_to(root))
        for folder in sorted(folders)
        for entry in _entries(folder)
        if os.path.splitext(entry.name)[1].lower() in kinds and not entry.is_dir()
    ]
    if strays:
        raise _wrong(
            root,
            f"{len(strays):,} pictures are in no class's folder, such as {_some(sorted(strays))}; "
            "put them into one, or elsewhere.",
        )


def _check_classes(
    root: pathlib.Path, names: Sequence[str], here: Iterable[str], has_splits: bool
) -> None:
    """Refuses folders that are not the classes', or were probably meant as splits."""
    if unknown := [name for name in here if name not in set(names)]:
        are_none = "is not a class" if len(unknown) == 1 else "are not classes"
        raise _wrong(
            root,
            f"{_some([*map(repr, unknown)])} {are_none} of the set, which has {_some(names)}"
            f"{', ...' if len(names) > _MOST_NAMED else ''}; give the folders the names of "
            "classes.",
        )
    if len(names) < 2:
        raise decoded.DataError(
            f"data_dir={root} has {len(names)} folders, but needs one for each of at least two "
            "classes, with its pictures in it."
        )
    for name in names:  # which may have joiners within words, as in Persian and in emoji
        if not name.replace("\u200c", "").replace("\u200d", "").isprintable():
            raise _wrong(root, f"{name!r} is not a class name: it must be printable text.")
    like = [name for name in here if name.casefold() in _LIKE_SPLITS]
    if like and not has_splits:
        raise _wrong(
            root,
            f"{_some([*map(repr, like)])} would be classes, but look like splits. Splits are "
            f"folders that hold the classes' folders, and one must be called {TRAIN}: "
            f"{TRAIN}/class_name/*.jpg.",
        )
