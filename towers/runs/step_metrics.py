"""What `metrics.jsonl` says of a training step."""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping

import numpy as np

from towers import step, trainer

# Of a line; an output or a loss with such a name is only in TensorBoard.
_FIELDS = frozenset(
    [
        *("step", "examples_seen", "epoch", "learning_rate", "loss", "weight_decay", "accuracy"),
        *("examples_per_second", "step_seconds"),
    ]
)


def line(
    of: trainer.Trainer,
    result: step.StepResult,
    losses: Mapping[str, np.ndarray],
    at_step: int,
    step_seconds: float,
    examples_per_epoch: int | None,
) -> dict:
    """The line of a step.

    Args:
      of: what made the step.
      result: of the step.
      losses: its terms, one value per microbatch.
      at_step: the step.
      step_seconds: how long one took, of late.
      examples_per_epoch: None where it is unknown.
    """
    batch = of.global_batch_size
    examples_seen = at_step * batch
    weights = None if result.weights is None else result.weights.numpy()
    counts = result.correct is not None and weights is None
    mean = functools.partial(_mean, weights=weights)
    return {
        "step": at_step,
        "examples_seen": examples_seen,
        **({"epoch": examples_seen / examples_per_epoch} if examples_per_epoch else {}),
        "learning_rate": _rate(of, examples_seen),
        "loss": mean(losses["total"]),
        **{
            term: mean(values)
            for term, values in losses.items()
            if _is_of_outputs(term) and term not in _FIELDS
        },
        "weight_decay": sum(
            mean(values) for term, values in losses.items() if term.startswith("weight_decay/")
        ),
        **({"accuracy": int(result.correct.numpy().sum()) / batch} if counts else {}),
        "examples_per_second": batch / step_seconds,
        "step_seconds": step_seconds,
    }


def mean_loss(result: step.StepResult) -> float:
    """The total loss over the global batch of a step, before its update."""
    weights = None if result.weights is None else result.weights.numpy()
    return _mean(result.losses["total"].numpy(), weights)


def _rate(of: trainer.Trainer, examples_seen: int) -> float:
    """Of the next update: the schedule at this line's examples_seen, or the optimizer's own."""
    if of.learning_rate is None:
        return float(np.asarray(of.state.optimizer.learning_rate))
    return of.learning_rate(examples_seen)


def _is_of_outputs(term: str) -> bool:
    """Whether a term of the loss is that of an output, such as the cross entropy."""
    return term not in ("total", "model") and not term.startswith("weight_decay/")


def _mean(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    if weights is None or not weights.any():
        return float(np.mean(values, dtype=np.float64))
    return float(np.average(values.astype(np.float64), weights=weights))


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
