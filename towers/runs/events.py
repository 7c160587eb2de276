"""What hooks of a run see after each step."""

import dataclasses
from collections.abc import Mapping, Sequence

import keras

from towers import step, trainer
from towers.runs import export, run_folder
from towers.support import tally


@dataclasses.dataclass
class Event:
    """What a hook sees: a step was made, or a run continues from one.

    Attributes:
      trainer: of the run; its `state` is the one after the step.
      step: steps made so far, from 1.
      examples_seen: in these steps.
      epoch: examples seen, in training splits; None where the size of one is unknown.
      result: of the step; None where the run continues from it, or its hooks are called again.
      evaluation: of the weights after this step; None where there is none.
      evaluations: lines of `metrics.jsonl`, one for each evaluation of the run so far; without the
        one at the former end of a run made longer since, unless one was due there.
      folder: of the run, to write into where `trainer.workers.is_chief`.
      examples_per_epoch: size of the training split; None where it is unknown.
      is_last: whether the run ends with this step, unless it is stopped earlier.
      stop_reason: why a hook has ended the run with this step; None where none has.
      exported: the model that is saved, where it is not the trainer's own.
    """

    trainer: trainer.Trainer
    step: int
    examples_seen: int
    epoch: float | None
    result: step.StepResult | None
    evaluation: tally.Evaluation | None
    evaluations: Sequence[Mapping]
    folder: run_folder.RunFolder
    examples_per_epoch: int | None = None
    is_last: bool = False
    stop_reason: str | None = None
    exported: keras.Model | None = None

    def save_model(self, name: str) -> None:
        """Writes the model with the weights that are evaluated into the folder, on the chief.

        Args:
          name: of the file, such as `best_model.keras`.

        Raises:
          ValueError: the name does not end with `.keras`.
        """
        if not name.endswith(".keras"):
            raise ValueError(f"save_model(name={name!r}): must end with .keras")
        if self.trainer.workers.is_chief:
            export.save_model(self.trainer, self.folder.path / name, self.exported)

    def stop(self, reason: str = "a hook stopped it") -> None:
        """Ends the run with this step, as if it were the last; on every worker alike."""
        self.stop_reason = reason
