"""When a run ends, what it does along the way, and where its batches come from."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import keras

from towers import schedules


@dataclasses.dataclass(frozen=True)
class Plan:
    """When a run ends, and what it does along the way.

    Attributes:
      last_step: the step to stop after.
      examples_per_epoch: size of the training split.
      class_names: one per class.
      log_every_steps: between two lines of `metrics.jsonl`; at least 1.
      summary_every_steps: between two sets of histograms and images; 0 for none.
      verify_every_steps: between two hashes of the state in `metrics.jsonl`; 0 for none.
      checkpoint_every_steps: between two checkpoints; at least 1.
      checkpoints_to_keep: the newest few; at least 1.
      eval_every_epochs: between two evaluations; 0 for none but the one at the end.
      profile_steps: (first, last) steps to profile, or None.
      eval_of_workers: whether an evaluation also shows the accuracy of each worker's share.
      exported: the model that is saved, where it is not the trainer's own.
    """

    last_step: int
    examples_per_epoch: int
    class_names: tuple[str, ...]
    log_every_steps: int = 20
    summary_every_steps: int = 0
    verify_every_steps: int = 0
    checkpoint_every_steps: int = 1000
    checkpoints_to_keep: int = 3
    eval_every_epochs: float = 0.0
    profile_steps: tuple[int, int] | None = None
    eval_of_workers: bool = False
    exported: keras.Model | None = None

    def is_logged(self, at_step: int) -> bool:
        """Whether a step has a line of metrics."""
        return _is_multiple(at_step, self.log_every_steps) or at_step in (1, self.last_step)

    def is_summarized(self, at_step: int) -> bool:
        """Whether a step has histograms and images."""
        return _is_multiple(at_step, self.summary_every_steps)

    def is_verified(self, at_step: int) -> bool:
        """Whether a step has its hash written; step 0 too."""
        every = self.verify_every_steps
        return bool(every) and (at_step % every == 0 or at_step == self.last_step)

    def is_saved(self, at_step: int) -> bool:
        """Whether a checkpoint is saved after a step; one is saved at the end, too."""
        return _is_multiple(at_step, self.checkpoint_every_steps)

    def is_evaluated(self, at_step: int, batch: int) -> bool:
        """Whether the test data are evaluated after a step of `batch` examples."""
        if not self.eval_every_epochs:
            return False
        every = schedules.exact(self.eval_every_epochs) * self.examples_per_epoch
        return at_step * batch // every > max(0, at_step - 1) * batch // every


@dataclasses.dataclass(frozen=True)
class Data:
    """Where batches come from.

    Attributes:
      training: (first_step, last_step) to the batches (inputs, labels) of those steps.
      evaluation: batches (inputs, labels, sample_weight) that hold each example of a split once,
        as often as they are iterated over.
      evaluation_count: examples in that split.
      evaluation_split: its name.
    """

    training: Callable[[int, int], Iterable]
    evaluation: Iterable
    evaluation_count: int
    evaluation_split: str = "test"


def last_step(
    train_epochs: float,
    max_steps: int | None,
    examples_per_epoch: int,
    global_batch_size: int,
) -> int:
    """The step a run ends after: the first to reach `train_epochs`, or `max_steps` if earlier.

    Example:
      >>> last_step(5.0, None, 50_000, 128)
      1954
    """
    examples = schedules.exact(train_epochs) * examples_per_epoch
    steps = math.ceil(examples / global_batch_size)
    return steps if max_steps is None else min(steps, max_steps)


def _is_multiple(at_step: int, every_steps: int) -> bool:
    return every_steps > 0 and at_step > 0 and at_step % every_steps == 0
