"""Which microbatches each tower computes: a run of consecutive ones, as evenly as possible."""

import dataclasses
from collections.abc import Sequence

from towers import machine


def evenly(count: int, parts: int) -> list[range]:
    """`count` things in `parts` runs of consecutive ones, whose lengths differ by at most 1.

    With more parts than things some runs are empty.
    """
    ends = [-(-part * count // parts) for part in range(parts + 1)]
    return [range(first, end) for first, end in zip(ends, ends[1:], strict=False)]


@dataclasses.dataclass(frozen=True)
class Shares:
    """The shares of all towers of all workers, as one of the workers sees them.

    Attributes:
      num_microbatches: of the global batch.
      towers_of_workers: how many towers each worker has.
      worker: index of this worker.
    """

    num_microbatches: int
    towers_of_workers: Sequence[int] = (1,)
    worker: int = 0

    def tower_shares(self, worker: int | None = None) -> list[range]:
        """The microbatches of each tower of a worker; None for this one."""
        worker = self.worker if worker is None else worker
        first = sum(self.towers_of_workers[:worker])
        everyone = evenly(self.num_microbatches, sum(self.towers_of_workers))
        return everyone[first : first + self.towers_of_workers[worker]]

    def microbatches(self, worker: int | None = None) -> range:
        """The microbatches of a worker; None for this one."""
        shares = self.tower_shares(worker)
        return range(shares[0].start, shares[-1].stop)


def at_once(tower_devices: Sequence[str]) -> int | None:
    """How many of its microbatches a tower computes side by side; None for all of them.

    On CPUs, as many as keep all cores busy: one for each core, divided among the towers. More would
    be no faster, and the activations of each take memory.
    """
    if not machine.are_cpus(tower_devices):
        return None
    return -(-machine.available_cores() // len(tower_devices))
