"""Update rules: what becomes of the gradients of workers that may or may not wait for each other.

In all formulas, w are the weights, k is the number of workers, g_i a gradient of worker i, and η
the learning rate. With one worker every rule except the elastic ones is plain SGD, `w <- w - η g`;
with EASGD the worker itself is, if nothing pulls at it.

Arrays are never written to: an update makes new ones, so what a worker holds does not change.
"""

import abc
import collections
import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from laboratory import cluster


def parameter(default, least, most, text: str):
    """A field of a rule: its default, its range, and what it means."""
    of_type = int if isinstance(least, int) else float
    metadata = {"least": least, "most": most, "text": text, "type": of_type}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class Rule(abc.ABC):
    """What all rules share: the one model, and how many gradients are in it.

    Attributes:
      rate: the learning rate η.
      weights: of the one model that a run ends with.
      updates: of `weights` so far.
      used: gradients that are in `weights`.
      dropped: gradients that came too late, for a step that was made without them. (A gradient that
        died with its worker is not counted: it never came.)
      staleness: the number of updates of `weights` between a worker's reading and its own update,
        to the number of used gradients (or exchanges) that had this staleness.
    """

    source: ClassVar[str]
    drops_late: ClassVar[bool] = False  # gradients for a step that was made without them
    model: ClassVar[str] = "the server's weights"

    rate: float = parameter(0.1, 1e-6, 100.0, "learning rate η")

    def start(self, workers: cluster.Cluster) -> None:
        """Gives all workers something to do, at time 0."""
        self.cluster = workers
        self.weights = workers.problem.initial
        self.updates = self.used = self.dropped = 0
        self.staleness = collections.Counter()
        self.begin()

    @abc.abstractmethod
    def begin(self) -> None:
        """What the workers do first."""

    def lost(self, worker: int) -> None:  # noqa: B027  nothing to do if nobody waits
        """A worker is known to be gone, and is no longer in `cluster.alive`."""

    def updated(self, weights: np.ndarray, used: int, staleness: Sequence[int]) -> None:
        """The model is now `weights`."""
        self.weights = weights
        self.updates += 1
        self.used += used
        self.staleness.update(staleness)
        self.cluster.updated_at.append(self.cluster.clock.now)
        self.cluster.on_update()

    def times(self, factor: float, array: np.ndarray) -> np.ndarray:
        """`factor * array` in the array's type, as an optimizer computes it."""
        return array.dtype.type(factor) * array


def mean(arrays: Collection[np.ndarray]) -> np.ndarray:
    """The sum along the tree that the package's towers use, divided once."""
    from towers import gradients  # here: it imports TensorFlow, and flags should not wait for that

    total = gradients.pairwise_tree(list(arrays), np.add)
    return total / total.dtype.type(len(arrays))


@dataclasses.dataclass
class OfGradients(Rule):
    """A rule whose workers read the weights, and send a gradient back."""

    def ask(self, worker: int) -> None:
        """A worker reads the weights, and its gradient comes to `arrive`."""
        version = self.updates

        def arrive(gradient: np.ndarray) -> None:
            self.cluster.behind[worker].append(self.updates - version)
            self.arrive(worker, version, gradient)

        self.cluster.ask(worker, self.weights, arrive)

    @abc.abstractmethod
    def arrive(self, worker: int, version: int, gradient: np.ndarray) -> None:
        """A gradient that `ask` asked for has arrived at the server.

        Args:
          worker: whose it is.
          version: updates that its weights had seen.
          gradient: [weights].
        """


@dataclasses.dataclass
class Synchronous(OfGradients):
    """Every step waits for all workers.

    w <- w - η/k (g_1 + ... + g_k), all g of the same w
    """

    source = "what the package does"
    drops_late = True

    def begin(self) -> None:
        self.arrived = {}
        for worker in self.cluster.alive:
            self.ask(worker)

    def arrive(self, worker, version, gradient):
        if version < self.updates:  # of a step that was made without it
            self.dropped += 1
            self.ask(worker)
            return
        self.arrived[worker] = gradient
        self.step_if_complete()

    def lost(self, worker):
        self.step_if_complete()

    def step_if_complete(self) -> None:
        """Updates once enough gradients are there; their workers continue with the new weights."""
        if self.arrived and self.is_complete():
            workers = sorted(self.arrived)
            in_order = [self.arrived[worker] for worker in workers]
            change = self.times(self.rate_of_step(len(workers)), mean(in_order))
            self.updated(self.weights - change, len(workers), [0] * len(workers))
            self.arrived = {}
            for worker in workers:
                self.ask(worker)

    def is_complete(self) -> bool:
        """Whether the gradients of all living workers are there."""
        return all(worker in self.arrived for worker in self.cluster.alive)

    def rate_of_step(self, count: int) -> float:
        """η of the next update, from so many gradients."""
        return self.rate


@dataclasses.dataclass
class WarmUp(Synchronous):
    """Synchronous, with k times the rate, reached gradually.

    w <- w - η (1 + (k-1) min(1, e/E)) mean(g), after e examples
    """

    source = "Goyal et al. 2017, arXiv:1706.02677, sections 2.1 and 2.2"

    warm_up: int | None = parameter(
        2_000, 0, 10**9, "examples E over which the rate grows from η to k times η"
    )

    def rate_of_step(self, count):
        if self.warm_up is None:
            return self.rate
        seen = self.used * self.cluster.problem.batch
        done = min(1.0, seen / self.warm_up) if self.warm_up else 1.0
        return self.rate * (1 + (count - 1) * done)


@dataclasses.dataclass
class BackupWorkers(WarmUp):
    """Synchronous, but a step waits only for the first k-b gradients; later ones are dropped.

    w <- w - η/(k-b) (the sum of the first k-b gradients of this w)
    """

    source = "Chen et al. 2016, arXiv:1604.00981"

    warm_up: int | None = parameter(
        None, 0, 10**9, "as in warm_up; without it the rate is η throughout"
    )
    backups: int | None = parameter(
        None, 0, 255, "workers b that a step does not wait for; default: one in 16, rounded up"
    )

    def is_complete(self):
        count = len(self.cluster.workers)
        backups = -(-count // 16) if self.backups is None else self.backups
        needed = max(1, count - backups)
        return len(self.arrived) >= min(needed, len(self.cluster.alive))


@dataclasses.dataclass
class Asynchronous(OfGradients):
    """Every gradient is applied as it arrives, to weights that have changed since.

    w_t+1 = w_t - η g_i(w_t-s), with staleness s
    """

    source = "Dean et al. 2012, Large scale distributed deep networks, Downpour SGD"

    def begin(self) -> None:
        for worker in self.cluster.alive:
            self.ask(worker)

    def arrive(self, worker, version, gradient):
        staleness = self.updates - version
        change = self.times(self.rate_of_gradient(staleness), gradient)
        self.updated(self.weights - change, 1, [staleness])
        self.applied(worker)

    def rate_of_gradient(self, staleness: int) -> float:
        """η of a gradient with this staleness."""
        return self.rate

    def applied(self, worker: int) -> None:
        """What a worker does once its gradient is in the weights."""
        self.ask(worker)


@dataclasses.dataclass
class StalenessScaled(Asynchronous):
    """Asynchronous, but a staler gradient counts less.

    w_t+1 = w_t - η / max(1, s) g_i(w_t-s), with staleness s
    """

    source = "Zhang, Gupta, Lian, Liu 2016, arXiv:1511.05950"

    def rate_of_gradient(self, staleness: int) -> float:
        return self.rate / max(1, staleness)


@dataclasses.dataclass
class BoundedStaleness(Asynchronous):
    """Asynchronous, but nobody runs far ahead: a worker that does waits for the slowest.

    As asynchronous; a worker with c gradients begins its next while c - min(c of all) <= bound
    """

    source = (
        "Ho et al. 2013, More effective distributed ML via a Stale Synchronous Parallel Parameter "
        "Server"
    )

    bound: int = parameter(
        2, 0, 10**6, "gradients that the fastest worker may be ahead of the slowest"
    )

    def begin(self) -> None:
        self.clocks = dict.fromkeys(self.cluster.workers, 0)
        self.waiting = []
        super().begin()

    def applied(self, worker):
        self.clocks[worker] += 1
        self.waiting.append(worker)
        self.release()

    def lost(self, worker):
        self.release()

    def release(self) -> None:
        """Waiting workers begin, unless they are too far ahead of the slowest living one."""
        slowest = min((self.clocks[worker] for worker in self.cluster.alive), default=0)
        waiting, self.waiting = self.waiting, []
        for worker in waiting:
            if self.clocks[worker] - slowest <= self.bound:
                self.ask(worker)
            else:
                self.waiting.append(worker)


class _Local(NamedTuple):
    """What a worker of local SGD has: its weights, and where it is in which round."""

    weights: np.ndarray
    left: int
    steps: int
    version: int


@dataclasses.dataclass
class LocalSGD(Rule):
    """Every worker makes H steps of its own; then all take the mean of their weights.

    H times w_i <- w_i - η g_i(w_i);  then w = w_1 = ... = w_k <- (w_1 + ... + w_k) / k
    """

    source = "Stich 2019, arXiv:1805.09767, algorithm 1"
    model = "the mean of the workers' weights, as last taken"

    local_steps: int = parameter(8, 1, 10**6, "steps H between two means")

    def begin(self) -> None:
        self.arrived = {}
        steps = self.steps_of_round()
        for worker in self.cluster.alive:
            state = _Local(self.weights, steps, steps, self.updates)
            self.cluster.send(functools.partial(self.step, worker, state))

    def steps_of_round(self) -> int:
        """H of the next round."""
        return self.local_steps

    def step(self, worker: int, state: _Local) -> None:
        """A worker begins a step of its own."""
        stepped = functools.partial(self.stepped, worker, state)
        self.cluster.compute(worker, state.weights, stepped)

    def stepped(self, worker: int, state: _Local, gradient: np.ndarray) -> None:
        """The worker makes the step, and begins the next one or sends its weights."""
        weights = state.weights - self.times(self.rate, gradient)
        state = state._replace(weights=weights, left=state.left - 1)
        if state.left:
            self.step(worker, state)
        else:
            self.cluster.send(functools.partial(self.arrive, worker, state))

    def arrive(self, worker: int, state: _Local) -> None:
        """A worker's weights have arrived."""
        if state.version < self.updates:  # of a round that ended without it: it was thought dead
            self.dropped += state.steps
            return
        self.arrived[worker] = state
        self.average_if_complete()

    def lost(self, worker):
        self.average_if_complete()

    def average_if_complete(self) -> None:
        """Takes the mean, once the weights of all living workers are there."""
        if self.arrived and all(worker in self.arrived for worker in self.cluster.alive):
            in_order = [self.arrived[worker] for worker in sorted(self.arrived)]
            used = sum(state.steps for state in in_order)
            self.updated(mean([state.weights for state in in_order]), used, [0] * len(in_order))
            self.begin()


@dataclasses.dataclass
class PostLocalSGD(LocalSGD):
    """Synchronous at first, which the beginning needs; local SGD afterwards.

    As local SGD, with H = 1 for the first S examples
    """

    source = "Lin et al. 2020, arXiv:1808.07217"

    switch_after: int = parameter(2_000, 0, 10**9, "examples S with a mean after every step")

    def steps_of_round(self) -> int:
        seen = self.used * self.cluster.problem.batch
        return self.local_steps if seen >= self.switch_after else 1


@dataclasses.dataclass(frozen=True)
class _Elastic:
    """What a worker of EASGD has: its weights, its steps, and which centre it saw last."""

    weights: np.ndarray
    velocity: np.ndarray
    steps: int = 0
    version: int = 0


@dataclasses.dataclass
class EASGD(Rule):
    """Every worker goes its own way, tied to a centre by a spring that pulls at both.

    Every τ steps:  d = α (x_i - x~);  x_i <- x_i - d;  x~ <- x~ + d
    Every step:     x_i <- x_i - η g(x_i as it was before the pull)
    """

    source = "Zhang, Choromanska, LeCun 2015, arXiv:1412.6651, algorithm 1"
    model = "the centre"

    moving_rate: float | None = parameter(
        None, 0.0, 1.0, "α, how far a pull goes; default: 0.9 / k, the paper's β = 0.9"
    )
    period: int = parameter(8, 1, 10**6, "steps τ between two pulls")

    def begin(self) -> None:
        workers = self.cluster.workers
        self.alpha = 0.9 / len(workers) if self.moving_rate is None else self.moving_rate
        first = _Elastic(self.weights, np.zeros_like(self.weights))
        for worker in workers:
            self.cluster.send(functools.partial(self.step, worker, first))

    def step(self, worker: int, state: _Elastic) -> None:
        """A worker begins a step."""
        stepped = functools.partial(self.stepped, worker, state)
        self.cluster.compute(worker, self.looks_at(state), stepped, state.weights)

    def stepped(self, worker: int, state: _Elastic, gradient: np.ndarray) -> None:
        """The worker makes the step; before every τ-th, it meets the centre and waits for it."""
        moved = self.moved(state, gradient)
        if state.steps % self.period == 0:
            self.cluster.send(functools.partial(self.pull, worker, state, moved))
        else:
            self.step(worker, moved)

    def looks_at(self, state: _Elastic) -> np.ndarray:
        """Where the gradient is taken."""
        return state.weights

    def moved(self, state: _Elastic, gradient: np.ndarray) -> _Elastic:
        """What a worker has after a step, without the pull."""
        weights = state.weights - self.times(self.rate, gradient)
        return dataclasses.replace(state, weights=weights, steps=state.steps + 1)

    def pull(self, worker: int, state: _Elastic, moved: _Elastic) -> None:
        """A worker's weights are at the centre, and the spring pulls at both."""
        pulled = self.times(self.alpha, state.weights - self.weights)
        new = self.period if state.steps else 0  # gradients that are new to the centre
        self.updated(self.weights + pulled, new, [self.updates - state.version])
        back = dataclasses.replace(moved, weights=moved.weights - pulled, version=self.updates)
        self.cluster.send(functools.partial(self.step, worker, back))


@dataclasses.dataclass
class EAMSGD(EASGD):
    """EASGD whose workers have Nesterov's momentum.

    The pull as in EASGD;  v_i <- δ v_i - η g(x_i + δ v_i);  x_i <- x_i + v_i
    """

    source = "Zhang, Choromanska, LeCun 2015, arXiv:1412.6651, algorithm 2"

    momentum: float = parameter(0.9, 0.0, 0.999, "δ of every worker's own velocity")

    def looks_at(self, state: _Elastic) -> np.ndarray:
        return state.weights + self.times(self.momentum, state.velocity)

    def moved(self, state: _Elastic, gradient: np.ndarray) -> _Elastic:
        velocity = self.times(self.momentum, state.velocity) - self.times(self.rate, gradient)
        weights = state.weights + velocity
        return dataclasses.replace(state, weights=weights, velocity=velocity, steps=state.steps + 1)


RULES: dict[str, type[Rule]] = {
    "synchronous": Synchronous,
    "warm_up": WarmUp,
    "backup_workers": BackupWorkers,
    "asynchronous": Asynchronous,
    "staleness_scaled": StalenessScaled,
    "bounded_staleness": BoundedStaleness,
    "local_sgd": LocalSGD,
    "post_local_sgd": PostLocalSGD,
    "easgd": EASGD,
    "eamsgd": EAMSGD,
}
