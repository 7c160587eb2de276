"""Simulated workers: each computes real gradients, and takes virtual time for them."""

import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from laboratory import clock, problems, speeds


class Work(NamedTuple):
    """A gradient that a worker computes, and the virtual times at which it begins and ends."""

    worker: int
    begin: float
    end: float


class Cluster:
    """The workers, as a rule sees them.

    A gradient is computed at once, on the weights that it is asked for, and handed over when the
    virtual clock says that the worker is done. The n-th gradient to begin takes the n-th batch, as
    if one queue fed all workers.

    Attributes:
      problem: what they compute.
      workers: all of them.
      alive: workers that are not known to be gone, in order.
      holds: worker to the weights that it had when it last began a gradient.
      began: gradients that have begun so far.
      work: each of them, in the order in which they began.
      behind: worker to how many updates the model had got while each of its gradients was computed
        and sent, in order; for rules whose workers send gradients.
      updated_at: virtual times at which the model was updated, in order.
      on_update: called after every update of the model.
    """

    def __init__(self, problem: problems.Problem, of_workers: speeds.Speeds, message: float):
        """
        Args:
          problem: what the workers compute.
          of_workers: how many they are, and how fast.
          message: virtual time that a message takes, weights or gradient, in either direction.
        """
        self.problem = problem
        self.workers = range(of_workers.workers)
        self.alive = list(self.workers)
        self.holds = dict.fromkeys(self.workers, problem.initial)
        self.began = 0
        self.work: list[Work] = []
        self.behind: dict[int, list[int]] = {worker: [] for worker in self.workers}
        self.updated_at: list[float] = []
        self.on_update: Callable[[], None] = lambda: None
        self.clock = clock.Clock()
        self._speeds = of_workers
        self._message = message
        self._count = Counter()  # of each worker's gradients

    def send(self, arrives: Callable[[], None]) -> None:
        """Sends a message, and calls `arrives` when it arrives."""
        self.clock.after(self._message, arrives)

    def compute(
        self,
        worker: int,
        weights: np.ndarray,
        then: Callable[[np.ndarray], None],
        holds: np.ndarray | None = None,
    ) -> None:
        """A worker begins a gradient; if it dies before the gradient is done, the gradient is lost.

        Args:
          worker: who.
          weights: where the gradient is taken, [weights].
          then: called with the gradient, [weights].
          holds: the worker's own weights, if its gradient is taken elsewhere; None for `weights`.
        """
        if self.clock.now >= self._speeds.death(worker):
            return
        seconds = self._speeds.of_gradient(worker, self._count[worker])
        self._count[worker] += 1
        self.holds[worker] = weights if holds is None else holds
        gradient = self.problem.gradient(weights, self.began)
        self.began += 1
        self.work.append(Work(worker, self.clock.now, self.clock.now + seconds))
        if self.clock.now + seconds < self._speeds.death(worker):
            self.clock.after(seconds, functools.partial(then, gradient))

    def ask(self, worker: int, weights: np.ndarray, then: Callable[[np.ndarray], None]) -> None:
        """Weights go to a worker, and its gradient comes back: a message, work, a message."""
        self.send(
            lambda: self.compute(
                worker, weights, lambda gradient: self.send(functools.partial(then, gradient))
            )
        )

    def distance(self, weights: np.ndarray) -> float:
        """The root mean square distance of the workers' weights from these."""
        squares = [
            float(np.sum(np.subtract(self.holds[worker], weights, dtype=np.float64) ** 2))
            for worker in self.alive
        ]
        return math.sqrt(statistics.mean(squares)) if squares else 0.0
