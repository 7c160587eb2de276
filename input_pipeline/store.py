"""Sets of encoded pictures on disk, with random access.

A store is a folder: the pictures' bytes as they came, in ArrayRecord files of PICTURES_PER_SHARD
each (`group_size:1`, so that one is read without its neighbours), `index.npz` with what a step
needs to know of each before it is read, and `store.json`, which is written last. Where a source
already has its pictures in such files, they are read there, and the store has the rest. While a
store is made, its folder's name ends in `.unfinished`; if that is cut off, its finished shards stay
and are used again. So a store is there whole or not at all.

It is made once, from a `Source`, and identified by what that source is. Deleting it is always safe.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tqdm
from array_record.python import array_record_module

from towers import container_limits

from . import cache, decoded, pictures, regular_files

FORMAT = 2  # to be raised when a store's files change; older ones are then made again
PICTURES_PER_SHARD = 16384
MOST_OPEN_FILES = 512  # of one store; most systems let a process have 1,024
UNFINISHED = ".unfinished"

_LOOKED_AT_AHEAD = 32  # pictures
_RECORDS_AT_A_TIME = 64  # where all are read in order
_END_OF_NAME = "\0"  # which no file name has
_MOST_NAMED = 10
_SPARE = 1.05  # on disk, for what ArrayRecord and the index add to the pictures themselves
_INDEX_BYTES = 64  # of a picture, its name among them, where it is read in place
_WAITS_SECONDS = 0.5  # between two checks whether another process has made the store

_NO_FILE = (FileNotFoundError, NotADirectoryError, regular_files.NotRegularError)

_log = logging.getLogger(__name__)


class _Damaged(decoded.DataError):
    """A store is not as it was written."""


class Example(NamedTuple):
    """A picture of a source.

    Attributes:
      name: for a person to find it by, such as its path below the folder.
      label: index into the source's class names.
      content: the encoded picture; or why it cannot be read.
    """

    name: str
    label: int
    content: bytes | OSError


class Files(NamedTuple):
    """ArrayRecord files that hold pictures, one in each record.

    Attributes:
      paths: of the files, in order.
      counts: records in each.
      picture: takes the encoded picture out of a record; raises ValueError where there is none.
      remedy: what a person can do when a file cannot be read, as a sentence.
    """

    paths: Sequence[str]
    counts: Sequence[int]
    picture: Callable[[bytes], bytes]
    remedy: str


class Source(Protocol):
    """What a store is made from.

    Attributes:
      description: one line for a person.
      identity: everything that the store depends on, as JSON values.
      class_names: one per class.
      num_examples: how many there are.
      num_bytes: of all pictures together, about.
      files: where the pictures already lie, in the order of `examples`; None has them copied.
    """

    description: str
    identity: Mapping[str, Any]
    class_names: Sequence[str]
    num_examples: int
    num_bytes: int
    files: Files | None

    def examples(self, first: int) -> Iterator[Example]:
        """The examples from number `first` on, in an order that is the same every time."""


class Index(NamedTuple):
    """What is known of each picture without reading it.

    Attributes:
      labels: int32 [n].
      sizes: int32 [n, 2], height and width as it is to be seen.
      orientations: uint8 [n], of EXIF.
      kinds: uint8 [n], places in `pictures.FORMATS`.
    """

    labels: np.ndarray
    sizes: np.ndarray
    orientations: np.ndarray
    kinds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Store:
    """A store that is ready.

    Attributes:
      path: its folder.
      files: that hold its pictures: its own, or those of its source.
      class_names: one per class.
      index: of all pictures.
      fingerprint: SHA-256 in hex over classes, labels and pictures; two stores of the same ones
        have the same, whatever they were made from.
    """

    path: pathlib.Path
    files: Files
    class_names: tuple[str, ...]
    index: Index
    fingerprint: str

    def __len__(self) -> int:
        return len(self.index.labels)

    @functools.cached_property
    def reader(self) -> "Reader":
        """Reads its pictures."""
        return Reader(self.files)

    def names(self) -> list[str]:
        """The names of all pictures, in order.

        Raises:
          DataError: their file is gone.
        """
        try:
            text = regular_files.read(self.path / "names").decode("utf-8", "surrogateescape")
        except OSError as error:
            raise decoded.DataError(f"{self.path / 'names'}: {_reason(error)}") from error
        return text.split(_END_OF_NAME)[:-1]


class Reader:
    """Reads pictures by their numbers, by any number of threads.

    The MOST_OPEN_FILES that were read last stay open.
    """

    def __init__(self, files: Files):
        """
        Args:
          files: that hold the pictures, numbered through.
        """
        self._files = files
        self._ends = np.cumsum(np.asarray(files.counts, np.int64))
        self._open: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()  # of `_open`

    def __call__(self, ids: np.ndarray) -> list[bytes]:
        """The encoded pictures of these numbers, in their order.

        Raises:
          DataError: a file is gone or damaged.
        """
        ids = np.asarray(ids, np.int64)
        places_of = collections.defaultdict(list)
        for place, file in enumerate(np.searchsorted(self._ends, ids, side="right")):
            places_of[int(file)].append(place)
        found: list[bytes] = [b""] * len(ids)
        for file, places in places_of.items():
            first = self._ends[file] - self._files.counts[file]
            rows = [int(ids[place] - first) for place in places]
            for place, content in zip(places, self._read(file, rows), strict=True):
                found[place] = content
        return found

    def _read(self, file: int, rows: list[int]) -> list[bytes]:
        try:
            return [self._files.picture(record) for record in self._reader(file).read(rows)]
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise decoded.DataError(
                f"{self._files.paths[file]} cannot be read: {_reason(error)}. {self._files.remedy}"
            ) from error

    def _reader(self, file: int):
        with self._lock:
            found = self._open.pop(file, None)
            if found is None:
                found = _opened(self._files.paths[file])
                if found.num_records() != self._files.counts[file]:
                    raise ValueError(
                        f"it has {found.num_records():,} records instead of "
                        f"{self._files.counts[file]:,}"
                    )
            self._open[file] = found
            if len(self._open) > MOST_OPEN_FILES:
                self._open.popitem(last=False)  # closed once no thread reads it
            return found


def _opened(path: str | os.PathLike):
    regular_files.check(path)
    return array_record_module.ArrayRecordReader(os.fspath(path), "readahead_buffer_size:0")


def records(paths: Sequence[str]) -> Iterator[bytes]:
    """The records of ArrayRecord files, in order.

    Raises:
      OSError, RuntimeError: a file is gone or damaged.
    """
    for path in paths:
        reader = _opened(path)
        for first in range(0, reader.num_records(), _RECORDS_AT_A_TIME):
            yield from reader.read(first, min(first + _RECORDS_AT_A_TIME, reader.num_records()))


def one_by_one(path: str) -> bool:
    """Whether a record of an ArrayRecord file is read without its neighbours.

    Raises:
      OSError, RuntimeError: the file is gone or damaged.
    """
    return "group_size:1," in f"{_opened(path).writer_options_string()},"


def _own_files(path: pathlib.Path, count: int) -> Files:
    """Of a store whose pictures were copied."""
    starts = range(0, count, PICTURES_PER_SHARD)
    return Files(
        [str(path / shard_name(number)) for number in range(len(starts))],
        [min(PICTURES_PER_SHARD, count - start) for start in starts],
        bytes,
        f"Remove {path}: the next start makes it again from its pictures.",
    )


def shard_name(number: int) -> str:
    """The file of the pictures from `number * PICTURES_PER_SHARD` on."""
    return f"pictures-{number:05d}.array_record"


def default_folder() -> pathlib.Path:
    """Where stores are made by default: in the user's cache.

    Raises:
      OSError: the user's home is unknown.
    """
    return cache.folder() / "stores"


def open_or_make(
    name: str, source: Source, folder: str | os.PathLike | None = None, read_only: bool = False
) -> Store:
    """The store of a source, made now if it does not exist.

    Args:
      name: readable, for people who look into the folder.
      source: what it is made from.
      folder: of all stores; None for `default_folder`.
      read_only: refuse a store that would have to be made.

    Raises:
      DataError: it does not exist and `read_only`; pictures cannot be used, and are named; or it
        cannot be written.
    """
    try:
        root = pathlib.Path(os.path.expanduser(folder)) if folder else default_folder()
    except OSError as error:
        raise decoded.DataError(f"{error}; name a folder for the store with `store_dir`") from error
    path = root / cache.key(name, {"format": FORMAT} | dict(source.identity))
    found = _open_if_sound(path, source, read_only)
    if found is not None:
        return found
    if read_only:
        raise decoded.DataError(
            f"{source.description}: its pictures are not in a store in {root} yet, and a dry run "
            "(`read_only`) makes none. Train once without it."
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            found = _open_if_sound(path, source, read_only)  # another process may have made it
            if found is None:
                shutil.rmtree(path, ignore_errors=True)  # what is damaged
                _check_space(root, source, path)
                _make(path, source)
                found = _open(path, source)
    except OSError as error:
        raise _cannot_be_written(path, _reason(error)) from error
    return found


def _cannot_be_written(path: pathlib.Path, reason: str) -> decoded.DataError:
    return decoded.DataError(
        f"the store {path} cannot be written: {reason}. What is finished stays, and the next start "
        "continues from there; `store_dir` names another place."
    )


def _open_if_sound(path: pathlib.Path, source: Source, read_only: bool) -> Store | None:
    """The store at `path`; None where there is none, or one that must be made again."""
    if not os.path.lexists(path):
        return None
    try:
        return _open(path, source)
    except _Damaged as error:
        if read_only:
            raise
        _log.warning("%s; making it again.", error)
        return None


def _open(path: pathlib.Path, source: Source) -> Store:
    """Opens a store, and checks all of it but the pictures, which have checksums of their own.

    Raises:
      DataError: it is damaged, or the system does not let it be read.
    """
    try:
        about = json.loads(regular_files.read(path / "store.json"))
        digest = about.pop("sha256")
        if about["format"] != FORMAT:
            raise ValueError(f"it has format {about['format']}, but this version needs {FORMAT}")
        if digest != _sha256(about):
            raise ValueError("store.json is not what was written")
        if about["key"] != path.name:
            raise ValueError(f"it was made as {about['key']}, from other pictures")
        for name, size in about["sizes"].items():
            actual = regular_files.check(path / name).st_size
            if actual != size:
                raise ValueError(f"{name} has {actual} bytes instead of {size}")
        content = regular_files.read(path / "index.npz")
        if hashlib.sha256(content).hexdigest() != about["index_sha256"]:
            raise ValueError("index.npz is not what was written")
        with regular_files.open_to_read(path / "index.npz") as file:
            arrays = np.load(file, allow_pickle=False)
            index = Index(*(arrays[name] for name in Index._fields))
        files = source.files or _own_files(path, len(index.labels))
        return Store(path, files, tuple(about["class_names"]), index, about["fingerprint"])
    except Exception as error:  # whatever a damaged file makes json and NumPy raise
        is_damage = not isinstance(error, OSError | MemoryError) or isinstance(error, _NO_FILE)
        kind = _Damaged if is_damage else decoded.DataError
        raise kind(f"the store {path} cannot be used: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).strip().splitlines()[0][:300].rstrip(".")


def _sha256(about: Mapping) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _alone(path: pathlib.Path) -> Iterator[None]:
    """While entered, no other process makes the same store; waits for one that does."""
    with open(f"{path}.lock", "w") as file:
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise decoded.DataError(
                        f"{path.parent}: this file system has no locks, without which two "
                        "processes may make one store; `store_dir` names another place."
                    ) from error
            if not said:
                print(f"waiting for another process, which is making {path}", flush=True)
                said = True
            time.sleep(_WAITS_SECONDS)
        yield


def _check_space(root: pathlib.Path, source: Source, path: pathlib.Path) -> None:
    unfinished = path.with_name(path.name + UNFINISHED)
    done = sum(file.stat().st_size for file in unfinished.glob("*")) if unfinished.exists() else 0
    in_place = source.files is not None
    takes = _SPARE * (source.num_examples * _INDEX_BYTES if in_place else source.num_bytes)
    free = shutil.disk_usage(root).free
    if takes - done > free:
        raise decoded.DataError(
            f"the store of {source.description} takes {takes / 1e9:.2f} GB in "
            f"{root}, but {free / 1e9:.2f} GB are free there; `store_dir` names another place."
        )


def _make(path: pathlib.Path, source: Source) -> None:
    """Makes a store beside `path`, then gives it its name."""
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.mkdir(exist_ok=True)
    shards = -(-source.num_examples // PICTURES_PER_SHARD)
    parts = []
    for number in range(shards):
        part = _finished_part(unfinished, number, source)
        if part is None:
            break
        parts.append(part)
    first = len(parts) * PICTURES_PER_SHARD
    with contextlib.closing(_looked_at(source.examples(first))) as looked_at:
        bar = tqdm.tqdm(
            looked_at,
            desc="pictures into the store" if source.files is None else "pictures checked",
            total=source.num_examples,
            initial=min(first, source.num_examples),
            unit="",
            disable=not sys.stderr.isatty(),
            file=sys.stderr,
        )
        taken, unusable = iter(bar), []
        for number in range(len(parts), shards):
            count = min(PICTURES_PER_SHARD, source.num_examples - number * PICTURES_PER_SHARD)
            in_place = source.files is not None
            part = _write_part(unfinished, number, taken, count, unusable, in_place)
            parts.append(part)
        next(taken, None)  # so that a source notices that it has more pictures than it says
        bar.close()
    if unusable:
        _refuse(path, source, unusable)
    _finish(unfinished, source, parts)
    try:
        os.rename(unfinished, path)
    except OSError:  # another machine may have been first, whose lock this one did not see
        if not (path / "store.json").exists():
            raise
    for number in range(shards):
        _part_file(path, number).unlink(missing_ok=True)


def _refuse(path: pathlib.Path, source: Source, unusable: Sequence[str]) -> None:
    """Says which pictures cannot be used; all of them are in a file."""
    listing = path.with_name(path.name + ".unusable.txt")
    listing.write_text("".join(f"{line}\n" for line in unusable), "utf-8", "surrogateescape")
    shutil.rmtree(path.with_name(path.name + UNFINISHED), ignore_errors=True)
    shown = "; ".join(unusable[:_MOST_NAMED])
    more = (
        f"; and {len(unusable) - _MOST_NAMED:,} more, in {listing}"
        if (len(unusable) > _MOST_NAMED)
        else ""
    )
    raise decoded.DataError(
        f"{source.description}: {len(unusable):,} of {source.num_examples:,} pictures cannot be "
        f"used: {shown}{more}. Repair them, or take them out of the set."
    )


class _Part(NamedTuple):
    """What a shard says of itself, in a file of its own beside it."""

    index: Index
    names: str
    sha256: str


def _part_file(unfinished: pathlib.Path, number: int) -> pathlib.Path:
    return unfinished / f"part-{number:05d}.npz"


def _finished_part(unfinished: pathlib.Path, number: int, source: Source) -> _Part | None:
    """A shard that was finished before making the store was cut off."""
    count = min(PICTURES_PER_SHARD, source.num_examples - number * PICTURES_PER_SHARD)
    try:
        with regular_files.open_to_read(_part_file(unfinished, number)) as file:
            arrays = np.load(file, allow_pickle=False)
            index = Index(*(arrays[name] for name in Index._fields))
            names, sha256 = arrays["names"].tobytes(), str(arrays["sha256"])
            size = int(arrays["size"])
        shard = unfinished / shard_name(number)
        whole = source.files is not None or shard.stat().st_size == size
    except Exception:  # whatever a torn file makes NumPy raise: it is made again
        return None
    if not whole or len(index.labels) != count:
        return None
    return _Part(index, names.decode("utf-8", "surrogateescape"), sha256)


def _write_part(
    unfinished, number: int, looked_at, count: int, unusable: list[str], in_place: bool
) -> _Part:
    """Writes one shard, and when it is whole, the file beside it that says so.

    For pictures that are read in place, only that file is written.
    """
    path = unfinished / shard_name(number)
    digest, rows, names = hashlib.sha256(), [], []
    with contextlib.nullcontext() if in_place else _shard(path) as write:
        for _ in range(count):
            example, header = next(looked_at, (None, None))
            if example is None:
                raise decoded.DataError("the source has fewer pictures than it says")
            names.append(example.name)
            if isinstance(header, str):
                unusable.append(f"{example.name} {header}")
                continue
            if write is not None:
                write(example.content)
            rows.append((example.label, header))
            digest.update(np.array([example.label, header.orientation], "<i4").tobytes())
            digest.update(np.array([len(example.content)], "<i8").tobytes())
            digest.update(example.content)
    headers = [header for _, header in rows]
    index = Index(
        np.array([label for label, _ in rows], np.int32),
        np.array([(h.height, h.width) for h in headers], np.int32).reshape(-1, 2),
        np.array([h.orientation for h in headers], np.uint8),
        np.array([h.kind for h in headers], np.uint8),
    )
    text = "".join(f"{name}{_END_OF_NAME}" for name in names)
    part = _Part(index, text, digest.hexdigest())
    file = _part_file(unfinished, number)
    with open(f"{file}.tmp", "wb") as open_file:
        np.savez(
            open_file,
            **index._asdict(),
            names=np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8),
            sha256=np.array(part.sha256),
            size=np.array(0 if in_place else path.stat().st_size),
        )
        open_file.flush()
        os.fsync(open_file.fileno())
    os.replace(f"{file}.tmp", file)
    return part


@contextlib.contextmanager
def _shard(path: pathlib.Path) -> Iterator[Callable[[bytes], None]]:
    """Yields what writes a picture into a shard, which afterwards is whole and on the disk.

    Raises:
      OSError: it cannot be written.
    """
    with _as_os_errors():
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    written = 0

    def write(picture: bytes) -> None:
        nonlocal written
        with _as_os_errors():
            writer.write(picture)
        written += 1

    yield write
    with _as_os_errors():
        writer.close()
        if written and _opened(path).num_records() != written:
            raise OSError(errno.EIO, f"{path.name} was not written whole")
    _sync(path)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """ArrayRecord's errors, as of a full disk, as what they are."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise OSError(errno.EIO, _reason(error)) from error


def _sync(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _looked_at(
    examples: Iterator[Example],
) -> Iterator[tuple[Example, pictures.Header | str]]:
    """Each example with its header, or with why it cannot be used; in order, several at a time."""

    def look(example: Example) -> pictures.Header | str:
        if isinstance(example.content, OSError):
            return f"cannot be read ({_reason(example.content)})"
        try:
            return pictures.check(example.content)
        except pictures.NoPicture as error:
            return str(error)

    waiting: collections.deque = collections.deque()
    threads = concurrent.futures.ThreadPoolExecutor(container_limits.available_cores())
    with pictures.without_pillows_warnings(), threads as pool:
        for example in examples:
            waiting.append((example, pool.submit(look, example)))
            if len(waiting) >= _LOOKED_AT_AHEAD:
                done, header = waiting.popleft()
                yield done, header.result()
        for done, header in waiting:
            yield done, header.result()


def _finish(unfinished: pathlib.Path, source: Source, parts: Sequence[_Part]) -> None:
    """Writes what is known of all shards together, and `store.json` last."""
    joined = Index(
        *(np.concatenate(columns) for columns in zip(*(p.index for p in parts), strict=True))
    )
    with open(unfinished / "index.npz", "wb") as file:
        np.savez(file, **joined._asdict())
    (unfinished / "names").write_text(
        "".join(part.names for part in parts), "utf-8", "surrogateescape"
    )
    text = json.dumps([list(source.class_names), [part.sha256 for part in parts]])
    copied = () if source.files else (shard_name(number) for number in range(len(parts)))
    names = ["index.npz", "names", *copied]
    index_bytes = (unfinished / "index.npz").read_bytes()
    about = {
        "format": FORMAT,
        "key": unfinished.name.removesuffix(UNFINISHED),
        "source": source.description,
        "class_names": list(source.class_names),
        "num_examples": len(joined.labels),
        "fingerprint": hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
        "index_sha256": hashlib.sha256(index_bytes).hexdigest(),
        "sizes": {name: (unfinished / name).stat().st_size for name in names},
    }
    about["sha256"] = _sha256(about)
    for name in ("index.npz", "names"):
        _sync(unfinished / name)
    with open(unfinished / "store.json", "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
