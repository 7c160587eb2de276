"""The workers that make a step together: what a step, a run and an evaluation ask of them.

A worker is a process with its own towers. To the rest of a step it is like a tower: `join` takes
what this process's towers have computed and gives that of all towers, the same on every worker.
What is averaged and applied afterwards is then the same everywhere, and weights are never sent.

`Workers` is a run in one process; `multi_worker.collectives.MultiWorker` a run in several.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towers import errors, gradients, shares


class Workers(contextlib.AbstractContextManager):
    """The workers of a run, as one of them sees them; these are one alone, with nobody to talk to.

    Each calls `exchange`, `from_chief`, `broadcast` and the training step in the same order as the
    others; each call says what it is for, and where two differ, a WorkerError names both. As a
    context it tells the others what goes wrong.

    Attributes:
      count: number of workers.
      index: of this one.
      is_chief: whether this worker is the one that writes.
    """

    count, index, is_chief = 1, 0, True
    _signal: int | None = None

    def __exit__(self, *_) -> None:
        pass

    def name(self, index: int) -> str:
        """A worker as messages name it."""
        return f"worker {index}"

    def join(
        self, sums: gradients.Sums, values: Sequence, split: shares.Shares
    ) -> tuple[list[gradients.Gradient], list]:
        """The total of the gradients, and the values of all microbatches, on every worker.

        Called in the step's graph.

        Args:
          sums: of this worker's gradients, from `gradients.sum_over_share`.
          values: tensors [microbatches of this worker, ...].
          split: which microbatches each worker has.
        """
        whole = (0, split.num_microbatches)
        return gradients.add_up(sums, whole, gradients.add_weight_by_weight), list(values)

    def ask_to_stop(self, signal_number: int | None) -> None:
        """Notes that this worker was asked to stop; None takes that back."""
        self._signal = signal_number

    def stop_asked(self) -> int | None:
        """The signal that asked a worker to stop, which all know since the last step; or None."""
        return self._signal

    def broadcast(self, what: str, variables: Sequence[tf.Variable]) -> None:
        """Gives every worker the chief's values."""

    def exchange(self, what: str, message: object) -> list:
        """The messages of all workers, by their index; a message is what JSON can hold."""
        return [message]

    def from_chief(self, what: str, make: Callable[[], object]) -> Any:
        """What the chief makes, on every worker."""
        return make()

    def watched(self) -> contextlib.AbstractContextManager:
        """While entered, an error that another worker's end has caused is reported as such."""
        return contextlib.nullcontext()


def check_same(
    workers: Workers, what: str, values: Mapping, label: Callable[[str], str] = "{} ".format
) -> None:
    """Checks that all workers have the same values, by name, as JSON can hold them.

    `what` says what the values are about, `label` makes of a name what stands before its value.

    Raises:
      WorkerError: names what differs, with the values of a worker and of the chief.
    """
    chief, *others = workers.exchange(what, dict(values))
    for index, other in enumerate(others, start=1):
        if different := errors.differences(chief, other, workers.name(0), label):
            raise errors.WorkerError(
                f"{workers.name(index)} differs from {workers.name(0)}: {'; '.join(different)}"
            )
