"""How a side counts its own steps. Nothing but the standard library: every peer imports it."""

import json
import os
import sys
import time

WARM_UP_STEPS = 12  # tracing, compiling, filling queues
LEAD_IN_STEPS = 5  # of each turn: they use up what was made ready during the others' turns


class Counter:
    """Reports each turn to `benchmarks.turns`; what the process prints goes to stderr."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._turn: dict | None = None  # none yet: the warm-up
        self._uncounted = WARM_UP_STEPS
        self._steps, self._images, self._begun = 0, 0, 0.0

    def step_done(self, images: int) -> None:
        """Counts a step of so many images; where the turn is over, reports it and waits.

        Ends the process at the end of the input: whoever listened is gone.
        """
        now = time.perf_counter()
        if self._uncounted:
            self._uncounted -= 1
            self._begun = now
            if self._turn is None and not self._uncounted:
                self._wait_for_turn(0.0)
            return
        self._steps += 1
        self._images += images
        seconds = now - self._begun
        if self._steps >= self._turn.get("steps", 0) and seconds >= self._turn.get("seconds", 0):
            self._wait_for_turn(seconds)

    def _wait_for_turn(self, seconds: float) -> None:
        print(json.dumps({"images": self._images, "seconds": seconds}), file=self._out)
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # no final checkpoint, no final evaluation
        self._turn, self._uncounted = json.loads(line), LEAD_IN_STEPS
        self._steps, self._images = 0, 0
