"""How long a step takes with each number of microbatches, on this machine."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from towers import step, trainer
from towers.support import structures

NUMBERS = (2, 4, 8, 16, 32)  # that are timed
_WARM_UP = 2  # steps: the first is traced, and the second still allocates memory


def time_microbatches(
    make_trainer: Callable[[int], trainer.Trainer],
    inputs: structures.Structure,
    labels: structures.Structure,
    numbers: Iterable[int] = NUMBERS,
    *,
    seconds: float = 1.0,
    rounds: int = 5,
) -> dict[int, list[float]]:
    """Times training steps with different numbers of microbatches, which take turns.

    The number is part of the arithmetic of a run: runs with different numbers have different bits,
    and batch norm normalizes each microbatch by itself. So it is chosen before a run begins. Which
    one is fastest depends on the model and the machine. All trainers are in memory together. A run
    also splits the next batch while a step is computed, which matters on GPUs; here a step waits.

    Args:
      make_trainer: a number of microbatches to a new Trainer of a new model, with one worker. The
        model is trained here, so it is not one to keep.
      inputs: one batch, as for `Trainer.train_step`; every step is of it.
      labels: likewise.
      numbers: of microbatches.
      seconds: of a turn, which has one step at least.
      rounds: turns of each number, at least 1.

    Returns:
      For each number: seconds per step of each round.

    Raises:
      ValueError: there are no rounds; trainers share a model, or have several workers; or, from
        `make_trainer`, the batch cannot be split into that many.
      NotFiniteError: from a step, as of `Trainer.train_step`.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: must be at least 1")
    trainers = {number: make_trainer(number) for number in numbers}
    if len({id(made.state.model) for made in trainers.values()}) < len(trainers):
        raise ValueError("make_trainer must make a new model each time, which is then trained")
    if any(made.workers.count > 1 for made in trainers.values()):
        raise ValueError("times are of one worker: with several, each would count its own steps")
    for made in trainers.values():
        for _ in range(_WARM_UP):
            _seconds_per_step(made, inputs, labels, 0.0)
    found: dict[int, list[float]] = {number: [] for number in trainers}
    for _ in range(rounds):
        for number, made in trainers.items():
            found[number].append(_seconds_per_step(made, inputs, labels, seconds))
    return found


def fastest_microbatches(
    times: Mapping[int, Sequence[float]], usual: int
) -> tuple[int, float] | None:
    """Which number was faster than the usual one in every turn; of several, the fastest by median.

    Each of its turns must be faster than each of the usual number's. In five rounds, a number that
    takes just as long has this by chance once in 252 measurements: of ten turns in random order,
    its five come first.

    Args:
      times: from `time_microbatches`.
      usual: the number that the turns have to be faster than.

    Returns:
      The number, and how many times as fast as the usual one it is, by the medians; None where
      there is none.
    """
    faster = [number for number in times if max(times[number]) < min(times[usual])]
    if not faster:
        return None
    best = min(faster, key=lambda number: statistics.median(times[number]))
    return best, statistics.median(times[usual]) / statistics.median(times[best])


def _seconds_per_step(made: trainer.Trainer, inputs, labels, seconds: float) -> float:
    began, steps = time.perf_counter(), 0
    while True:
        _wait_for(made.train_step(inputs, labels))
        steps += 1
        if (taken := time.perf_counter() - began) >= seconds:
            return taken / steps


def _wait_for(result: step.StepResult) -> None:
    result.losses["total"].numpy()
