"""The one final model of a run."""

import contextlib
import os
from pathlib import Path

import keras

from towers import errors
from towers.runs import run_folder


def check_can_be_saved(model: keras.Model) -> None:
    """Checks before the first step what would otherwise fail at the end.

    Raises:
      ValueError: Keras cannot save the model.
    """
    try:
        keras.saving.serialize_keras_object(model)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            "Keras cannot save the model: a layer or a model of your own needs a get_config with "
            f"all arguments of its constructor ({errors.reason(error)})"
        ) from error


def save(model: keras.Model, path: Path) -> None:
    """Writes a model into a `.keras` file, whole or not at all.

    Raises:
      RunFolderError: it cannot be written.
    """
    partial = path.with_name(f"{path.stem}.partial.keras")
    try:
        with run_folder.writing(path):
            model.save(partial)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())  # else the file may be empty after a power cut
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # it would hide why the model could not be written
            partial.unlink(missing_ok=True)
