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
import os
import pathlib
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from . import checks, images, pictures

TRAIN, TEST, ALL = "train", "test", "all"
_TEST_SHARE = 10  # one picture of so many is for `test`

# Pictures that are not read: leaving them out silently would be wrong.
_OTHER_PICTURES = (
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".psd", ".raw", ".cr2",
    ".cr3", ".nef", ".arw", ".orf", ".rw2", ".dng", ".tga", ".ppm", ".pgm", ".pnm", ".exr", ".hdr",
)  # fmt: skip
# Folders of these names look like splits, not classes.
_LIKE_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
_OF_SYSTEMS = ("__MACOSX", "@eaDir")  # what archives and file servers put beside pictures
_MOST_NAMED = 5


def load(
    root: pathlib.Path, split: str, image_size: int, class_names: Sequence[str] | None = None
) -> images.EncodedImages:
    """Lists the pictures of one split, as `datasets.load`; they are read when they are needed."""
    checks.check_split(f"folder in {root}", split, split_names(root))
    has_splits = is_split(root)
    is_cut = not has_splits and split != ALL
    top = root / split if has_splits else root
    folders = _class_folders(top)
    names = tuple(class_names or _class_folders(root / TRAIN if has_splits else root))
    _check_classes(root, top, names, [*folders])
    paths: list[str] = []
    sizes, labels = array.array("q"), array.array("i")
    skipped: collections.Counter = collections.Counter()  # files of each ending
    digest = hashlib.sha256()
    for label, name in enumerate(names):
        before = len(paths)
        for folder in folders.get(name, ()):
            for path, size in _pictures(top, folder, skipped):
                if not is_cut or is_for_test(path) == (split == TEST):
                    paths.append(path)
                    sizes.append(size)
                    labels.append(label)
                    line = f"{_composed(path)}\0{size}\n"
                    digest.update(line.encode("utf-8", "surrogateescape"))
        if split == TRAIN and class_names is None and len(paths) == before:
            held_out = f" beside those held out for {TEST}" if is_cut else ""
            _refuse(root, f"class {name!r} has no pictures in {split}{held_out}; remove its folder")
    if not paths:
        _refuse(root, f"there are no pictures in {split}; each class needs more")
    digest.update(np.array(labels, "<i4").tobytes())
    digest.update("\0".join(names).encode("utf-8", "surrogateescape"))

    def read(number: int) -> tuple[bytes, int]:
        with open(f"{top}/{paths[number]}", "rb", buffering=0) as file:
            content = file.read()
        if len(content) != sizes[number]:
            raise OSError("has changed since the folder was listed")
        return content, labels[number]

    cut = f", every {_TEST_SHARE}th for {TEST} by a hash of its path" if is_cut else ""
    count, endings = sum(skipped.values()), ", ".join(sorted(skipped))
    left_out = f" ({count:,} files with other endings skipped: {endings})" if count else ""
    return images.EncodedImages(
        read=read,
        name=paths.__getitem__,
        num_examples=len(paths),
        class_names=names,
        source=f"pictures in {top}{cut}{left_out}",
        fingerprint=digest.hexdigest(),
        image_size=image_size,
    )


def _pictures(
    top: pathlib.Path, folder: str, skipped: collections.Counter
) -> Iterator[tuple[str, int]]:
    """The paths, below `top`, and sizes of the pictures in a folder of a class, sorted."""
    for entry in _entries(top / folder):
        path, ending = f"{folder}/{entry.name}", _ending(entry)
        if entry.is_dir():
            if entry.is_symlink():
                _refuse(top, f"{path} is a link to a folder; move the pictures, or link each")
            yield from _pictures(top, path, skipped)
        elif ending in _OTHER_PICTURES:
            _refuse(top, f"{path} is in a format that is not read; save it as JPEG or PNG")
        elif ending in pictures.ENDINGS and (entry.is_file() or entry.is_symlink()):
            yield path, entry.stat().st_size
        else:
            skipped[ending or "none"] += 1


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


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted, without what is hidden."""
    with os.scandir(folder) as entries:
        shown = [e for e in entries if not e.name.startswith(".") and e.name not in _OF_SYSTEMS]
    return sorted(shown, key=lambda entry: (_composed(entry.name), entry.name))


def _ending(entry: os.DirEntry) -> str:
    return os.path.splitext(entry.name)[1].lower()


def _class_folders(root: pathlib.Path) -> dict[str, list[str]]:
    """The folders in `root` by the classes' names: one each, unless it is spelled in two ways."""
    folders = collections.defaultdict(list)
    for entry in filter(os.DirEntry.is_dir, _entries(root)):
        folders[_composed(entry.name)].append(entry.name)
    return folders


def _refuse(root: pathlib.Path, problem: str) -> None:
    raise checks.DataError(f"data_dir={root}: {problem}.")


def _check_classes(
    root: pathlib.Path, top: pathlib.Path, names: Sequence[str], here: Sequence[str]
) -> None:
    """Refuses folders that are not the classes', or were probably meant as splits, and strays."""

    def some(names):
        return ", ".join(map(repr, names[:_MOST_NAMED])) + ", ..." * (len(names) > _MOST_NAMED)

    if unknown := [name for name in here if name not in set(names)]:
        _refuse(root, f"{some(unknown)}: not a class of the set, which has {some(names)}")
    if len(names) < 2:
        _refuse(root, f"{len(names)} folders, but each of at least two classes needs one")
    like = [name for name in here if name.casefold() in _LIKE_SPLITS]
    if like and top == root:
        _refuse(
            root,
            f"{some(like)} would be classes, but look like splits, which hold the classes' folders "
            f"and of which one must be called {TRAIN}: {TRAIN}/class_name/*.jpg",
        )
    strays = [
        os.path.relpath(entry.path, root)
        for folder in sorted({root, top})
        for entry in _entries(folder)
        if _ending(entry) in pictures.ENDINGS + _OTHER_PICTURES and not entry.is_dir()
    ]
    if strays:
        _refuse(root, f"{len(strays):,} pictures are in no class's folder: {some(strays)}")
