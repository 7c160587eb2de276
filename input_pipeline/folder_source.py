"""A folder of pictures, with a folder in it for each class, as the source of a store.

    root/class_name/*.jpg              two splits are cut from it, and there is a third: all
    root/train/class_name/*.jpg        each folder beside train is a split of its own
    root/test/class_name/*.jpg

Where there is no folder `train`, every tenth picture is for `test`, chosen by a hash of its path:
adding pictures moves none of the others. The split `all` has both.
"""

import errno
import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import decoded, pictures, regular_files, store

TRAIN, TEST, ALL = "train", "test", "all"
_TEST_OF = 10  # one picture of so many is for `test`

# Pictures that TensorFlow cannot read: leaving them out silently would be wrong.
_OTHER_PICTURES = (
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".svg", ".psd", ".raw",
    ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".dng", ".tga", ".ppm", ".pgm", ".pbm", ".pnm",
    ".exr", ".hdr", ".apng", ".ico", ".dib", ".pcx",
)  # fmt: skip
# Folders of these names look like splits, not classes.
_LIKE_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
_MOST_NAMED = 5


class Folder:
    """The pictures of one split; a `store.Source`.

    Attributes:
      description, identity, class_names, num_examples, num_bytes, files: see `store.Source`.
      skipped: how many files of each ending were skipped, as not being pictures.
    """

    files = None

    def __init__(self, root: pathlib.Path, split: str, class_names: Sequence[str] | None = None):
        """
        Args:
          root: of the pictures.
          split: a folder beside `train`; or train, test or all where there is none.
          class_names: what classes there are, in their order; None for the folders of `train`, or
            of `root`, sorted.

        Raises:
          DataError: no such split, no pictures, a folder that is not a class's, or files that
            cannot be looked at or are pictures that cannot be read.
        """
        try:
            self._list(root, split, class_names)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise decoded.DataError(
                f"data_dir={root} cannot be read: {error.strerror}{where}"
            ) from error

    def _list(self, root, split, class_names) -> None:
        has_splits = is_split(root)
        there = split_names(root)
        if split not in there:
            raise decoded.NoSuchSplitError(
                f"dataset=folder has no split {split!r} in {root}; it has {', '.join(there)}"
            )
        self._root = root / split if has_splits else root
        are_its_own = class_names is None
        if are_its_own:
            class_names = _folders(root / TRAIN if has_splits else root)
        self.class_names = tuple(class_names)
        _check_classes(root, self.class_names, _folders(self._root))
        if not has_splits:
            _check_no_splits(root, _folders(root))
        _check_no_strays(root, {root, self._root})
        self._paths: list[str] = []
        self.skipped: dict[str, int] = {}
        labels, digest, self.num_bytes = [], hashlib.sha256(), 0
        versions: list[tuple[int, int]] = []
        others: list[str] = []

        def is_in_split(path: str) -> bool:
            return has_splits or split == ALL or is_for_test(path) == (split == TEST)

        for label, name in enumerate(self.class_names):
            found = [each for each in self._pictures(name, others) if is_in_split(each[0])]
            if split == TRAIN and are_its_own and not found:
                held_out = "" if has_splits else f" beside those held out for {TEST}"
                raise decoded.DataError(
                    f"data_dir={root}: the class {name!r} has no pictures in {split}{held_out}; "
                    f"put some there ({', '.join(pictures.ENDINGS)}), or remove its folder."
                )
            for path, status in found:
                self._paths.append(path)
                labels.append(label)
                versions.append(_version(status))
                self.num_bytes += status.st_size
                text = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n"
                digest.update(text.encode("utf-8", "surrogateescape"))
        if others:
            names = ", ".join(sorted(others)[:_MOST_NAMED])
            raise decoded.DataError(
                f"data_dir={root}: {len(others):,} pictures are in formats that are not read, "
                f"such as {names}; save them as JPEG or PNG, or take them out of the folder."
            )
        if not self._paths:
            few = (
                f" One in {_TEST_OF} is held out for {TEST}, and there are too few; add more, "
                f"or make folders {TRAIN}/ and {TEST}/."
            )
            help_ = "" if has_splits else few
            raise decoded.DataError(f"data_dir={root}: there are no pictures in {split}.{help_}")
        self._labels, self._versions = np.array(labels, np.int32), np.array(versions, np.int64)
        self.num_examples = len(self._paths)
        self.description = f"pictures in {self._root}" + self._said_of_the_split(has_splits, split)
        self.identity: Mapping[str, Any] = {
            "source": "folder",
            "root": os.path.realpath(self._root),
            "class_names": list(self.class_names),
            "num_examples": self.num_examples,
            "files": digest.hexdigest(),
        }

    def _pictures(self, name: str, others: list[str]) -> Iterator[tuple[str, os.stat_result]]:
        """The pictures of a class. Adds those of formats that are not read to `others`."""
        for path, status in _files(self._root, name):
            ending = os.path.splitext(path)[1].lower()
            if ending in _OTHER_PICTURES:
                others.append(path)
            if ending in pictures.ENDINGS:
                yield path, status
            else:
                self.skipped[ending] = self.skipped.get(ending, 0) + 1

    def _said_of_the_split(self, has_splits: bool, split: str) -> str:
        said = ""
        if not has_splits and split != ALL:
            said = f", every {_TEST_OF}th for {TEST} by a hash of its path"
        if self.skipped:
            count = sum(self.skipped.values())
            kinds = ", ".join(sorted(ending or "none" for ending in self.skipped))
            said += f" ({count:,} files with other endings skipped: {kinds})"
        return said

    def examples(self, first: int) -> Iterator[store.Example]:
        """As `store.Source.examples`."""
        listed = (self._paths, self._labels, self._versions)
        for path, label, version in zip(*(each[first:] for each in listed), strict=True):
            try:
                content: bytes | OSError = self._content(path, tuple(version))
            except OSError as error:
                content = error
            yield store.Example(path, int(label), content)

    def _content(self, path: str, version: tuple[int, int]) -> bytes:
        """A file, as it was when the folder was listed: the store's name is of that."""
        with regular_files.open_to_read(self._root / path) as file:
            content = file.read()
            if _version(os.fstat(file.fileno())) != version:
                raise OSError(errno.EBUSY, "it has changed since the folder was listed")
        return content


def _version(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def is_split(root: pathlib.Path) -> bool:
    """Whether the folders in `root` are splits, and not classes: there is a `train` of folders."""
    return (root / TRAIN).is_dir() and bool(_folders(root / TRAIN))


def split_names(root: pathlib.Path) -> list[str]:
    """The splits that a folder of pictures has."""
    return _folders(root) if is_split(root) else [TRAIN, TEST, ALL]


def is_for_test(path: str) -> bool:
    """Whether a picture is held out for `test` where no folder says so; by its path below root."""
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % _TEST_OF == 0


def _folders(root: pathlib.Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _files(root: pathlib.Path, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files of a class, sorted: their paths below `root`, and their sizes and times.

    Hidden files, and those in hidden folders, are left out. The folder need not exist: a split may
    lack a class.
    """
    if not (root / name).exists():
        return
    with os.scandir(root / name) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith("."):
            continue
        path = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _files(root, path)
        elif entry.is_dir():
            raise decoded.DataError(
                f"data_dir={root}: {path} is a link to a folder, which is not followed within a "
                "class; move the pictures, or link each of them."
            )
        else:
            yield path, entry.stat()


def _check_no_splits(root: pathlib.Path, names: Sequence[str]) -> None:
    """Refuses folders that were probably meant as splits."""
    like = [name for name in names if name.casefold() in _LIKE_SPLITS]
    if like:
        raise decoded.DataError(
            f"data_dir={root}: {', '.join(map(repr, like))} would be classes, but look like "
            f"splits. Splits are folders that hold the classes' folders, and one must be called "
            f"{TRAIN}: {TRAIN}/class_name/*.jpg."
        )


def _check_no_strays(root: pathlib.Path, folders: Iterable[pathlib.Path]) -> None:
    """Refuses pictures that lie beside the folders of classes, and would be left out."""
    kinds, strays = pictures.ENDINGS + _OTHER_PICTURES, []
    for folder in sorted(folders):
        with os.scandir(folder) as entries:
            strays += [
                str(pathlib.Path(folder, entry.name).relative_to(root))
                for entry in entries
                if not entry.name.startswith(".")
                and os.path.splitext(entry.name)[1].lower() in kinds
                and not entry.is_dir()
            ]
    if strays:
        raise decoded.DataError(
            f"data_dir={root}: {len(strays):,} pictures are in no class's folder, such as "
            f"{', '.join(sorted(strays)[:_MOST_NAMED])}; put them into one, or elsewhere."
        )


def _check_classes(root: pathlib.Path, names: Sequence[str], here: Sequence[str]) -> None:
    unknown = [name for name in here if name not in set(names)]
    if unknown:
        shown = ", ".join(map(repr, unknown[:_MOST_NAMED]))
        known = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
        raise decoded.DataError(
            f"data_dir={root}: {shown} "
            f"{'is not a class' if len(unknown) == 1 else 'are not classes'} of the set, which has "
            f"{known}; give the folders the names of classes."
        )
    if len(names) < 2:
        raise decoded.DataError(
            f"data_dir={root} has {len(names)} folders, but needs one for each of at least two "
            "classes, with its pictures in it."
        )
    odd = [name for name in names if not name.isprintable()]
    if odd:
        raise decoded.DataError(f"data_dir={root}: {odd[0]!r} is not a class name: it must be "
                                "printable text.")  # fmt: skip
