"""Which workers an elastic launcher can start: places that are lost for a while when one dies."""

import time
from collections.abc import Callable, Collection, Sequence

ANOTHER_IS_GONE = 138  # `worker_errors.GoneError.exit_code`, without importing TensorFlow
_LOWEST_TO_TRY_AGAIN = 128


def as_exit_code(code: int) -> int:
    """As a shell has it: 128 + n for a process that signal n has ended."""
    return 128 - code if code < 0 else code


def exit_code(codes: Sequence[int]) -> int:
    """One exit code for all workers: 0, or the first one's that did not end for another's sake."""
    failed = [as_exit_code(code) for code in codes if code]
    of_itself = [code for code in failed if code != ANOTHER_IS_GONE]
    return next(iter(of_itself or failed), 0)


def may_be_tried_again(codes: Sequence[int]) -> bool:
    """Whether to start all again may help: nobody ended with an error of its own (docs/workers.md).

    Such an error, a wrong flag or a full disk, would come back forever.
    """
    return all(code == 0 or as_exit_code(code) >= _LOWEST_TO_TRY_AGAIN for code in codes)


def dead(codes: Sequence[int], asked: Collection[int]) -> list[int]:
    """The workers that ended by themselves; if there is none, those that had to be ended.

    Args:
      codes: of all workers, by their index.
      asked: those that the launcher asked to end, or killed, because they had not ended after
        another.
    """
    failed = [
        index for index, code in enumerate(codes) if as_exit_code(code) not in (0, ANOTHER_IS_GONE)
    ]
    return [index for index in failed if index not in asked] or failed


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
