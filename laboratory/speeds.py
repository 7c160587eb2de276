"""How long a simulated worker takes for a gradient.

The unit of virtual time is a usual gradient: at `constant` speed every one takes 1.
"""

import dataclasses
import math

import numpy as np

SPEEDS = {
    "constant": "every gradient takes 1",
    "jitter": "log-normal around a mean of 1, drawn for every gradient",
    "straggler": "the last worker takes --slowdown for every gradient",
    "two_speeds": "the second half of the workers take --slowdown for every gradient",
    "dying": "the last worker dies at --dies_at, in the middle of a gradient",
}
JITTER = 0.5  # standard deviation of the logarithm: one gradient in twenty takes more than 2


@dataclasses.dataclass(frozen=True)
class Speeds:
    """The speeds of all workers.

    Attributes:
      name: one of SPEEDS.
      workers: how many; at least 1.
      slowdown: time of a slow worker's gradient; at least 1.
      dies_at: virtual time at which the last worker of `dying` is gone.
      seed: of the jitter.
    """

    name: str = "constant"
    workers: int = 1
    slowdown: float = 4.0
    dies_at: float = 50.0
    seed: int = 0

    def __post_init__(self):
        if self.name not in SPEEDS:
            raise ValueError(f"speeds={self.name!r}: must be one of {', '.join(SPEEDS)}")

    def of_gradient(self, worker: int, count: int) -> float:
        """Virtual time that a worker takes for its gradient number `count`, under any rule."""
        if self.name == "jitter":
            drawn = np.random.default_rng((self.seed, worker, count)).standard_normal()
            return math.exp(JITTER * drawn - JITTER**2 / 2)
        first_slow = {"straggler": self.workers - 1, "two_speeds": (self.workers + 1) // 2}
        return self.slowdown if worker >= first_slow.get(self.name, self.workers) else 1.0

    def death(self, worker: int) -> float:
        """Virtual time at which a worker is gone; infinity for never."""
        dies = self.name == "dying" and worker == self.workers - 1
        return self.dies_at if dies else math.inf
