"""Checkpoints: the whole state of a run in TensorFlow's format, independent of towers."""

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from towers import devices, train_state
from towers.support import errors, noise

PREFIX = "step"
_STEP = re.compile(r"-\d+$")  # how a checkpoint's name ends
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # how a variable's name in a checkpoint ends
_RUN = "run_sha256"
# In every checkpoint, but not part of a run's state: TensorFlow's counter of saves, and the run.
_NO_STATE = ("save_counter", _RUN)
# What the system reports where a file may be whole but still cannot be read, although Python, which
# reads it first, had no such trouble.
_TROUBLE = ("EACCES", "EAGAIN", "EINTR", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ESTALE", "ETIMEDOUT")
# What TensorFlow raises for a file that is missing, damaged, or too short (IndexError).
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


class CheckpointError(errors.UserError):
    """A checkpoint is missing or does not fit; the message is for the person at the keyboard."""


class UnreadableNowError(CheckpointError):
    """The system does not let a checkpoint be read, which says nothing about its contents."""


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint are missing or not as they were written."""


def of_state(state: train_state.TrainState, run_sha256: str = "") -> tf.train.Checkpoint:
    """A checkpoint of everything in `state`, and of which run it belongs to.

    Variables are saved by their place in their list, not by name: Keras numbers the names of layers
    by what the process built before.
    """
    with tf.device(devices.HOST):
        run = tf.Variable(run_sha256, trainable=False, name=_RUN)
    parts = state.parts()
    step, examples_seen = parts.pop("counters")
    return tf.train.Checkpoint(
        **{_RUN: run}, step=step, examples_seen=examples_seen, **_without_empty(parts)
    )


def _without_empty(parts: dict) -> dict:
    """A part without variables is not in a file; restoring would look for it there."""
    return {name: part for name, part in parts.items() if part}


class Checkpoints:
    """The newest few checkpoints of one run, named by their step.

    A damaged one stays where it is until others take its place: it is the first to be deleted.

    Attributes:
      damaged: what was wrong with each checkpoint that `restore_newest` had to skip.
    """

    def __init__(
        self, state: train_state.TrainState, folder: Path, keep: int, run_sha256: str = ""
    ):
        """
        Args:
          state: what is saved and restored.
          folder: of the checkpoints.
          keep: how many, at least 1.
          run_sha256: a hash of what defines the run. It is saved with the state, and a checkpoint
            of another run is not restored.
        """
        self.damaged: list[str] = []
        self._state, self._folder, self._keep = state, folder, keep
        self._run_sha256 = run_sha256
        self._checkpoint = of_state(state, run_sha256)

    @functools.cached_property
    def _manager(self) -> tf.train.CheckpointManager:
        return tf.train.CheckpointManager(
            self._checkpoint, str(self._folder), max_to_keep=self._keep, checkpoint_name=PREFIX
        )

    def save(self) -> str:
        """Saves the state as `step-<step>`; does nothing if that checkpoint is there already.

        Raises:
          CheckpointError: it cannot be written; those before it are unchanged.
        """
        number = int(self._state.step)
        newest = self._manager.latest_checkpoint
        if newest and step_of(newest) == number:
            return newest
        try:
            path = self._manager.save(checkpoint_number=number)
        except (tf.errors.OpError, OSError) as error:
            # An error here would hide the first one.
            with contextlib.suppress(OSError, CheckpointError):
                self._remove_failed(number)
            raise CheckpointError(
                f"checkpoint {self._folder}/{PREFIX}-{number} cannot be written: "
                f"{noise.reason(error)}. {self.describe_newest()}"
            ) from error
        with contextlib.suppress(OSError):
            _remove_unfinished(self._folder)  # TensorFlow tells no one if it cannot remove its own
        return path

    def _remove_failed(self, number: int) -> None:
        """Removes what a failed save has left, unless only the list was not written."""
        _remove_unfinished(self._folder)
        path = self._folder / f"{PREFIX}-{number}"
        try:
            check_whole(str(path))
        except DamagedCheckpointError:
            for file in self._folder.glob(f"{path.name}.*"):
                file.unlink(missing_ok=True)

    def restore_newest(self, *, ever_saved: bool = True) -> str | None:
        """Restores the newest checkpoint that is whole into the state; None if there is none.

        Args:
          ever_saved: whether the run has finished saving one. If not, what there is was torn while
            the first one was written; it is not a checkpoint, and is removed.

        Raises:
          CheckpointError: it does not fit the model and optimizer, is another run's or not of the
            step in its name, or every one is damaged.
        """
        if not self._folder.exists():
            return None
        _remove_unfinished(self._folder)
        for path in reversed(by_step(self._folder).values()):
            try:
                restore(self._checkpoint, path, partial=False, run_sha256=self._run_sha256)
            except DamagedCheckpointError as error:
                self.damaged.append(str(error))
            else:
                for data in _without_index(self._folder):  # of no use to anyone
                    data.unlink(missing_ok=True)
                self._record(path)
                return path
        self.damaged += [f"{data}: has no .index" for data in _without_index(self._folder)]
        if self.damaged and not ever_saved and self._remove_torn_first():
            self.damaged.clear()
        if self.damaged:
            raise CheckpointError(
                f"every checkpoint in {self._folder} is damaged: {'; '.join(self.damaged)}; put "
                "a good one back, or choose another folder"
            )
        (self._folder / "checkpoint").unlink(missing_ok=True)  # TensorFlow's list, of nothing
        return None

    def restore_step(self, step: int) -> None:
        """Restores the checkpoint of a step into the state.

        Raises:
          CheckpointError: it is not there, or cannot be restored.
        """
        there = by_step(self._folder)
        if step not in there and (later := [one for one in there if one > step]):
            raise CheckpointError(
                f"{self._folder} has no checkpoint of step {step} any more: the run was continued "
                f"to step {later[-1]}; give it a later end"
            )
        if step not in there:
            raise CheckpointError(
                f"{self._folder} has no checkpoint of step {step} any more; put it back, or choose "
                "another folder"
            )
        try:
            restore(self._checkpoint, there[step], partial=False, run_sha256=self._run_sha256)
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(
                f"{error}; put a good one back, or choose another folder"
            ) from error

    def _remove_torn_first(self) -> bool:
        """Removes what the run's first save has left; False where files of several saves are."""
        files = [path for path in self._folder.glob(f"{PREFIX}-*") if _STEP.search(path.stem)]
        if len({path.stem for path in files}) > 1:
            return False
        for path in files:
            path.unlink(missing_ok=True)
        return True

    def _record(self, newest: str) -> None:
        """Writes TensorFlow's list of checkpoints as they were found.

        A killed process may have left a list older than the files, or no list. Damaged checkpoints
        come first, as the next to be deleted.
        """
        names = [Path(path).name for path in by_step(self._folder).values()]
        later = names[names.index(Path(newest).name) + 1 :]
        names = [*later, *names[: len(names) - len(later)]]
        if [Path(path).name for path in _recorded(self._folder)] == names:
            return
        now = time.time()
        try:
            tf.compat.v1.train.update_checkpoint_state(
                os.path.abspath(self._folder),  # then names are kept as they are, without a folder
                names[-1],
                names,
                all_model_checkpoint_timestamps=[now] * len(names),
                last_preserved_timestamp=now - 1,
            )
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(
                f"{self._folder}/checkpoint cannot be written: {noise.reason(error)}"
            ) from error

    def describe_newest(self) -> str:
        """A sentence for a person whose run has to stop."""
        newest = self._manager.latest_checkpoint
        return f"The newest checkpoint is {newest}." if newest else "There is no checkpoint yet."


def _remove_unfinished(folder: Path) -> None:
    """Removes what an unfinished save has left in `folder`."""
    for unfinished in [*folder.glob(f"{PREFIX}-*_temp"), *folder.glob("checkpoint.tmp*")]:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def _without_index(folder: Path) -> list[Path]:
    return [
        data
        for data in sorted(folder.glob(f"{PREFIX}-*.data-*"))
        if _STEP.search(data.stem) and not data.with_suffix(".index").exists()
    ]


def check_whole(path: str) -> None:
    """Reads every value of a checkpoint, and with it the checksum that TensorFlow has for each.

    Raises:
      DamagedCheckpointError: the files are not all there, or not as they were written.
      UnreadableNowError: the system does not let them be read.
    """
    try:
        for file in Path(path).parent.glob(f"{Path(path).name}.*"):
            _read_through(file)
    except OSError as error:
        reason = error.strerror or error
        raise UnreadableNowError(f"checkpoint {path} cannot be read: {reason}") from error
    with _said_of(path):
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)


@contextlib.contextmanager
def _said_of(path: str) -> Iterator[None]:
    """Turns TensorFlow's error about a checkpoint into one of the two errors for it."""
    try:
        yield
    except _UNREADABLE as error:
        words = [os.strerror(getattr(errno, name)) for name in _TROUBLE]
        is_damage = not any(word in str(error) for word in words)
        kind = DamagedCheckpointError if is_damage else UnreadableNowError
        raise kind(f"checkpoint {path}: {noise.reason(error)}") from error


def _read_through(file: Path) -> None:
    """Reads a file and forgets it.

    So trouble with the disk is an OSError here. TensorFlow, which reads the file afterwards from
    memory, would report some of it as damage, and crash on some (2.21).

    Raises:
      OSError: it cannot be read, or is a pipe, which is not waited for.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(f"{file.name} is not a regular file")
    with file.open("rb", buffering=0) as opened:
        while opened.read(2**20):
            pass


def _check_origin(path: str, run_sha256: str) -> None:
    """Checks that a whole checkpoint belongs to a run, and to the step in its name.

    Args:
      path: without ending.
      run_sha256: of the run, as given to `Checkpoints`.

    Raises:
      CheckpointError: it belongs to another run, or was renamed.
    """
    with _said_of(path):
        reader = tf.train.load_checkpoint(path)
        of_run, at_step = (
            reader.get_tensor(f"{name}{_VALUE}") if reader.has_tensor(f"{name}{_VALUE}") else None
            for name in (_RUN, "step")
        )
    if of_run is None or of_run.decode() != run_sha256:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run, with other settings or images; move its "
            "files to that run"
        )
    if at_step != step_of(path):
        raise CheckpointError(
            f"checkpoint {path} holds step {at_step}, but its name says {step_of(path)}; rename "
            "its files back, or move them away"
        )


def restore(
    checkpoint: tf.train.Checkpoint, path: str, *, partial: bool, run_sha256: str = ""
) -> None:
    """Restores `path` into `checkpoint`'s variables.

    Args:
      checkpoint: from `of_state`.
      path: a checkpoint's path without ending, such as `run/checkpoints/step-100`.
      partial: whether the file may hold more than `checkpoint` asks for.
      run_sha256: as given to `Checkpoints`.

    Raises:
      DamagedCheckpointError: its files are damaged; nothing is restored.
      CheckpointError: it is another run's, or not of the step in its name; it lacks variables or
        has others, or cannot be opened.
    """
    check_whole(path)  # by itself, TensorFlow would find damage when half is restored
    _check_origin(path, run_sha256)
    try:
        status = checkpoint.restore(path)
        # Called now: otherwise TensorFlow warns of each variable left over, even after an error.
        status.expect_partial()
        status.assert_existing_objects_matched()
        if not partial:
            status.assert_consumed()
    except (*_UNREADABLE, AssertionError) as error:
        reason = noise.reason(error)
        raise CheckpointError(f"checkpoint {path} cannot be restored: {reason}") from error


def find(folder: Path, name: str) -> str:
    """The path of a checkpoint given as a path, a file name, or the number of its step.

    Args:
      folder: of the checkpoints.
      name: what was given.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    wanted = name.removesuffix(".index")
    # The run's own first: the current folder may hold one of the same name.
    candidates = [folder / f"{PREFIX}-{wanted}", folder / wanted, Path(wanted)]
    for candidate in candidates:
        if _STEP.search(candidate.name) and Path(f"{candidate}.index").is_file():
            return str(candidate)
    there = ", ".join(map(str, by_step(folder))) or "(none)"
    raise CheckpointError(f"checkpoint={name}: not found; {folder} holds the steps {there}")


def by_step(folder: Path) -> dict[int, str]:
    """The path of every checkpoint in `folder` by its step, oldest first."""
    files = [path.with_suffix("") for path in folder.glob(f"{PREFIX}-*.index")]
    paths = [str(path) for path in files if _STEP.search(path.name)]
    return {step_of(path): path for path in sorted(paths, key=step_of)}


def read(path: str) -> dict[str, np.ndarray]:
    """The values in a checkpoint, by the names of their places: `weights/0`, `optimizer/3`, `step`.

    Raises:
      CheckpointError: the file cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        names = [name for name in reader.get_variable_to_shape_map() if name.endswith(_VALUE)]
        return {
            name.removesuffix(_VALUE): np.asarray(reader.get_tensor(name))
            for name in sorted(names)
            if not name.startswith(_NO_STATE)
        }
    except _UNREADABLE as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {noise.reason(error)}") from error


def part(values: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Of what `read` gives, the values of one part in order: `weights/0`, `weights/1`, ..."""
    places = sorted(int(key.partition("/")[2]) for key in values if key.startswith(f"{name}/"))
    return [values[f"{name}/{place}"] for place in places]


def finished(folder: Path) -> list[str]:
    """The checkpoints in `folder`, oldest first, without one that is still being written."""
    recorded = _recorded(folder)
    if not recorded:  # without TensorFlow's list, as in a copy of the files alone
        return list(by_step(folder).values())
    return sorted(recorded, key=step_of)


def newest(folder: Path) -> str | None:
    """The newest of `finished`, or None."""
    return next(reversed(finished(folder)), None)


def after(folder: Path, step: int) -> list[str]:
    """Those of `finished` that are newer than `step`."""
    return [path for path in finished(folder) if step_of(path) > step]


def _recorded(folder: Path) -> list[str]:
    """What TensorFlow's list of checkpoints names, in its order; empty where there is none."""
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except (tf.errors.OpError, ValueError):  # not readable, or not even text
        return []
    paths = state.all_model_checkpoint_paths if state else []
    return [path for path in paths if _STEP.search(path) and Path(path).parent == folder]


def step_of(path: str) -> int:
    """The step in a checkpoint's path: `.../step-100` gives 100."""
    return int(path.rsplit("-", 1)[-1])
