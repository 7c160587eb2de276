"""What `metrics.jsonl` says of a training step."""

import contextlib
import time
from collections.abc import Iterator, Mapping

import numpy as np

from towers import step, trainer


def line(
    of: trainer.Trainer,
    result: step.StepResult,
    losses: Mapping[str, np.ndarray],
    at_step: int,
    step_seconds: float,
    examples_per_epoch: int,
) -> dict:
    """The line of a step.

    Args:
      of: what made the step.
      result: of the step.
      losses: its terms, one value per microbatch.
      at_step: the step.
      step_seconds: how long one took, of late.
      examples_per_epoch: size of the training split.
    """
    batch = of.global_batch_size
    examples_seen = at_step * batch
    means = {term: float(np.mean(values, dtype=np.float64)) for term, values in losses.items()}
    decays = {term: mean for term, mean in means.items() if term.startswith("weight_decay/")}
    correct = result.correct  # None where labels are mixed
    return {
        "step": at_step,
        "examples_seen": examples_seen,
        "epoch": examples_seen / examples_per_epoch,
        "learning_rate": of.learning_rate(examples_seen),  # of the next update
        "loss": means["total"],
        "cross_entropy": means["cross_entropy"],
        "weight_decay": sum(decays.values()),
        **({} if correct is None else {"accuracy": int(correct.numpy().sum()) / batch}),
        "examples_per_second": batch / step_seconds,
        "step_seconds": step_seconds,
    }


class Clock:
    """Seconds per step since the last log, leaving out what is not training."""

    def __init__(self, at_step: int):
        self.restart(at_step)

    def restart(self, at_step: int) -> None:
        """Counts from now, where the run is at a step."""
        self._since, self._at_step = time.perf_counter(), at_step

    def seconds_per_step(self, at_step: int) -> float:
        """The mean since the last call, to the end of a step."""
        seconds = (time.perf_counter() - self._since) / (at_step - self._at_step)
        self.restart(at_step)
        return seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While entered, the clock stands still."""
        before = time.perf_counter()
        yield
        self._since += time.perf_counter() - before
