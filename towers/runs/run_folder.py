"""The files of a run: their names, how they are written, when a run may continue in them.

What cannot be read, written or used raises a RunFolderError, which names it.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from towers import errors

# In config.json, once a run has a checkpoint: the step of the first. From then on the run has
# something to lose: it does not start over where its checkpoints are gone, nor with other settings.
FIRST_CHECKPOINT = "first_checkpoint"

_CONFIG = {"settings", "resolved", "defining", "run_sha256", "runs_on"}  # what it always has
_PATTERN = re.compile(r"[*?\[\]\\]")  # to TensorFlow, in a path


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
        """The folder at `path`, which need not exist; messages call it by an argument's name."""
        self.path = Path(os.path.expanduser(path))
        self.shown = f"{argument}={self.path}" if argument else str(self.path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "eval.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.final_model = self.path / "final_model.keras"
        self.final_summary = self.path / "final_model.json"
        self.lock = self.path / "training.lock"
        self._locked: IO | None = None  # the file, while this process trains

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other trainings out of the folder while entered; makes it if there is none.

        The lock is the kernel's, on `training.lock`, and ends with the process that holds it,
        however that ends; the file stays.
        """
        self.read_config()  # else the lock would be in a folder of another kind
        with writing(self.shown):
            self.path.mkdir(parents=True, exist_ok=True)
            self._locked = open(self.lock, "a")  # noqa: SIM115
        try:
            self._acquire()
            yield
        finally:
            with contextlib.suppress(OSError):  # it would hide why the run ends
                self._locked.close()

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{self.shown}: another process trains in it; wait, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # As on some network file systems.
            print(
                f"{self.path}: cannot be locked ({error.strerror}); make sure that no other "
                "training uses the folder",
                flush=True,
            )

    def check_held(self) -> None:
        """Refuses to continue in a folder that was removed, moved or replaced during the run."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._locked.fileno()), os.stat(self.lock)):
                return
        raise RunFolderError(
            f"{self.shown}: it, or training.lock in it, was removed, moved or replaced during the "
            "run; nothing more is written there"
        )

    def read_config(self) -> dict | None:
        """The run's configuration, or None where the folder holds no run."""
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
        if not (isinstance(config, dict) and config.keys() >= _CONFIG):
            raise RunFolderError(f"{self.shown}: its config.json is not of a run of this version")
        return config

    def read_final_summary(self) -> dict | None:
        """What a finished run left in `final_model.json`; None where its model is not whole."""
        try:
            summary = json.loads(self.final_summary.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_whole = isinstance(summary, dict) and "step" in summary
        return summary if is_whole and zipfile.is_zipfile(self.final_model) else None

    def drop_metrics_after(self, step: int) -> None:
        """Removes lines of `metrics.jsonl` that a continued run will write again.

        A run killed between two checkpoints leaves lines after the one it restores, the last of
        them perhaps torn.
        """
        if self.metrics.exists():
            kept = [line for line in read_lines(self.metrics) if line["step"] <= step]
            with replacing(self.metrics) as partial:
                partial.write_text("".join(json.dumps(line) + "\n" for line in kept))


def check_path(path: str | os.PathLike) -> None:
    """Checks that TensorFlow takes a path for what it is; a ValueError says why it does not."""
    text = os.fspath(path)
    if "://" in text or _PATTERN.search(text):
        raise ValueError(
            f"folder={text}: must be a local path without TensorFlow's patterns, * ? [ ] and \\"
        )


def write_json(path: Path, content: Mapping) -> None:
    """Writes `content` whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new file that gets the name `path` once it is whole and on the disk."""
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
    """Adds one JSON object as a line, in the place of a last one that a full disk has torn."""
    with writing(path), open(path, "ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(content) + "\n").encode())


@contextlib.contextmanager
def writing(what: Path | str) -> Iterator[None]:
    """Turns the system's error for a file or folder that cannot be written into one line."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{what}: cannot be written: {error.strerror or error}") from error


def read_lines(path: Path) -> list[dict]:
    """The JSON objects of a `.jsonl` file, each of a step; a torn last line is left out."""
    *whole, _ = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            lines.append(line | {"step": line["step"]})
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{path}: line {number} is damaged; repair the file, or restore a copy of it"
            ) from error
    return lines
