"""What a run does along the way, and how often: the things in `Run.train(every=[...])`."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence

from towers.runs import events, run_plan
from towers.support import checks

_MINIMIZED = {"loss", "error", "mae", "mse", "rmse", "mape", "msle", "crossentropy"}
_MAXIMIZED = {"acc", "accuracy"}


@dataclasses.dataclass(frozen=True)
class Every:
    """An entry of `Run.train(every=[...])`, made by the functions below.

    Attributes:
      what: the name of the function.
      plan: what it is in a `run_plan.Plan`.
      needs_epochs: whether the size of the training split must be known.
      metric: of an evaluation, that it looks at.
    """

    what: str
    plan: Mapping
    needs_epochs: bool = False
    metric: str | None = None


def evaluate(*, epochs: float = 0, steps: int = 0, of_workers: bool = False) -> Every:
    """Evaluates the test data every so many epochs or steps, and at the end.

    Args:
      epochs: between two evaluations; may be a fraction.
      steps: between two evaluations; with neither, there is only one, at the end.
      of_workers: whether to show the accuracy of each worker's share, too.

    Returns:
      An entry for `Run.train(every=[...])`.

    Raises:
      ValueError: both are given, or one is negative.
    """
    interval = _interval("evaluate", epochs, steps) if epochs or steps else run_plan.Interval()
    numbers = {"evaluate_every": interval, "eval_of_workers": of_workers}
    return Every("evaluate", numbers, needs_epochs=bool(epochs))


def checkpoint(*, steps: int, keep: int = 3) -> Every:
    """Saves a checkpoint every so many steps, and keeps the newest few.

    A run without it saves every 1,000 steps.

    Args:
      steps: between two checkpoints, at least 1.
      keep: how many are kept, at least 1.

    Returns:
      An entry for `Run.train(every=[...])`.

    Raises:
      ValueError: a number is below 1.
    """
    numbers = {"checkpoint_every_steps": steps, "checkpoints_to_keep": keep}
    return Every("checkpoint", _at_least_1("checkpoint", numbers))


def log(*, steps: int) -> Every:
    """Writes a line of `metrics.jsonl`, and TensorBoard's curves, every so many steps.

    A run without it does so every 20 steps. Args and the rest are as of `checkpoint`.
    """
    return Every("log", _at_least_1("log", {"log_every_steps": steps}))


def histograms(*, steps: int) -> Every:
    """Shows weights, gradients and activations in TensorBoard every so many steps.

    A run without it does not. Args and the rest are as of `checkpoint`.
    """
    return Every("histograms", _at_least_1("histograms", {"summary_every_steps": steps}))


def verify(*, steps: int) -> Every:
    """Writes a hash of the state every so many steps, by which `towers-compare` compares runs.

    A run without it does not. Args and the rest are as of `checkpoint`.
    """
    return Every("verify", _at_least_1("verify", {"verify_every_steps": steps}))


def profile(*, first: int, last: int) -> Every:
    """Records a profile of these steps for TensorBoard.

    Args:
      first: step, from 1.
      last: step, at least `first`, which is recorded too.

    Returns:
      An entry for `Run.train(every=[...])`.

    Raises:
      ValueError: there are no such steps.
    """
    _at_least_1("profile", {"first": first, "last": last})
    if last < first:
        raise ValueError(f"profile(last={last}): must be at least first={first}")
    return Every("profile", {"profile_steps": (first, last)})


def call(hook: Callable[[events.Event], object], *, epochs: float = 0, steps: int = 0) -> Every:
    """Calls a function of your own every so many epochs or steps.

    Args:
      hook: is given a `towers.Event`; what it returns is not used.
      epochs: between two calls; may be a fraction.
      steps: between two calls; give one of the two.

    Returns:
      An entry for `Run.train(every=[...])`.

    Raises:
      TypeError, ValueError: `hook` is not a function; not one of the two is given; or a number is
        negative.
    """
    if not callable(hook):
        raise TypeError(f"call: hook is {checks.described(hook)}: must be a function of an event")
    interval = _interval("call", epochs, steps)

    def called(event: events.Event) -> None:
        batch = event.trainer.global_batch_size
        if interval.is_due(event.step, batch, event.examples_per_epoch):
            hook(event)

    return Every("call", {"hooks": (called,)}, needs_epochs=bool(epochs))


def stop_early(*, metric: str = "loss", patience: int, mode: str = "auto") -> Every:
    """Ends the run when `patience` evaluations in a row were no better than the best before them.

    It looks at all evaluations of the run, including those before it was killed and resumed.

    Args:
      metric: a name in the lines of `metrics.jsonl`.
      patience: evaluations to wait for a better one.
      mode: `min` or `max` is better; `auto` knows losses, errors and accuracies by the last word of
        their names, and what begins with `loss`.

    Raises:
      ValueError: `auto` does not know the metric.
    """
    _at_least_1("stop_early", {"patience": patience})
    better = _better(metric, mode)

    def look(event: events.Event) -> None:
        values = [number_in(line, metric) for line in event.evaluations]
        best = _best(values, better)
        if values and len(values) - 1 - best >= patience:
            event.stop(f"{metric} was no better than {values[best]:.4g} in {patience} evaluations")

    return Every("stop_early", {"hooks": (look,)}, metric=metric)


def keep_best(*, metric: str = "loss", mode: str = "auto") -> Every:
    """Writes `best_model.keras` whenever an evaluation is better than all before it.

    The arguments are those of `stop_early`.
    """
    better = _better(metric, mode)

    def look(event: events.Event) -> None:
        if event.evaluation is None:
            return
        values = [number_in(line, metric) for line in event.evaluations]
        if _best(values, better) == len(values) - 1:
            event.save_model("best_model.keras")

    return Every("keep_best", {"hooks": (look,)}, metric=metric)


def _best(values: Sequence[float], better: Callable[[float, float], bool]) -> int:
    """The place of the first of the best."""
    best = 0
    for place, value in enumerate(values):
        if better(value, values[best]):
            best = place
    return best


def _better(metric: str, mode: str) -> Callable[[float, float], bool]:
    checks.choice("mode", mode, ("auto", "min", "max"))
    if mode == "auto":
        # An output's name may contain such words: `loss/account`, `acceleration_mse`.
        words = [word for word in re.split(r"[/_]", metric) if not word.isdigit()]
        if words[:1] == ["loss"] or words[-1:] and words[-1] in _MINIMIZED:
            mode = "min"
        elif words[-1:] and words[-1] in _MAXIMIZED:
            mode = "max"
        else:
            raise ValueError(f"metric={metric!r}: give mode='min' or 'max', whichever is better")
    if mode == "max":
        return lambda value, other: value > other or math.isnan(other) > math.isnan(value)
    return lambda value, other: value < other or math.isnan(other) > math.isnan(value)


def number_in(line: Mapping, metric: str) -> float:
    """A metric of an evaluation.

    Args:
      line: of `metrics.jsonl`, or an evaluation's `as_metrics()`.
      metric: its name.

    Raises:
      ValueError: there is no such number.
    """
    if not isinstance(line.get(metric), (int, float)):
        raise ValueError(
            f"metric={metric!r}: the evaluations have no such number; they have "
            f"{', '.join(sorted(line))}"
        )
    return line[metric]


def _interval(what: str, epochs: float, steps: int) -> run_plan.Interval:
    checks.number(f"{what}(epochs=...)", epochs)
    checks.integer(f"{what}(steps=...)", steps)
    if bool(epochs) == bool(steps) or steps < 0:
        raise ValueError(f"{what}(epochs={epochs}, steps={steps}): one of the two must be above 0")
    return run_plan.Interval(steps=steps, epochs=float(epochs))


def _at_least_1(what: str, numbers: Mapping[str, int]) -> Mapping[str, int]:
    for name, value in numbers.items():
        short = name if name in ("first", "last", "patience") else name.split("_")[-1]
        checks.integer(f"{what}({short}=...)", value)
        if value < 1:
            raise ValueError(f"{what}({short}={value}): must be at least 1")
    return numbers
