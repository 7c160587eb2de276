"""The files of a run: their names, how they are written, when a run may continue in them."""

import contextlib
import errno
import fcntl
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from towers import errors

# In config.json, once a run has a checkpoint: the step of the first. From then on the run has
# something to lose: it does not start over where its checkpoints are gone, nor with other settings.
FIRST_CHECKPOINT = "first_checkpoint"

_CONFIG = {"settings": dict, "resolved": dict, "defining": dict, "stretches": list}  # its parts
_PATTERN = re.compile(r"[*?\[\]\\]")  # to TensorFlow, in a path
# From a file system that cannot lock, as some network file systems cannot.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class RunFolderError(errors.UserError):
    """The folder cannot be used for this run; the message is for the person at the keyboard."""


class RunFolder:
    """Paths and small files of one run's folder.

    Attributes:
      path: the folder.
      shown: what messages call it.
      config, metrics, evaluations: `config.json`, `metrics.jsonl`, `eval.jsonl`.
      checkpoints: folder of the newest few checkpoints.
      final_model, final_summary: `final_model.keras`, `final_model.json`.
      lock: `training.lock`, which a training has locked.
    """

    def __init__(self, path: str | os.PathLike, argument: str = ""):
        """
        Args:
          path: of the folder, which need not exist.
          argument: what messages call it, such as `folder`.
        """
        self.path = Path(os.path.expanduser(path))
        self.shown = f"{argument}={self.path}" if argument else str(self.path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "eval.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.final_model = self.path / "final_model.keras"
        self.final_summary = self.path / "final_model.json"
        self.lock = self.path / "training.lock"
        self._locked: int | None = None  # a descriptor of the file, while this process trains

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other trainings out of the folder while entered; makes it if there is none.

        The lock is the kernel's, on `training.lock`, and ends with the process that holds it,
        however that ends; the file stays.

        Raises:
          RunFolderError: another process holds it, or the folder cannot be written to.
        """
        self.read_config()  # else the lock would be in a folder of another kind
        with writing(self.shown):
            is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._locked = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            self._acquire()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # it would hide why the run ends
                    if is_new and self._is_there() and os.listdir(self.path) == [self.lock.name]:
                        self.lock.unlink()  # the run left nothing
                        self.path.rmdir()
        finally:
            with contextlib.suppress(OSError):
                os.close(self._locked)
            self._locked = None

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{self.shown}: another process is training in it; wait for it, stop it, or choose "
                "another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise RunFolderError(f"{self.shown}: cannot be locked: {error.strerror}") from error
            print(
                f"{self.path}: this file system has no locks; make sure that no other training "
                "uses the folder",
                flush=True,
            )
        self.check_held()  # a run that left nothing may have removed it just now

    def check_held(self) -> None:
        """Refuses to continue in a folder that was removed, moved or replaced during the run.

        Raises:
          RunFolderError: it was.
        """
        if not self._is_there():
            raise RunFolderError(
                f"{self.shown}: it, or training.lock in it, was removed, moved or replaced during "
                "the run; nothing more is written there"
            )

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._locked), os.stat(self.lock))
        except OSError:
            return False

    def read_config(self) -> dict | None:
        """The run's configuration, or None where the folder holds no run.

        Raises:
          RunFolderError: `config.json` cannot be read, or the folder holds files but no run.
        """
        try:
            config = json.loads(self.config.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # All that a training killed in its first moments leaves.
            begun = {self.lock.name, _partial(self.config).name}
            if self.path.exists() and {path.name for path in self.path.iterdir()} - begun:
                raise RunFolderError(
                    f"{self.shown}: holds files but no run (no config.json); "
                    "name a run's folder, or a new one to train in"
                ) from None
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(f"{self.shown}: config.json cannot be read: {reason}") from error
        parts = config if isinstance(config, dict) else {}
        if not all(isinstance(parts.get(name), kind) for name, kind in _CONFIG.items()):
            raise RunFolderError(f"{self.shown}: its config.json is not that of a run")
        return config

    def read_final_summary(self) -> dict | None:
        """What a finished run left in `final_model.json`, or None where it has not finished.

        It counts as unfinished, and exports its model again, where one of both files is gone or
        damaged.
        """
        try:
            summary = json.loads(self.final_summary.read_text(encoding="utf-8"))
            is_whole = {"step", "weights_sha256"} <= set(summary)
        except (OSError, ValueError, TypeError):
            return None
        return summary if is_whole and zipfile.is_zipfile(self.final_model) else None

    def drop_metrics_after(self, step: int) -> None:
        """Removes lines of `metrics.jsonl` that a continued run will write again.

        A run killed between two checkpoints leaves lines after the one it restores, the last of
        them perhaps torn.
        """
        if self.metrics.exists():
            kept = [line for line in read_lines(self.metrics) if line["step"] <= step]
            _write(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


def check_path(path: str | os.PathLike) -> None:
    """Checks that TensorFlow takes a path for what it is: it reads some characters as patterns.

    Raises:
      ValueError: it does not, or the path is not on this machine.
    """
    text = os.fspath(path)
    if "://" in text or _PATTERN.search(text):
        raise ValueError(
            f"folder={text}: must be a local path without the characters * ? [ ] and \\, which "
            "TensorFlow reads as patterns"
        )


def write_json(path: Path, content: Mapping) -> None:
    """Writes `content` whole or not at all.

    Raises:
      RunFolderError: it cannot be written.
    """
    _write(path, json.dumps(content, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new file that gets the name `path` once it is whole and on the disk.

    Raises:
      RunFolderError: it cannot be written.
    """
    partial = _partial(path)
    try:
        with writing(path):
            yield partial
            with open(partial, "rb") as file:
                os.fsync(file.fileno())  # else the file may be empty after a power cut
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # it would hide why the file could not be written
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def append_line(path: Path, content: Mapping) -> None:
    """Adds one JSON object as a line, in the place of a last one that is torn.

    A killed process, or a full disk, leaves a torn line.

    Raises:
      RunFolderError: it cannot be written.
    """
    with writing(path), open(path, "ab+") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: two evaluations may write
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(content) + "\n").encode())


@contextlib.contextmanager
def writing(what: Path | str) -> Iterator[None]:
    """Turns the system's error for a file or folder that cannot be written into one line.

    Raises:
      RunFolderError: there was such an error while this was entered.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{what}: cannot be written: {error.strerror or error}") from error


def read_lines(path: Path) -> list[dict]:
    """The JSON objects of a `.jsonl` file; a torn last line is left out.

    Raises:
      RunFolderError: another line is not one.
    """
    *whole, _ = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            is_one = isinstance(line["step"], int)
        except (ValueError, TypeError, KeyError):
            is_one = False
        if not is_one:
            raise RunFolderError(
                f"{path}: line {number} is not one that a run writes; repair the file, or restore "
                "a copy of it"
            )
        lines.append(line)
    return lines
