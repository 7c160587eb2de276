"""The files of a run: their names, how they are written, when a run may continue in them."""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from towers import errors

FIRST_CHECKPOINT = "first_checkpoint"  # in config.json, once a run has one: its step

_CONFIG = {"settings": dict, "resolved": dict, "defining": dict, "stretches": list}  # its parts
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
      train_events, eval_events: folders of TensorBoard event files.
      final_model, final_summary: `final_model.keras`, `final_model.json`.
      lock: `training.lock`, there while a training is at work (run_lock.py).
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
        self.train_events = self.path / "train"
        self.eval_events = self.path / "eval"
        self.final_model = self.path / "final_model.keras"
        self.final_summary = self.path / "final_model.json"
        self.lock = self.path / "training.lock"

    def read_config(self) -> dict | None:
        """The run's configuration, or None where the folder holds no run.

        Raises:
          RunFolderError: `config.json` cannot be read, or the folder holds files but no run.
        """
        try:
            config = json.loads(self.config.read_text(encoding="utf-8"))
            if (
                isinstance(config, dict)
                and all(isinstance(config.get(name), kind) for name, kind in _CONFIG.items())
                and config["stretches"]
            ):
                return config
            raise RunFolderError(f"{self.shown}: its config.json is not that of a run")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(f"{self.shown}: config.json cannot be read: {reason}") from error
        # All that a training killed in its first moments leaves.
        begun = {self.lock.name, _partial(self.config).name}
        if self.path.exists() and {path.name for path in self.path.iterdir()} - begun:
            raise RunFolderError(
                f"{self.shown}: holds files but no run (no config.json); "
                "name a run's folder, or a new one to train in"
            )
        return None

    def read_final_summary(self) -> dict | None:
        """What a finished run left in `final_model.json`, or None where it has not finished.

        It counts as unfinished, and exports its model again, where one of both files is gone or
        `final_model.json` is not what a run writes.
        """
        try:
            summary = json.loads(self.final_summary.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_ours = isinstance(summary, dict) and {"step", "weights_sha256"} <= set(summary)
        return summary if is_ours and self.final_model.exists() else None

    def mark_saved(self, step: int) -> None:
        """Writes into `config.json` that the run has a checkpoint, the first at `step`.

        From then on the run has something to lose: it does not start over where its checkpoints are
        gone, nor with other settings.

        Raises:
          RunFolderError: `config.json` cannot be read or written.
        """
        config = self.read_config()
        if config is None:
            raise RunFolderError(f"{self.shown}: config.json is gone; put it back")
        write_json(self.config, config | {FIRST_CHECKPOINT: step})

    def remove_events(self) -> None:
        """Removes the TensorBoard files of an attempt that left no checkpoint.

        Raises:
          RunFolderError: one cannot be removed.
        """
        for folder in (self.train_events, self.eval_events):
            with writing(folder):
                for path in folder.glob("events.out.tfevents.*"):
                    path.unlink()

    def drop_metrics_after(self, step: int) -> None:
        """Removes lines of `metrics.jsonl` that a continued run will write again.

        A run killed between two checkpoints leaves lines after the one it restores, the last of
        them perhaps torn.
        """
        if not self.metrics.exists():
            return
        kept = [line for line in read_lines(self.metrics) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        _replace(self.metrics, text)


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
    _replace(path, json.dumps(content, indent=2) + "\n")


def append_line(path: Path, content: Mapping) -> None:
    """Adds one JSON object as a line, after the last whole line.

    Raises:
      RunFolderError: it cannot be written.
    """
    with writing(path), open(path, "ab+") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: two evaluations may write
        _end_last_line(file)
        file.write((json.dumps(content) + "\n").encode())


def _end_last_line(file: BinaryIO) -> None:
    """Ends a last line that lacks only its newline, and cuts off one that is torn.

    A killed process, or a full disk, leaves a torn line; editors leave out the last newline.
    """
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read() == b"\n":
        return
    file.seek(0)
    last = file.read().rpartition(b"\n")[2]
    if _parsed(last) is None:
        file.truncate(file.tell() - len(last))
    else:
        file.write(b"\n")


def _parsed(line: bytes) -> dict | None:
    """The object that a line of a `.jsonl` file holds; None for what no run writes."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


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
    *whole, last = path.read_bytes().split(b"\n")
    if _parsed(last) is not None:
        whole.append(last)  # it lacks only its newline
    lines = []
    for number, text in enumerate(whole, start=1):
        line = _parsed(text)
        if line is None or not isinstance(line.get("step"), int):
            raise RunFolderError(
                f"{path}: line {number} is not one that a run writes; repair the file, or restore "
                "a copy of it"
            )
        lines.append(line)
    return lines


def _replace(path: Path, text: str) -> None:
    partial = _partial(path)
    with writing(path):
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else the file may be empty after a power cut
        os.replace(partial, path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
