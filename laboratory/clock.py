"""A virtual clock: events in the order of their time; at equal times, in that of their making."""

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """A queue of events. Nothing waits: time is a number, and the next event says what it is.

    Attributes:
      now: virtual time of the current event, from 0.
    """

    def __init__(self):
        self.now = 0.0
        self._events = []  # a heap of (time, whether it is a measurement, number, call)
        self._numbers = itertools.count()
        self._stopped = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls `call` so much later; events of equal time come in the order of their making."""
        self._add(self.now + seconds, False, call)

    def measure_at(self, time: float, call: Callable[[], None]) -> None:
        """Calls `call` at a time, after all events of that time."""
        self._add(time, True, call)

    def _add(self, time: float, is_measurement: bool, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, is_measurement, next(self._numbers), call))

    def run(self, until: float) -> None:
        """Advances the time up to `until`, inclusive."""
        while not self._stopped and self._events and self._events[0][0] <= until:
            self.now, _, _, call = heapq.heappop(self._events)
            call()

    def stop(self) -> None:
        """Ends the run after the current event."""
        self._stopped = True
