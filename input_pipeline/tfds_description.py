"""The files that describe a prepared TFDS set, checked before TFDS reads them, and after.

TFDS trusts them: it imports any module that `features.json` names, waits forever where a named
pipe lies in a file's place, and accepts class names that are too few, too many or not text.
"""

import json
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import decoded, regular_files

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

_INFO, _FEATURES, _NAMES = "dataset_info.json", "features.json", "label.labels.txt"

# In the two forms of features.json: {"type": ..., "content": ...} and {"pythonClassName": ...}.
_CLASS_KEYS = ("type", "pythonClassName", "python_class_name")
_JSON_IN_TEXT = ("content", "json")

REMEDY = "Copy the set again, or remove that folder and let it be prepared again."

_ANY_VERSION = "[0-9]*.[0-9]*.[0-9]*"  # a set that is being prepared has a folder of another name
_MOST_CLASSES = 10**6
_RECORD_OVERHEAD = 16  # bytes of a TFRecord beside what it holds: its length and two checksums


class _NoJsonError(decoded.DataError):
    """A file that describes a set is not JSON."""


def set_folder(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Where TFDS looks for the versions of a set, and for those of its configurations."""
    from tensorflow_datasets.core import naming

    return data_dir / naming.camelcase_to_snakecase(name.partition(":")[0].partition("/")[0])


def check_files(name: str, data_dir: pathlib.Path) -> dict[pathlib.Path, decoded.DataError]:
    """Checks what TFDS may read when it makes the builder of a set that lies in `data_dir`.

    The version that TFDS will choose is not known yet: all are checked, or the one in the name.

    Args:
      name: as TFDS knows it: `cifar100`, or with a configuration and version `set/config:1.0.0`.
      data_dir: the folder that TFDS looks for the set in.

    Returns:
      The folders whose description is not JSON, and why; TFDS may choose another one.

    Raises:
      DataError: something else lies in the place of a file, or a file names a feature that is not
        TFDS's own.
    """
    folder, version = set_folder(name, data_dir), name.partition(":")[2] or _ANY_VERSION
    config = folder / ".config" / "metadata.json"
    if os.path.lexists(config):
        _check_default_config(config)
    unreadable = {}
    for of_version in (*sorted(folder.glob(version)), *sorted(folder.glob(f"*/{version}"))):
        try:
            _check_version(of_version)
        except _NoJsonError as error:
            unreadable[of_version] = error
    return unreadable


def _check_version(folder: pathlib.Path) -> None:
    for path in (*folder.glob("*.json"), *folder.glob("*.labels.txt")):
        if path.name == _FEATURES:
            _check_features(path, _read_json(path))
        elif path.name == _INFO:  # it may have the features too
            content = _read_json(path)
            _check_features(path, content.get("features") if isinstance(content, dict) else None)
        else:
            _read(path)


def _check_default_config(path: pathlib.Path) -> None:
    """Refuses the name of a configuration that leads out of the set's folder."""
    content = _read_json(path)
    name = content.get("default_config_name") if isinstance(content, dict) else None
    if isinstance(name, str) and ("/" in name or name in (".", "..")):
        raise _damaged(path, f"default_config_name is {name!r}")


def check_classes(builder: "tfds.core.DatasetBuilder") -> None:
    """Checks the names of the classes of a set that is prepared.

    Raises:
      DataError: there are none, too many, or not as many as in the file of names, or one occurs
        twice.
    """
    label = builder.info.features["label"]
    path = pathlib.Path(builder.data_dir) / _NAMES
    if not label.num_classes or not 1 <= label.num_classes <= _MOST_CLASSES:
        raise _damaged(path.with_name(_FEATURES), f"it has {label.num_classes} classes")
    if not os.path.lexists(path):
        return
    try:
        lines = _read(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is not text: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) != label.num_classes:
        raise _damaged(path, f"it has {len(names)} names for {label.num_classes} classes")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _damaged(path, f"it has the name {twice!r} twice")


def shards(builder: "tfds.core.DatasetBuilder", split: str) -> list[tuple[str, os.stat_result]]:
    """The files of a split, in order, with what is known of them without opening one.

    Raises:
      DataError: a file is missing or not a file; or the numbers of examples that the description
        gives for them are missing, negative, or more than the files can hold.
    """
    info = builder.info.splits[split]
    description = pathlib.Path(builder.data_dir) / _INFO
    lengths = list(info.shard_lengths)
    if sum(lengths) < 1 or min(lengths) < 0:
        shown = f"{lengths[:3]}{' and more' if len(lengths) > 3 else ''}"
        raise _damaged(description, f"the shardLengths of {split!r} are {shown}")
    try:
        paths = [os.fspath(path) for path in info.filepaths]
    except Exception as error:  # whatever a template of file names makes str.format raise
        raise _damaged(
            description, f"the filepathTemplate of {split!r} is not one: {type(error).__name__}"
        ) from error
    try:
        files = [(path, regular_files.check(path)) for path in paths]
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise decoded.DataError(
            f"{builder.name} in {builder.data_path} is incomplete ({error}). {REMEDY}"
        ) from error
    if builder.info.as_proto.file_format in ("", "tfrecord"):
        for length, (path, found) in zip(lengths, files, strict=True):
            if length * _RECORD_OVERHEAD > found.st_size:
                raise decoded.DataError(
                    f"{path} has {found.st_size:,} bytes, too few for the {length:,} examples of "
                    f"{description}. {REMEDY}"
                )
    return files


def check_splits(builder: "tfds.core.DatasetBuilder") -> None:
    """Checks that a description has splits; without one, as TFDS's mocked data are, all is well.

    Raises:
      DataError: it has none.
    """
    description = pathlib.Path(builder.data_dir) / _INFO
    if not builder.info.splits and os.path.lexists(description):
        raise _damaged(description, "it has no splits")


def _read(path: pathlib.Path) -> bytes:
    try:
        return regular_files.read(path)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error


def _read_json(path: pathlib.Path) -> object:
    try:
        return json.loads(_read(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _NoJsonError(str(_damaged(path, f"it is not JSON: {error}"))) from error


def _check_features(path: pathlib.Path, description: object) -> None:
    """Refuses features of which TFDS would import a module that is not its own."""
    try:
        foreign = sorted(set(_classes(description)) - _own_features())
    except (ValueError, RecursionError) as error:
        raise _NoJsonError(str(_damaged(path, f"it is not JSON: {error}"))) from error
    if foreign:
        raise decoded.DataError(
            f"{path} names the feature {foreign[0]!r}, which is not one of TensorFlow Datasets' "
            "own; nothing is imported because a file says so. Use a set without it, or remove that "
            "folder."
        )


def _classes(description: object) -> Iterator[str]:
    """All names of Python classes in a description of features, at any depth."""
    if isinstance(description, list):
        for part in description:
            yield from _classes(part)
    if not isinstance(description, dict):
        return
    for key, value in description.items():
        if key in _CLASS_KEYS and isinstance(value, str):
            yield value
        elif key in _JSON_IN_TEXT and isinstance(value, str):
            yield from _classes(json.loads(value))
        else:
            yield from _classes(value)


def _own_features() -> set[str]:
    """The names, with their modules, by which TFDS writes its own features down."""
    import tensorflow_datasets as tfds

    kinds = [kind for kind in vars(tfds.features).values() if isinstance(kind, type)]
    own = [kind for kind in kinds if issubclass(kind, tfds.features.FeatureConnector)]
    names = {f"{kind.__module__}.{kind.__name__}" for kind in own}
    return names.union(*(kind.ALIASES for kind in own))


def _damaged(path: pathlib.Path, what: str) -> decoded.DataError:
    return decoded.DataError(f"{path} cannot be used: {what}. {REMEDY}")
