"""Runs an update rule on simulated workers: real gradients, virtual time."""

import dataclasses
import functools
import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from laboratory import cluster, problems, rules, speeds


class Point(NamedTuple):
    """The state of a run at a virtual time.

    time: virtual.
    examples: the number whose gradients are in the model.
    loss: of the model, on test examples.
    accuracy: of the model, on test examples.
    distance: of the workers from the model, see cluster.Cluster.
    """

    time: float
    examples: int
    loss: float
    accuracy: float
    distance: float


def first(points: Sequence[Point], accuracy: float) -> Point | None:
    """The first point at which a model was as accurate; None if it never was.

    It is the middle one of three points whose mean counts, because one point is off by chance.
    """
    for three in zip(points, points[1:], points[2:], strict=False):
        if statistics.mean(point.accuracy for point in three) >= accuracy:
            return three[1]
    return None


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of running a rule.

    Attributes:
      rule: its key in rules.RULES.
      rate: its learning rate.
      model: which weights its one model is.
      points: in the order of time, up to the end or to where the model was no longer finite.
      staleness: see rules.Rule.
      began: gradients that were begun; some were not finished, or died with their worker.
      used: gradients that are in the model.
      dropped: see rules.Rule.
      updates: of the model.
      weights: of the model.
      diverged: weights or loss were no longer finite, and the run ended.
      work: the workers' gradients, see cluster.Cluster.
      behind, updated_at: see cluster.Cluster.
    """

    rule: str
    rate: float
    model: str
    points: Sequence[Point]
    staleness: Counter
    began: int
    used: int
    dropped: int
    updates: int
    weights: np.ndarray
    diverged: bool
    work: Sequence[cluster.Work] = ()
    behind: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    updated_at: Sequence[float] = ()

    @property
    def end(self) -> Point:
        """The last point."""
        return self.points[-1]

    @property
    def examples_per_second(self) -> float:
        """Examples in the model for a unit of virtual time."""
        return self.end.examples / self.end.time if self.end.time else 0.0

    def first(self, accuracy: float) -> Point | None:
        """See `first`."""
        return first(self.points, accuracy)

    def weights_sha256(self) -> str:
        """Of the model's weights."""
        return hashlib.sha256(np.ascontiguousarray(self.weights).tobytes()).hexdigest()


def run(
    name: str,
    rule: rules.Rule,
    problem: problems.Problem,
    of_workers: speeds.Speeds,
    *,
    until: float,
    message: float = 0.0,
    measurements: int = 20,
    every_examples: int | None = None,
    noticed_after: float = 10.0,
    enough: float | None = None,
) -> Run:
    """Runs a rule; the same arguments give the same run.

    Args:
      name: of the rule, for the result.
      rule: a new one.
      problem: what the workers compute.
      of_workers: how many they are, and how fast.
      until: virtual time at which the run ends.
      message: virtual time of a message.
      measurements: of the model, at even distances in time, besides the one at time 0.
      every_examples: instead, measures after so many examples in the model, for fair races: at even
        distances in time, a slow run would be measured more often.
      noticed_after: virtual time from a worker's death until the rule is told.
      enough: accuracy, as the mean of three points, that ends the run early; None for never.

    Returns:
      The result, up to `until` or to where weights or loss were no longer finite.
    """
    workers = cluster.Cluster(problem, of_workers, message)
    points, diverged = [], []

    def measure():
        measured = problem.evaluate(rule.weights)
        distance = workers.distance(rule.weights)
        # A sum of weights is finite only if they are.
        if not np.isfinite([measured.loss, distance, rule.weights.sum(dtype=np.float64)]).all():
            workers.clock.stop()
            diverged.append(workers.clock.now)
            return
        examples = rule.used * problem.batch
        points.append(Point(workers.clock.now, examples, *measured, distance))
        if enough is not None and first(points[-3:], enough):
            workers.clock.stop()

    def lose(worker):
        workers.alive.remove(worker)
        rule.lost(worker)

    def measure_next():
        if rule.used * problem.batch >= points[-1].examples + every_examples:
            measure()

    if every_examples is None:
        for number in range(measurements + 1):
            workers.clock.measure_at(until * (number / measurements), measure)
    else:
        workers.clock.measure_at(0.0, measure)
        workers.on_update = measure_next
    for worker in workers.workers:
        if math.isfinite(of_workers.death(worker)):
            workers.clock.after(
                of_workers.death(worker) + noticed_after, functools.partial(lose, worker)
            )
    with np.errstate(over="ignore", invalid="ignore"):  # a rate may be too large: see diverged
        rule.start(workers)
        workers.clock.run(until)
    return Run(
        rule=name,
        rate=rule.rate,
        model=rule.model,
        points=points,
        staleness=rule.staleness,
        began=workers.began,
        used=rule.used,
        dropped=rule.dropped,
        updates=rule.updates,
        weights=rule.weights,
        diverged=bool(diverged) or not np.isfinite(rule.weights).all(),
        work=workers.work,
        behind=workers.behind,
        updated_at=workers.updated_at,
    )
