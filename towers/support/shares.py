"""Which microbatches each tower computes: a run of consecutive ones, as evenly as possible."""

import dataclasses
from collections.abc import Sequence

from towers.support import container_limits, machine, worker_errors

MOST_BY_DEFAULT = 8


def default_microbatches(global_batch_size: int) -> int:
    """The largest number up to 8 that divides the batch, whatever the towers and devices."""
    numbers = range(MOST_BY_DEFAULT, 0, -1)
    return next(number for number in numbers if global_batch_size % number == 0)


def check(
    global_batch_size: int, num_microbatches: int, towers_of_workers: Sequence[int] = (1,)
) -> None:
    """Checks that the microbatches are equal, and that every tower of every worker has one.

    Raises:
      ValueError: with the numbers that do not fit.
    """
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size={global_batch_size}: must be at least 1")
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches={num_microbatches}: must be at least 1")
    towers = sum(towers_of_workers)
    if towers > num_microbatches:
        of_all = "" if len(towers_of_workers) == 1 else " on all workers together"
        raise ValueError(
            f"num_towers={towers}{of_all}: must be at most num_microbatches={num_microbatches}, "
            "because each tower computes at least one"
        )
    if global_batch_size % num_microbatches:
        raise ValueError(
            f"global_batch_size={global_batch_size}: must be divisible by "
            f"num_microbatches={num_microbatches}"
        )


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
      global_batch_size: examples of one step; a multiple of `num_microbatches`.
      num_microbatches: equal parts of the global batch, at least one for each tower.
      towers_of_workers: how many towers each worker has.
      worker: index of this worker.
    """

    global_batch_size: int
    num_microbatches: int
    towers_of_workers: Sequence[int] = (1,)
    worker: int = 0

    @property
    def microbatch_size(self) -> int:
        """Examples of a microbatch."""
        return self.global_batch_size // self.num_microbatches

    @property
    def of_workers(self) -> list[list[range]]:
        """The microbatches of every tower, by worker and tower."""
        runs = iter(evenly(self.num_microbatches, sum(self.towers_of_workers)))
        return [[next(runs) for _ in range(towers)] for towers in self.towers_of_workers]

    @property
    def of_towers(self) -> list[range]:
        """The microbatches of each tower of this worker."""
        return self.of_workers[self.worker]

    @property
    def tower_batch_sizes(self) -> list[int]:
        """Examples of each tower of this worker."""
        return [len(own) * self.microbatch_size for own in self.of_towers]

    def microbatches(self, worker: int | None = None) -> range:
        """The microbatches of a worker; None for this one."""
        own = self.of_workers[self.worker if worker is None else worker]
        return range(own[0].start, own[-1].stop)

    @property
    def examples(self) -> range:
        """The places in the global batch of this worker's examples."""
        own, size = self.microbatches(), self.microbatch_size
        return range(own.start * size, own.stop * size)

    def first_tower(self, worker: int) -> int:
        """The number of a worker's first tower among the towers of all workers."""
        return sum(self.towers_of_workers[:worker])


def at_once(tower_devices: Sequence[str]) -> int | None:
    """How many of its microbatches a tower computes side by side; None for all of them.

    On CPUs, as many as keep all cores busy: one for each core, divided among the towers. More would
    be no faster, and the activations of each take memory.
    """
    if not machine.are_cpus(tower_devices):
        return None
    return -(-container_limits.available_cores() // len(tower_devices))


def agreed(global_batch_size: int, num_microbatches: int, num_towers: int, workers) -> Shares:
    """The shares of all `worker.Workers`, which call it together; arguments as a Trainer's.

    Raises:
      ValueError: as `check`.
      WorkerError: another worker has other sizes, so that examples would not weigh the same.
    """
    if num_microbatches == 0 < global_batch_size:
        num_microbatches = default_microbatches(global_batch_size)
    sizes = [global_batch_size, num_microbatches]
    said = workers.exchange("a Trainer's sizes", [num_towers, *sizes])
    for index, of_worker in enumerate(said):
        are_sizes = isinstance(of_worker, list) and [type(size) for size in of_worker] == [int] * 3
        worker_errors.check_fits(are_sizes, workers.name(index))
        if of_worker[1:] != sizes:
            batch, microbatches = of_worker[1:]
            raise worker_errors.WorkerError(
                f"{workers.name(index)} has global_batch_size={batch} and num_microbatches="
                f"{microbatches}, and {workers.name(workers.index)} has {global_batch_size} and "
                f"{num_microbatches}: they must be the same on all workers"
            )
    counts = worker_errors.counts_of_towers([own[0] for own in said], workers.name)
    check(global_batch_size, num_microbatches, counts)
    return Shares(global_batch_size, num_microbatches, counts, workers.index)


def described(counts: Sequence[int]) -> str:
    """How many microbatches the towers have: `2 for each tower`, `3 or 2 for a tower`."""
    each = sorted(set(counts), reverse=True)
    return f"{each[0]} for each tower" if len(each) == 1 else f"{each[0]} or {each[1]} for a tower"
