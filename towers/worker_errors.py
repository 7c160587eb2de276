"""What is raised where another worker is the reason."""

from collections.abc import Callable, Sequence

from towers import errors


class WorkerError(errors.UserError):
    """Another worker does not fit this one, or has ended with an error of its own."""


class GoneError(WorkerError):
    """Another worker is late, is gone or was stopped: starting all of them again may help."""

    exit_code = 138  # above 128, as of a signal, cluster managers try again (docs/workers.md)


def check_fits(fits: bool, name: str) -> None:
    """Raises a WorkerError unless `fits`: whoever reaches a worker's port can send anything."""
    if not fits:
        raise says_no_worker(name)


def says_no_worker(name: str) -> WorkerError:
    """What to raise when something has come that no worker sends."""
    return WorkerError(f"{name} has sent what no worker sends; is it another program?")


def counts_of_towers(counts: Sequence[object], name: Callable[[int], str]) -> list[int]:
    """How many towers each worker has, as they have said it; `name` names a worker."""
    for index, count in enumerate(counts):
        check_fits(type(count) is int and count > 0, name(index))
    return list(counts)
