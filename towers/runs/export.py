"""The one final model of a run."""

import contextlib
import os
import struct
import time

from towers import trainer
from towers.runs import run_folder
from towers.support import hashes, tally


def final_model(
    tower_trainer: trainer.Trainer,
    folder: run_folder.RunFolder,
    examples_per_epoch: int,
    result: tally.Evaluation | None,
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
      RunFolderError: it cannot be written, or the machine's clock is before 1980.
    """
    model = tower_trainer.evaluated_model()
    partial = folder.path / "final_model.partial.keras"
    try:
        with run_folder.writing(folder.final_model):
            model.save(partial)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())  # else, after a power cut, the name may be an empty file's
            os.replace(partial, folder.final_model)
    except (ValueError, struct.error) as error:  # from zipfile
        if 1980 <= time.localtime().tm_year < 2108:
            raise
        raise run_folder.RunFolderError(
            f"{folder.final_model}: cannot be written: this machine's clock says "
            f"{time.strftime('%Y-%m-%d')}, and the file's format has no year before 1980 or after "
            "2107; set the clock and give the same command, which goes on from the last step"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # which would hide why it could not be written
            partial.unlink(missing_ok=True)
    examples_seen = int(tower_trainer.state.examples_seen)
    summary = {
        "weights_sha256": hashes.sha256(variable.value for variable in model.weights),
        "step": int(tower_trainer.state.step),
        "examples_seen": examples_seen,
        "epoch": examples_seen / examples_per_epoch,
    }
    if result is not None:
        summary |= {"split": split, "accuracy": result.accuracy, "count": result.count}
    run_folder.write_json(folder.final_summary, summary)
    return summary
