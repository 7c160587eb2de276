"""Checkpoints: the whole state of a run in TensorFlow's format, independent of towers.

Each is a folder, `step-<step>`. It gets this name only when all of its files are on the disk, and
loses it before the first of them is deleted: a folder of that name is complete. What is missing,
does not fit or cannot be written raises a CheckpointError, which names it.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from towers import errors
from towers.runs import fit_state

_STEP = re.compile(r"step-(\d+)")
_TEMPORARY = ".partial"  # ends the name of a folder that is being written or deleted
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # how a variable's name in a checkpoint ends
# What TensorFlow raises for a file that is missing, damaged, too short, or of another state.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError, AssertionError)


class CheckpointError(errors.UserError):
    """A checkpoint is missing or does not fit; the message is for the person at the keyboard."""


def save(state: fit_state.FitState, folder: Path, keep: int) -> None:
    """Saves a state as `step-<step>`, in the place of one that may be there; keeps the newest few.

    One process saves; others may read.
    """
    path = folder / f"step-{int(state.counter)}"
    temporary = Path(f"{path}{_TEMPORARY}")
    try:
        _checkpoint(state).write(_prefix(temporary))
        for written in (*temporary.iterdir(), temporary):
            _to_disk(written)
        if path.exists():
            shutil.rmtree(path.rename(f"{path}.old{_TEMPORARY}"))
        temporary.rename(path)
        _to_disk(folder)
    except (tf.errors.OpError, OSError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint {path} cannot be written: {errors.reason(error)}"
        ) from error
    for old in list(by_step(folder).values())[:-keep]:
        with contextlib.suppress(OSError):  # the next one to be saved tries again
            shutil.rmtree(Path(old).rename(f"{old}{_TEMPORARY}"))


def restore(state: fit_state.FitState, folder: Path) -> None:
    """Restores the newest checkpoint into the state, if there is one.

    Removes what a process has left that was killed while it wrote or deleted one.
    """
    for left in folder.glob(f"step-*{_TEMPORARY}"):
        shutil.rmtree(left, ignore_errors=True)
    if path := newest(folder):
        with _errors_of(path):
            status = _checkpoint(state).read(_prefix(path))
            # Called now: otherwise TensorFlow warns of each variable left, even after an error.
            status.expect_partial()
            status.assert_existing_objects_matched()
            status.assert_consumed()
        state.read()


def _checkpoint(state: fit_state.FitState) -> tf.train.Checkpoint:
    """Knows variables by their place in their part: Keras numbers names by what was built before.

    A part without variables is not in a file; restoring would look for it there.
    """
    parts = {name: part for name, part in state.parts().items() if part}
    return tf.train.Checkpoint(notes=[state.notes], **parts)


def _prefix(path: str | Path) -> str:
    """What TensorFlow calls the files in a checkpoint's folder."""
    return os.path.join(os.path.abspath(path), "state")


def _to_disk(path: Path) -> None:
    """Returns when a file, or the names in a folder, will outlast a loss of power."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be restored: {errors.reason(error)}"
        ) from error


def check_origin(path: str, run_sha256: str) -> None:
    """Checks that a checkpoint belongs to a run, whose hash is in the notes of its state."""
    with _errors_of(path):
        notes = tf.train.load_checkpoint(_prefix(path)).get_tensor(f"notes/0{_VALUE}")
    if json.loads(notes.decode()).get("run_sha256") != run_sha256:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run, with other settings or images; move it away"
        )


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Whether a path is that of a checkpoint's folder."""
    return bool(_STEP.fullmatch(Path(path).name)) and Path(path).is_dir()


def find(folder: Path, name: str) -> str:
    """The path of a checkpoint given as a path, a name in `folder`, or the number of its step."""
    # The run's own first: the current folder may hold one of the same name.
    for candidate in (folder / f"step-{name}", folder / name, Path(name)):
        if is_checkpoint(candidate):
            return str(candidate)
    there = ", ".join(map(str, by_step(folder))) or "(none)"
    raise CheckpointError(f"checkpoint={name}: not found; {folder} holds the steps {there}")


def by_step(folder: Path) -> dict[int, str]:
    """The path of every checkpoint in `folder` by its step, oldest first."""
    paths = [str(path) for path in folder.glob("step-*") if is_checkpoint(path)]
    return {step_of(path): path for path in sorted(paths, key=step_of)}


def newest(folder: Path) -> str | None:
    """The path of the newest checkpoint in `folder`, or None."""
    return next(reversed(by_step(folder).values()), None)


def step_of(path: str) -> int:
    """The step in a checkpoint's path: `.../step-100` gives 100."""
    return int(path.rsplit("-", 1)[-1])


def read_weights(path: str) -> list[np.ndarray]:
    """The values of a model's variables, in their order; moving averages where there are some."""
    places: dict[int, np.ndarray] = {}
    with _errors_of(path):
        reader = tf.train.load_checkpoint(_prefix(path))
        for part in ("model_state", "weights", "moving_averages"):
            for name in reader.get_variable_to_shape_map():
                if place := re.fullmatch(rf"{part}/(\d+){_VALUE}", name):
                    places[int(place[1])] = np.asarray(reader.get_tensor(name))
    return [places[place] for place in sorted(places)]
