"""Checkpoints: the whole state of a run in TensorFlow's format, independent of towers."""

import re
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towers import step

PREFIX = "step"
_STEP = re.compile(r"-\d+$")  # how a checkpoint's name ends
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # how a variable's name in a checkpoint ends


class CheckpointError(Exception):
    """A checkpoint is missing or does not fit; the message is for the person at the keyboard."""


def of_state(state: step.TrainState) -> tf.train.Checkpoint:
    """A checkpoint over everything in `state`.

    Variables are saved by their place in their list, not by name: Keras numbers the names of layers
    by what the process built before.
    """
    return tf.train.Checkpoint(
        optimizer=_raw(state.optimizer.variables),
        step=state.step,
        examples_seen=state.examples_seen,
        **_model_parts(state.model, state.averages, state.statistics_of_each),
    )


def of_model(model: keras.Model, averages, statistics_of_each=()) -> tf.train.Checkpoint:
    """The part of `of_state` that evaluation reads."""
    return tf.train.Checkpoint(**_model_parts(model, averages, statistics_of_each))


def _model_parts(model: keras.Model, averages, statistics_of_each) -> dict:
    parts = {
        "weights": _raw(model.trainable_variables),
        "model_state": _raw(model.non_trainable_variables),
        "moving_averages": list(averages),
    }
    # Runs of other policies have no such part.
    return parts | ({"statistics_of_each": list(statistics_of_each)} if statistics_of_each else {})


def _raw(variables) -> list[tf.Variable]:
    return [variable.value for variable in variables]


class Checkpoints:
    """The newest few checkpoints of one run, named by their step."""

    def __init__(self, state: step.TrainState, folder: Path, keep: int):
        self._manager = tf.train.CheckpointManager(
            of_state(state), str(folder), max_to_keep=keep, checkpoint_name=PREFIX
        )
        self._state = state

    def save(self) -> str:
        """Saves the state as `step-<step>`; does nothing if that checkpoint is there already."""
        number = int(self._state.step)
        newest = self._manager.latest_checkpoint
        if newest and step_of(newest) == number:
            return newest
        return self._manager.save(checkpoint_number=number)

    def restore_newest(self) -> str | None:
        """Restores the newest checkpoint into the state; None if there is none.

        Raises:
          CheckpointError: it cannot be read or does not fit the model and optimizer.
        """
        path = self._manager.latest_checkpoint
        if path:
            restore(self._manager.checkpoint, path, partial=False)
        return path

    def describe_newest(self) -> str:
        """A sentence for a person whose run has to stop."""
        newest = self._manager.latest_checkpoint
        return f"The last good checkpoint is {newest}." if newest else "There is no checkpoint yet."


def restore(checkpoint: tf.train.Checkpoint, path: str, *, partial: bool) -> None:
    """Restores `path` into `checkpoint`'s variables.

    Args:
      checkpoint: from `of_state` or `of_model`.
      path: a checkpoint's path without ending, such as `run/checkpoints/step-100`.
      partial: whether the file may hold more than `checkpoint` asks for.

    Raises:
      CheckpointError: the file cannot be read, or lacks or has other variables.
    """
    try:
        status = checkpoint.restore(path)
        # Said now, for otherwise TensorFlow warns of each variable left over, even after an error.
        status.expect_partial()
        status.assert_existing_objects_matched()
        if not partial:
            status.assert_consumed()
    # IndexError: a file that is too short.
    except (tf.errors.OpError, ValueError, AssertionError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"checkpoint {path} cannot be restored: {reason}") from error


def newest(folder: Path) -> str | None:
    """The newest checkpoint's path in `folder`, or None."""
    return tf.train.latest_checkpoint(str(folder))


def find(folder: Path, name: str) -> str:
    """The path of a checkpoint given as a path, a file name, or the number of its step.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    wanted = name.removesuffix(".index")
    candidates = [Path(wanted), folder / wanted, folder / f"{PREFIX}-{wanted}"]
    for candidate in candidates:
        if _STEP.search(candidate.name) and Path(f"{candidate}.index").is_file():
            return str(candidate)
    there = ", ".join(map(str, by_step(folder))) or "(none)"
    raise CheckpointError(f"--checkpoint={name}: not found; {folder} holds the steps {there}")


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
        # The counter of saves is TensorFlow's own, and no part of a run's state.
        return {
            name.removesuffix(_VALUE): np.asarray(reader.get_tensor(name))
            for name in sorted(names)
            if not name.startswith("save_counter/")
        }
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason}") from error


def after(folder: Path, step: int) -> list[str]:
    """The checkpoints in `folder` that are newer than `step`, oldest first."""
    state = tf.train.get_checkpoint_state(str(folder))
    paths = state.all_model_checkpoint_paths if state else []
    return sorted((path for path in paths if step_of(path) > step), key=step_of)


def step_of(path: str) -> int:
    """The step in a checkpoint's path: `.../step-100` gives 100."""
    return int(path.rsplit("-", 1)[-1])
