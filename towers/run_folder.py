"""The files of a run: what they are called, how they are written, when a run may go on in them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


class RunFolderError(Exception):
    """The folder cannot be used for this run; the message is for the person at the keyboard."""


class RunFolder:
    """Paths and small files of one `--train_dir`.

    Attributes:
      path: the folder.
      config, metrics, evaluations: `config.json`, `metrics.jsonl`, `eval.jsonl`.
      checkpoints: folder of the newest few checkpoints.
      train_events, eval_events: folders of TensorBoard event files.
      final_model, final_summary: `final_model.keras`, `final_model.json`.
    """

    def __init__(self, path: str):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.evaluations = self.path / "eval.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.train_events = self.path / "train"
        self.eval_events = self.path / "eval"
        self.final_model = self.path / "final_model.keras"
        self.final_summary = self.path / "final_model.json"

    def read_config(self) -> dict | None:
        """The run's configuration, or None where the folder holds no run.

        Raises:
          RunFolderError: the path is no folder, `config.json` cannot be read, or the folder holds
            files but no run.
        """
        try:
            config = json.loads(self.config.read_text(encoding="utf-8"))
            if isinstance(config, dict) and {"settings", "resolved"} <= set(config):
                return config
            raise RunFolderError(f"--train_dir={self.path}: its config.json is not that of a run")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RunFolderError(
                f"--train_dir={self.path}: config.json cannot be read: {reason}"
            ) from error
        if self.path.exists() and any(self.path.iterdir()):
            raise RunFolderError(
                f"--train_dir={self.path}: holds files but no run (no config.json); "
                "name a run's folder, or a new one to train in"
            )
        return None

    def read_final_summary(self) -> dict | None:
        """What a finished run left in `final_model.json`; None where it has not finished."""
        if not (self.final_summary.exists() and self.final_model.exists()):
            return None
        return json.loads(self.final_summary.read_text(encoding="utf-8"))

    def create(self, config: Mapping) -> None:
        """Makes the folder, if needed, and writes `config.json`.

        Raises:
          RunFolderError: it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.config, config)
        except OSError as error:
            raise RunFolderError(
                f"--train_dir={self.path}: cannot be written: {error.strerror}"
            ) from error

    def drop_metrics_after(self, step: int) -> list[dict]:
        """Removes lines of `metrics.jsonl` that a continued run will write again.

        A run killed between two checkpoints leaves lines after the one it restores, the last of
        them perhaps torn.

        Returns:
          The lines that are left.
        """
        if not self.metrics.exists():
            return []
        kept = [line for line in read_lines(self.metrics) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        _replace(self.metrics, text)
        return kept


def differences(old: Mapping, new: Mapping) -> list[str]:
    """`--name=new (the run has old)` for each setting that differs."""
    return [
        f"{_label(name)}{_as_flag(new.get(name))} (the run has {_as_flag(old.get(name))})"
        for name in {**old, **new}
        if _plain(old.get(name)) != _plain(new.get(name))
    ]


def _label(name: str) -> str:
    return f"--{name}=" if name.isidentifier() else f"{name} "  # not all of it is set by a flag


def _plain(value):
    return json.loads(json.dumps(value))  # a tuple and the list it is read back as are the same


def _as_flag(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def write_json(path: Path, content: Mapping) -> None:
    """Writes `content` whole or not at all."""
    _replace(path, json.dumps(content, indent=2) + "\n")


def append_line(path: Path, content: Mapping) -> None:
    """Adds one JSON object as a line."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def read_lines(path: Path) -> list[dict]:
    """The JSON objects of a `.jsonl` file; a torn last line is left out."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
