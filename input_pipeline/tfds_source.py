"""Reads an image-classification set through TensorFlow Datasets (TFDS), prepared first if need be.

TFDS itself waits minutes for a network that is not there. So the order is: is the set prepared? are
its archives in `<data_dir>/downloads/manual/`, where TFDS looks first? can their hosts be reached
within seconds? Only then does TFDS download.
"""

import contextlib
import difflib
import functools
import logging
import math
import os
import pathlib
import re
import shutil
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import cifar10_binary, decoded, regular_files, store, tfds_description

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

NETWORK_CHECK_SECONDS = 4.0  # for all hosts of a data set together

_READ_BYTES = 2**24  # of images, decoded at a time
_NAME = re.compile(r"[A-Za-z_]\w*(/\w[\w.-]*)?(:\d+\.\d+\.\d+)?", re.ASCII)
_LONGEST_NAME = 100
_PORTS = {"http": 80, "https": 443, "ftp": 21}
_PROXY_PORTS = {"http": 80, "https": 443} | dict.fromkeys(
    ("socks4", "socks4a", "socks5", "socks5h"), 1080
)

_log = logging.getLogger(__name__)


def open_prepared(
    name: str, data_dir: pathlib.Path, read_only: bool = False
) -> "tfds.core.DatasetBuilder":
    """A builder whose data lie ready in `data_dir`, downloaded and prepared now if they did not.

    Args:
      name: as TFDS knows it: `cifar100`, or with a configuration and version `set/config:1.0.0`.
      data_dir: TFDS's folder; written to only if the set has to be prepared.
      read_only: refuse a set that would have to be prepared.

    Raises:
      DataError: unknown name; what describes the set in `data_dir` is damaged; no `image` and
        `label`; not prepared and no way to get it.
    """
    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    builder = _builder(name, data_dir)
    _check_features(builder)
    # TFDS would warn of a folder without data where there is no folder at all.
    if not (builder.data_path.exists() and builder.is_prepared()):
        if read_only:
            raise decoded.DataError(
                f"{builder.name} is not prepared in {builder.data_dir_root}, and a dry run "
                "(`read_only`) downloads and prepares nothing. Train once without it, or point "
                "`data_dir` to a folder that holds the set prepared."
            )
        _prepare(builder)
    tfds_description.check_classes(builder)
    tfds_description.check_splits(builder)
    return builder


def _builder(name: str, data_dir: pathlib.Path) -> "tfds.core.DatasetBuilder":
    import tensorflow_datasets as tfds

    if not (_NAME.fullmatch(name) and len(name) <= _LONGEST_NAME):
        raise decoded.DataError(
            f"dataset={name[:_LONGEST_NAME]} is not the name of a data set. Use a name such as "
            "cifar10 or cifar100, not a path; the folder goes into `data_dir`."
        )
    unreadable = tfds_description.check_files(name, data_dir)
    try:
        builder = tfds.builder(name, data_dir=str(data_dir))
    except tfds.core.registered.DatasetNotFoundError as error:
        raise decoded.DataError(_unknown_name_message(name, data_dir)) from error
    except ImportError as error:
        raise decoded.DataError(
            f"dataset={name} needs a Python package that is missing: {_first_line(error)}."
        ) from error
    except (ValueError, AssertionError) as error:
        if unreadable:
            raise list(unreadable.values())[-1] from error  # the highest version
        folder, reason = tfds_description.set_folder(name, data_dir), _without_call(error)
        if folder.exists():
            reason = (
                f"{reason.rstrip('.')}; or what describes it in {folder} is damaged: copy it again"
            )
        raise decoded.DataError(f"dataset={name}: {reason}") from error
    except Exception as error:  # whatever the readers of the set's JSON files raise
        if unreadable:
            raise list(unreadable.values())[-1] from error  # the highest version
        raise decoded.DataError(
            f"dataset={name}: its description in {data_dir} cannot be read "
            f"({type(error).__name__}: {_without_call(error)}). Copy the set again, or remove it "
            "and let it be prepared again."
        ) from error
    if pathlib.Path(builder.data_path) in unreadable:
        raise unreadable[pathlib.Path(builder.data_path)]
    return builder


def _without_call(error: Exception) -> str:
    """TFDS's reason without the call that it puts before, and the empty list it may put after."""
    reason = _first_line(error).rpartition('}": ')[2]
    return re.sub(r" Here are \d+ BuilderConfigs whose name closely match: *$", "", reason)


def _unknown_name_message(name: str, data_dir: pathlib.Path) -> str:
    import tensorflow_datasets as tfds

    folder = tfds_description.set_folder(name, data_dir)
    if os.path.lexists(folder):
        return (
            f"dataset={name} is unknown to TensorFlow Datasets, and {folder} holds no prepared "
            "set: that is a folder of a version such as 1.0.0/, with dataset_info.json and "
            "features.json. Copy it again."
        )
    known = ["shapes", "folder", *tfds.list_builders(with_community_datasets=False)]
    near = difflib.get_close_matches(re.split("[/:]", name.lower())[0], known)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Try cifar10, cifar100 or shapes."
    return f"dataset={name} is unknown to TensorFlow Datasets. {hint}"


def _check_features(builder: "tfds.core.DatasetBuilder") -> None:
    """Refuses a set that is not image classification, before anything is downloaded."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    found = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = found.get("image"), found.get("label")
    if (
        isinstance(image, tfds.features.Image)
        and image.np_dtype == np.uint8
        and len(image.shape) == 3
        and min(side for side in (*image.shape, 1) if side is not None) > 0
        and image.shape[2] is not None
        and isinstance(label, tfds.features.ClassLabel)
    ):
        return
    listing = ", ".join(f"{key}: {feature!r}" for key, feature in found.items()) or repr(features)
    raise decoded.DataError(
        f"dataset={builder.name} cannot be used: it must have `image` (uint8 [height, "
        f"width, channels]) and `label` (a class), but has {' '.join(listing.split())}."
    )


def _prepare(builder: "tfds.core.DatasetBuilder") -> None:
    """Downloads (or takes the archives brought by hand) and prepares.

    Raises:
      DataError: the folder cannot be written to, no network, or the preparation fails.
    """
    import tensorflow as tf
    from tensorflow_datasets.core.download import download_manager, extractor
    from tensorflow_datasets.core.download import util as download_util

    root = pathlib.Path(builder.data_dir_root)
    missing = _missing_archives(builder, root)
    _check_network(builder.name, root, missing)
    _check_writable(builder.name, root)
    if missing:
        _log.warning("Downloading %s to %r; this can take a while.", builder.name, str(root))
    try:
        with _no_leftovers(root, builder.name):
            builder.download_and_prepare()
    except download_manager.NonMatchingChecksumError as error:
        raise decoded.DataError(
            f"{_first_line(error)} The file is cut short or another one; delete it and "
            "fetch it again."
        ) from error
    except ImportError as error:
        raise decoded.DataError(
            f"Preparing {builder.name} needs a Python package that is missing: "
            f"{_first_line(error)}."
        ) from error
    except (
        OSError,  # requests' exceptions are OSErrors too
        tf.errors.OpError,  # TFDS writes with TensorFlow, also onto a full disk
        AssertionError,
        ValueError,
        download_util.DownloadError,
        extractor.ExtractError,
    ) as error:
        raise decoded.DataError(
            f"{builder.name} could not be downloaded and prepared in {root} "
            f"({type(error).__name__}: {_first_line(error)}). "
            + _by_hand(builder.name, root, list(missing.values()))
        ) from error


def _missing_archives(builder: "tfds.core.DatasetBuilder", root: pathlib.Path) -> dict[str, str]:
    """url → file name of every archive that does not lie in `downloads/manual/`."""
    archives = {
        url: info.filename or os.path.basename(urllib.parse.urlsplit(url).path)
        for url, info in (builder.url_infos or {}).items()
    }
    manual = root / "downloads" / "manual"
    return {url: name for url, name in archives.items() if not _is_there(manual / name)}


def _is_there(archive: pathlib.Path) -> bool:
    try:
        regular_files.check(archive)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise decoded.DataError(
            f"{archive} cannot be read: {error.strerror}. Remove it, or put the archive in its "
            "place."
        ) from error
    return True


def _check_network(name: str, root: pathlib.Path, missing: dict[str, str]) -> None:
    """Refuses to download where a host does not answer; behind a proxy, the proxy has to."""
    deadline = time.monotonic() + NETWORK_CHECK_SECONDS
    for host, port in sorted({_endpoint(url) for url in missing}):
        if not host_reachable(host, port, max(0.1, deadline - time.monotonic())):
            raise decoded.DataError(
                f"{name} is not in {root}, and {host} cannot be reached to download it. "
                + _by_hand(name, root, list(missing.values()))
            )


def _endpoint(url: str) -> tuple[str, int]:
    """The host and port that are connected to for a download: the proxy's, where there is one.

    Raises:
      DataError: the variable that names the proxy holds no address.
    """
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if proxies.get(kind) and not urllib.request.proxy_bypass(parts.hostname or ""):
        return _address_of_proxy(f"{kind}_proxy", proxies[kind])
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def _address_of_proxy(variable: str, value: str) -> tuple[str, int]:
    """The host and port that the value of an environment variable names."""
    with contextlib.suppress(ValueError):  # of a port or a bracket
        parts = urllib.parse.urlsplit(value if "//" in value else f"http://{value}")
        host, port = parts.hostname or "", parts.port or _PROXY_PORTS.get(parts.scheme)
        if parts.scheme in _PROXY_PORTS and re.fullmatch(r"[\w.:-]*\w\.?", host, re.ASCII):
            return host, port
    raise decoded.DataError(  # without the value, which may have a password in it
        f"The environment variable {variable} (or {variable.upper()}) is not the address of a "
        "proxy, such as http://proxy.example:3128. Correct it, or unset it if there is none."
    )


def host_reachable(host: str, port: int, timeout_seconds: float) -> bool:
    """Whether a TCP connection to the host opens within `timeout_seconds`."""
    connected = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), timeout=timeout_seconds).close()
            connected.set()

    # In a thread, because the look-up of a name heeds no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return connected.is_set()


def _by_hand(name: str, root: pathlib.Path, archives: list[str]) -> str:
    manual = root / "downloads" / "manual"
    if name == "cifar10":
        ways = (
            f"Bring the archive by hand: put cifar-10-binary.tar.gz in {manual}/, or unpack it so "
            f"that {root / cifar10_binary.FOLDER}/ exists."
        )
    elif archives:
        shown = ", ".join(archives[:3]) + (" …" if len(archives) > 3 else "")
        ways = f"Bring the archives by hand: put {shown} in {manual}/."
    else:
        ways = "Point `data_dir` to a folder where TFDS has prepared it."
    return f"{ways} dataset=shapes needs no files at all."


def _check_writable(name: str, root: pathlib.Path) -> None:
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise decoded.DataError(
            f"{name} is not prepared in {root}, and {existing} cannot be written to. Point "
            "`data_dir` to a folder that holds it prepared, or to one that can be written to."
        )


@contextlib.contextmanager
def _no_leftovers(root: pathlib.Path, name: str) -> Iterator[None]:
    """Removes what a failed preparation has begun: its partial downloads and new, empty folders.

    What another process is working on stays. TFDS itself removes the folder that it prepares in.
    """
    before = set(_preparation_folders(root, name))
    with _noted_uuids() as drawn:
        try:
            yield
        except BaseException:
            new = set(_preparation_folders(root, name)) - before
            for path in sorted(new, key=lambda path: len(path.parts), reverse=True):
                if any(own.hex in path.name for own in drawn):
                    shutil.rmtree(path, ignore_errors=True)
                elif not any(map(_is_temporary, path.relative_to(root).parts)):
                    with contextlib.suppress(OSError):  # rmdir removes empty folders only
                        path.rmdir()
            raise


@contextlib.contextmanager
def _noted_uuids() -> Iterator[list[uuid.UUID]]:
    """The UUIDs that this process draws: TFDS names its temporary folders by them."""
    drawn, uuid4 = [], uuid.uuid4

    def noted():
        drawn.append(uuid4())
        return drawn[-1]

    uuid.uuid4 = noted
    try:
        yield drawn
    finally:
        uuid.uuid4 = uuid4


def _is_temporary(folder_name: str) -> bool:
    return ".tmp." in folder_name or folder_name.startswith("incomplete.")


def _preparation_folders(root: pathlib.Path, name: str) -> list[pathlib.Path]:
    """The folders that TFDS makes on the way, without walking through extracted archives."""
    downloads, extracted = root / "downloads", root / "downloads" / "extracted"
    patterns = [(extracted, "*"), (downloads / name, "**/*"), (root / name, "**/*")]
    made = [root, downloads, extracted, downloads / name, root / name]
    inside = [path for base, glob in patterns for path in base.glob(glob)]
    return [path for path in (*made, *inside) if path.is_dir()]


def identity(builder: "tfds.core.DatasetBuilder", split: str) -> dict[str, Any] | None:
    """What the decoded split depends on, as JSON values: the set's version and the split's files.

    Returns None where there are no files to tell one state of the data from another (TFDS's mocked
    data); such a split is not to be cached.

    Raises:
      DataError: the set has no such split; a file is missing, or is not one; the numbers of
        examples cannot be those of the files.
    """
    splits = builder.info.splits
    if not splits:
        return None
    if split not in splits:
        raise no_such_split(builder.name, split, splits)
    files = tfds_description.shards(builder, split)
    return {
        "source": "tfds",
        "name": builder.info.full_name,
        "version": str(builder.version),
        "split": split,
        "class_names": builder.info.features["label"].names,  # of a file of their own
        "data_path": os.path.realpath(builder.data_path),
        "files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in files],
    }


def no_such_split(name: str, split: str, splits: Iterable[str]) -> decoded.NoSuchSplitError:
    """The error for a split that a data set does not have, with those that it has."""
    return decoded.NoSuchSplitError(
        f"dataset={name} has no split {split!r}; it has {', '.join(splits)}"
    )


def read(builder: "tfds.core.DatasetBuilder", split: str) -> decoded.Decoded:
    """Decodes one split, in the order of the files, which is the same every time.

    Returns:
      images: uint8 [n, height, width, channels], labels: int32 [n], and the label's class names.

    Raises:
      DataError: the split would not fit in memory, or its files are damaged.
    """
    import tensorflow as tf

    shape = builder.info.features["image"].shape
    count = _num_examples(builder, split)
    decoded.check_memory(
        f"dataset={builder.name} is too large: {count:,} images of {list(shape)}",
        count * math.prod(shape),
    )
    images, labels = decoded.empty((count, *shape)), np.empty(count, np.int64)
    first = 0
    where = f"{builder.name} in {builder.data_path}"
    damaged = "The files are damaged; copy them again, or let them be prepared again."
    try:
        # Not TFDS's own batches: those fill up an image that is too small with black.
        batches = _in_order(builder, split).batch(_examples_at_a_time(shape))
        for batch in batches.as_numpy_iterator():
            place = slice(first, first + len(batch["label"]))
            if place.stop <= count:
                images[place], labels[place] = batch["image"], batch["label"]
            first = place.stop
    except tf.errors.OpError as error:
        what = _first_wrong_example(builder, split) or _first_line(error)
        raise decoded.DataError(f"{where} cannot be decoded: {what} {damaged}") from error
    if first != count:
        raise decoded.DataError(
            f"{where}: {split} has {first:,} examples, but {count:,} were expected. {damaged}"
        )
    if not count:
        raise decoded.DataError(f"{where}: {split} is empty.")
    names = tuple(builder.info.features["label"].names)
    decoded.check(decoded.Decoded(images, labels, names), f"{builder.name}, {split}")
    return decoded.Decoded(images, labels.astype(np.int32), names)  # all are below len(names)


def has_one_size(builder: "tfds.core.DatasetBuilder") -> bool:
    """Whether all images of a set have the same height and width."""
    return None not in builder.info.features["image"].shape


class Pictures:
    """The encoded pictures of one split; a `store.Source`.

    A set that TFDS prepared as ArrayRecord files is read where it is.

    Attributes:
      description, identity, class_names, num_examples, num_bytes, files: see `store.Source`.
    """

    def __init__(self, builder: "tfds.core.DatasetBuilder", split: str):
        """
        Raises:
          DataError: as `identity`; or the split is empty.
        """
        self._builder, self._split = builder, split
        found = identity(builder, split)
        where = f"TFDS {builder.info.full_name} in {builder.data_dir_root}"
        if found is None or not builder.info.splits[split].num_examples:
            raise decoded.DataError(f"{where}: {split} is empty.")
        self.files = self._files([path for path, *_ in found["files"]])
        how = "as they came" if self.files is None else "read in place"
        self.description, self.identity = where, found | {"pictures": how}
        self.class_names = tuple(builder.info.features["label"].names)
        self.num_examples = builder.info.splits[split].num_examples
        self.num_bytes = sum(size for _, size, _ in found["files"])

    def _files(self, paths: Sequence[str]) -> store.Files | None:
        counts = list(self._builder.info.splits[self._split].shard_lengths)
        try:
            path = next(path for path, count in zip(paths, counts, strict=True) if count)
            if not (_is_array_record(self._builder) and store.one_by_one(path)):
                return None
        except (OSError, RuntimeError) as error:
            raise decoded.DataError(f"{path} cannot be read: {_first_line(error)}") from error
        return store.Files(paths, counts, _taking_pictures_out(), tfds_description.REMEDY)

    def examples(self, first: int) -> Iterator[store.Example]:
        """As `store.Source.examples`.

        Raises:
          DataError: the files are damaged.
        """
        import tensorflow as tf
        import tensorflow_datasets as tfds

        where = f"{self._builder.name} in {self._builder.data_path}, {self._split}"
        skipping = {"image": tfds.decode.SkipDecoding()}
        count = first - 1  # of the last example
        try:
            found = _in_order(self._builder, self._split, skipping).skip(first)
            for count, example in enumerate(found.as_numpy_iterator(), start=first):
                if count == self.num_examples:
                    break
                label = int(example["label"])
                if not 0 <= label < len(self.class_names):
                    raise decoded.DataError(f"{where}: example {count} has label {label}.")
                yield store.Example(f"{self._split}/{count}", label, example["image"])
        except tf.errors.OpError as error:
            raise decoded.DataError(
                f"{where} cannot be read after {count + 1} examples: {_first_line(error)}. The "
                "files are damaged; copy them again, or let them be prepared again."
            ) from error
        if count + 1 != self.num_examples:
            more = "more" if count + 1 > self.num_examples else f"{count + 1:,}"
            raise decoded.DataError(
                f"{where}: has {more} examples, but {self.num_examples:,} were expected. The files "
                "are damaged; copy them again, or let them be prepared again."
            )


def _num_examples(builder: "tfds.core.DatasetBuilder", split: str) -> int:
    splits = builder.info.splits
    if splits:
        return splits[split].num_examples
    return sum(1 for _ in _in_order(builder, split))  # TFDS's mocked data


def _examples_at_a_time(shape: tuple[int, ...]) -> int:
    return max(1, _READ_BYTES // math.prod(shape))


def _is_array_record(builder: "tfds.core.DatasetBuilder") -> bool:
    return builder.info.as_proto.file_format == "array_record"


def _taking_pictures_out() -> Callable[[bytes], bytes]:
    """What takes the encoded picture out of an example as TFDS writes it."""
    import tensorflow as tf
    from google.protobuf import message

    def picture(record: bytes) -> bytes:
        try:
            found = tf.train.Example.FromString(record).features.feature["image"].bytes_list.value
        except message.DecodeError as error:
            raise ValueError("a record is not an example") from error
        if len(found) != 1:
            raise ValueError(f"an example has {len(found)} images")
        return found[0]

    return picture


def _in_order(builder: "tfds.core.DatasetBuilder", split: str, decoders=None):
    """The split's images and labels in the order of its files."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    wanted = tfds.decode.PartialDecoding({"image": True, "label": True}, decoders)
    if _is_array_record(builder):  # which TFDS does not read as a tf.data.Dataset
        paths = [path for path, _ in tfds_description.shards(builder, split)]
        features = wanted.extract_features(builder.info.features)
        return tf.data.Dataset.from_generator(
            lambda: store.records(paths), output_signature=tf.TensorSpec([], tf.string)
        ).map(functools.partial(features.deserialize_example, decoders=wanted.decoders))
    try:
        return builder.as_dataset(
            split=split,
            shuffle_files=False,
            decoders=wanted,
            read_config=tfds.ReadConfig(
                interleave_cycle_length=1,
                try_autocache=False,
                assert_cardinality=False,  # `read` counts
            ),
        )
    except Exception as error:  # whatever the reader of a file format raises
        raise decoded.DataError(
            f"{builder.name} in {builder.data_path} cannot be read "
            f"({type(error).__name__}: {_first_line(error)}). Copy it again, or remove that folder "
            "and let it be prepared again."
        ) from error


def _first_wrong_example(builder: "tfds.core.DatasetBuilder", split: str) -> str | None:
    """The index of the first example that cannot be decoded, and why."""
    import tensorflow as tf

    decoded_so_far = 0
    try:
        for _ in _in_order(builder, split):
            decoded_so_far += 1
    except tf.errors.OpError as error:
        return f"example {decoded_so_far} of {split}: {_first_line(error)}"
    return None


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)  # TensorFlow names its operations
