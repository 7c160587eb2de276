"""The one final model of a run."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import keras

from towers import train_state, trainer
from towers.runs import run_folder
from towers.support import hashes, noise, tally


def final_model(
    tower_trainer: trainer.Trainer,
    folder: run_folder.RunFolder,
    examples_per_epoch: int,
    result: tally.Evaluation,
    split: str,
    exported: keras.Model | None = None,
) -> dict:
    """Writes `final_model.keras` with the evaluated weights, then `final_model.json`.

    Its summary is written last, so where `final_model.json` is, the model is complete.

    Args:
      tower_trainer: at the end of its training.
      folder: where to write.
      examples_per_epoch: size of the training split.
      result: the last evaluation.
      split: the one that was evaluated.
      exported: the model to save, with the weights of the Trainer's; None for that model itself.

    Returns:
      What `final_model.json` holds.

    Raises:
      RunFolderError: it cannot be written.
    """
    weights_sha256 = _save_model(tower_trainer, folder.final_model, exported)
    examples_seen = int(tower_trainer.state.examples_seen)
    summary = {
        "weights_sha256": weights_sha256,
        "step": int(tower_trainer.state.step),
        "examples_seen": examples_seen,
        "epoch": examples_seen / examples_per_epoch,
        "split": split,
    } | result.as_metrics()
    run_folder.write_json(folder.final_summary, summary)
    return summary


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
            f"all arguments of its constructor ({noise.reason(error)})"
        ) from error


@contextlib.contextmanager
def _evaluated(state: train_state.TrainState) -> Iterator[None]:
    """While entered, the model itself has the weights that are evaluated.

    A copy of it would have to be one that Keras can make.
    """
    weights = state.model.trainable_variables
    trained = [weight.value.numpy() for weight in weights] if state.averages else []
    try:
        for weight, average in zip(weights, state.averages, strict=False):
            weight.assign(average)
        yield
    finally:
        for weight, value in zip(weights, trained, strict=False):
            weight.assign(value)


def _save_model(tower_trainer: trainer.Trainer, path: Path, exported: keras.Model | None) -> str:
    """Writes the model with the weights that are evaluated, whole or not at all; their hash."""
    model = tower_trainer.state.model
    partial = path.with_name(f"{path.stem}.partial.keras")
    try:
        with run_folder.writing(path), _evaluated(tower_trainer.state):
            (exported or model).save(partial)
            sha256 = hashes.sha256(variable.value for variable in model.weights)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())  # else the file may be empty after a power cut
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # it would hide why the model could not be written
            partial.unlink(missing_ok=True)
    return sha256
