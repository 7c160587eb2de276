"""Which workers an elastic launcher can start: their places are lost for a while when one dies."""

import time
from collections.abc import Callable, Collection, Sequence

ANOTHER_IS_GONE = 138  # `worker_errors.GoneError.exit_code`, without importing TensorFlow
_LOWEST_TO_TRY_AGAIN = 128
_STOPPED = 143  # by SIGTERM


def as_exit_code(code: int) -> int:
    """As a shell has it: 128 + n for a process that signal n has ended."""
    return 128 - code if code < 0 else code


def exit_code(codes: Sequence[int], asked: Collection[int] = ()) -> int:
    """One exit code for all workers: 0 where all ended with it, else the one that says most.

    That is the first error that would recur; else the first death; else, that another is gone.

    Args:
      codes: of all workers, by their index.
      asked: those that the launcher ended, whose codes say least of all.
    """

    def says(index: int) -> tuple:
        code = as_exit_code(codes[index])
        return index in asked, code >= _LOWEST_TO_TRY_AGAIN, code == ANOTHER_IS_GONE

    failed = [index for index, code in enumerate(codes) if code]
    return as_exit_code(codes[min(failed, key=says)]) if failed else 0


def may_be_tried_again(codes: Sequence[int]) -> bool:
    """Whether starting all again may help: none ended with an error of its own (docs/workers.md).

    Such an error, a wrong flag or a full disk, would recur forever.
    """
    return all(code == 0 or as_exit_code(code) >= _LOWEST_TO_TRY_AGAIN for code in codes)


def ended_as_asked(codes: Sequence[int]) -> bool:
    """Whether all ended as workers do after SIGTERM to one of them."""
    return all(as_exit_code(code) in (0, _STOPPED, ANOTHER_IS_GONE) for code in codes)


def dead(codes: Sequence[int], asked: Collection[int]) -> list[int]:
    """The workers that died by themselves.

    Args:
      codes: of all workers, by their index.
      asked: those that the launcher asked to end, or killed.
    """
    return [
        index
        for index, code in enumerate(codes)
        if as_exit_code(code) not in (0, ANOTHER_IS_GONE) and index not in asked
    ]


class Slots:
    """Places for workers, of which some are lost for a while."""

    def __init__(
        self,
        count: int,
        least: int,
        return_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          count: of places.
          least: that a run is started with; lost ones are taken early where it needs them.
          return_seconds: how long a place is lost whose worker has died.
          clock: () to seconds.
        """
        self._returns_at = dict.fromkeys(range(count), float("-inf"))
        self._least, self._seconds, self._clock = least, return_seconds, clock

    def there(self) -> list[int]:
        """The places that can be used now, in order."""
        by_return = sorted(self._returns_at, key=lambda slot: (self._returns_at[slot], slot))
        now = self._clock()
        back = sum(at <= now for at in self._returns_at.values())
        return sorted(by_return[: max(back, self._least)])

    def lose(self, slots: Sequence[int]) -> None:
        """Notes that the workers in these places have died."""
        for slot in slots:
            self._returns_at[slot] = self._clock() + self._seconds
