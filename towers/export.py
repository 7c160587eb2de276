"""The one final model of a run."""

import os

import keras

from towers import evaluation, run_folder, trainer


def final_model(
    tower_trainer: trainer.Trainer,
    folder: run_folder.RunFolder,
    examples_per_epoch: int,
    result: evaluation.Evaluation | None,
    split: str,
) -> dict:
    """Writes `final_model.keras` with the evaluated weights, then `final_model.json`.

    The model takes preprocessed images and gives logits. Its summary is written last, so where
    `final_model.json` is, the model is complete.

    Args:
      tower_trainer: at the end of its training.
      folder: where to write.
      examples_per_epoch: size of the training split.
      result: the last evaluation, if there was one.
      split: that was evaluated.

    Returns:
      What `final_model.json` holds.

    Raises:
      RunFolderError: it cannot be written.
    """
    model = copy_with_weights(tower_trainer)
    partial = folder.path / "final_model.partial.keras"
    try:
        with run_folder.writing(folder.final_model):
            model.save(partial)
            os.replace(partial, folder.final_model)
    finally:
        partial.unlink(missing_ok=True)
    examples_seen = int(tower_trainer.state.examples_seen)
    summary = {
        "weights_sha256": trainer.sha256(variable.value for variable in model.weights),
        "step": int(tower_trainer.state.step),
        "examples_seen": examples_seen,
        "epoch": examples_seen / examples_per_epoch,
    }
    if result is not None:
        summary |= {"split": split, "accuracy": result.accuracy, "count": result.count}
    run_folder.write_json(folder.final_summary, summary)
    return summary


def copy_with_weights(tower_trainer: trainer.Trainer) -> keras.Model:
    """A copy of the model that holds the evaluated weights and the batch-norm state."""
    trained = tower_trainer.state.model
    model = keras.models.clone_model(trained)
    weights = tower_trainer.evaluated_weights()
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    for variable, value in zip(
        model.non_trainable_variables, trained.non_trainable_variables, strict=True
    ):
        variable.assign(value.value)
    return model
