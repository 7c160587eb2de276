"""The workers that make a step together: what a step, a run and an evaluation ask of them.

A worker is a process with its own towers. To the rest of a step it is like a tower: `join` takes
the results of this process's towers and gives one result per worker, the same ones on every worker.
What is averaged and applied afterwards is then the same everywhere, and weights are never sent.

`SingleWorker` is a run in one process; `multi_worker.collectives.MultiWorker` a run in several.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import tensorflow as tf

from towers import tower
from towers.support import errors

_Made = TypeVar("_Made")


class WorkerError(errors.UserError):
    """Another worker is not there, is gone, has ended, or does not fit this one."""


def check_fits(fits: bool, name: str) -> None:
    """Raises a WorkerError unless `fits`: whoever reaches a worker's port can send anything."""
    if not fits:
        raise says_no_worker(name)


def says_no_worker(name: str) -> WorkerError:
    """What to raise where something has come that no worker sends."""
    return WorkerError(f"{name} has sent what no worker sends; is it another program?")


class Workers(Protocol):
    """The workers of a run, as one of them sees them.

    Each calls `exchange`, `from_chief`, `barrier`, `broadcast` and `all_gather` in the same order
    as the others, or they wait for each other forever. As a context it tells them what goes wrong.

    Attributes:
      count: number of workers.
      index: of this one.
    """

    count: int
    index: int

    def __enter__(self) -> "Workers": ...

    def __exit__(self, *error) -> None: ...

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes."""

    def name(self, index: int) -> str:
        """A worker as messages name it."""

    def start(self, reduction: str) -> None:
        """Starts TensorFlow's runtime between the workers, before TensorFlow does any work.

        Gradients are added up by `reduction`, one of `multi_worker.collectives.REDUCTIONS`.
        """

    def join(self, results: Sequence[tower.TowerResult]) -> list[tower.TowerResult]:
        """What the towers of all workers hand to the update. Called in the step's graph."""

    def ask_to_stop(self, signal_number: int | None) -> None:
        """Notes that this worker was asked to stop."""

    def stop_asked(self) -> int | None:
        """The signal that asked a worker to stop, as all know it since the last step; or None."""

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Gives every worker the chief's values."""

    def all_gather(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """The arrays of every worker; all have the same shapes."""

    def exchange(self, message: object) -> list:
        """The messages of all workers, by their index; a message is what JSON can hold."""

    def from_chief(self, make: Callable[[], object]) -> object:
        """What the chief makes, on every worker."""

    def barrier(self) -> None:
        """Returns when the chief has come here."""

    def watched(self) -> contextlib.AbstractContextManager:
        """While entered, an error that another worker's end has caused is said as such."""


class SingleWorker(contextlib.AbstractContextManager):
    """A run in one process, with nobody to talk to; `Workers` says what each method is."""

    count, index, is_chief = 1, 0, True

    def __init__(self):
        self._asked: int | None = None

    def __exit__(self, *_) -> None:
        pass

    def name(self, index: int) -> str:
        return f"worker {index}"

    def start(self, reduction: str) -> None:
        pass

    def join(self, results: Sequence[tower.TowerResult]) -> list[tower.TowerResult]:
        return list(results)

    def ask_to_stop(self, signal_number: int | None) -> None:
        self._asked = signal_number

    def stop_asked(self) -> int | None:
        return self._asked

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        pass

    def all_gather(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        return [list(arrays)]

    def exchange(self, message: object) -> list:
        return [message]

    def from_chief(self, make: Callable[[], object]) -> object:
        return make()

    def barrier(self) -> None:
        pass

    def watched(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


def chief_first(workers: Workers, make: Callable[[], _Made]) -> _Made:
    """What `make` gives, which the chief calls before the others do.

    So that what it downloads and decodes is there for others that share its files.
    """
    if not workers.is_chief:
        workers.barrier()
    made = make()
    if workers.is_chief:
        workers.barrier()
    return made
