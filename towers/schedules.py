"""The learning rate: a pure function of the examples seen, stated in epochs.

A step of k towers consumes k times the examples of a step of one tower. A rule keyed to steps
therefore decays k times too late in epochs; a rule keyed to examples cannot.
"""

import dataclasses
import fractions
import itertools
import math

SCHEDULES = ("exponential", "piecewise", "cosine", "linear", "constant")


@dataclasses.dataclass(frozen=True)
class LearningRate:
    """The learning rate at any number of examples seen: `initial * warm_up * decay`.

      warm_up      min(1, epoch / warmup_epochs)
      exponential  decay_factor ** floor(epoch / epochs_per_decay)   (the tutorial's staircase)
      piecewise    decay_factor ** (number of decay_epochs that are <= epoch)
      cosine       (1 + cos(pi * p)) / 2    (Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5)
      linear       1 - p
      constant     1

    where `epoch = examples_seen / examples_per_epoch`, and p runs from 0 at the end of the warm-up
    to 1 at `total_epochs` and stays there.

    Attributes:
      schedule: one of SCHEDULES.
      initial: rate before any decay, after scaling; above 0.
      examples_per_epoch: size of the training split.
      epochs_per_decay: epochs between decays (`exponential`); above 0.
      decay_factor: what a decay multiplies by (`exponential`, `piecewise`); in (0, 1].
      decay_epochs: rising epochs, above 0, at which `piecewise` decays.
      warmup_epochs: epochs of linear warm-up; 0 for none.
      total_epochs: where `cosine` and `linear` reach 0.

    Raises:
      ValueError: `schedule` is not one of them, or a number is out of its range.

    Example:
      >>> rate = LearningRate("exponential", 0.1, 50_000, epochs_per_decay=2.0, decay_factor=0.5)
      >>> rate(0), rate(99_999), rate(100_000)
      (0.1, 0.1, 0.05)
    """

    schedule: str
    initial: float
    examples_per_epoch: int
    epochs_per_decay: float = 350.0
    decay_factor: float = 0.1
    decay_epochs: tuple[float, ...] = ()
    warmup_epochs: float = 0.0
    total_epochs: float = 0.0

    def __post_init__(self):
        rising = itertools.pairwise((0.0, *self.decay_epochs, math.inf))
        least_end = self.warmup_epochs if self.schedule in ("cosine", "linear") else -math.inf
        for name, holds, allowed in (
            ("schedule", self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
            ("initial", 0 < self.initial < math.inf, "above 0"),
            ("examples_per_epoch", self.examples_per_epoch >= 1, "at least 1"),
            ("epochs_per_decay", self.epochs_per_decay > 0, "above 0"),
            ("decay_factor", 0 < self.decay_factor <= 1, "in (0, 1]"),
            ("decay_epochs", all(a < b for a, b in rising), "above 0 and rising"),
            ("warmup_epochs", 0 <= self.warmup_epochs < math.inf, "at least 0"),
            ("total_epochs", self.total_epochs > least_end, f"above warmup_epochs={least_end:g}"),
        ):
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be {allowed}")

    def __call__(self, examples_seen: int) -> float:
        """The rate of the update that follows `examples_seen` examples; >= 0."""
        epoch = examples_seen / self.examples_per_epoch
        warm_up = min(1.0, epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        return self.initial * warm_up * self._decay(examples_seen, epoch)

    def _decay(self, examples_seen: int, epoch: float) -> float:
        size = self.examples_per_epoch
        if self.schedule == "exponential":
            return self.decay_factor ** (examples_seen // (exact(self.epochs_per_decay) * size))
        if self.schedule == "piecewise":
            passed = sum(exact(boundary) * size <= examples_seen for boundary in self.decay_epochs)
            return self.decay_factor**passed
        if self.schedule == "constant":
            return 1.0
        progress = (epoch - self.warmup_epochs) / (self.total_epochs - self.warmup_epochs)
        progress = min(1.0, max(0.0, progress))
        if self.schedule == "linear":
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress))


def exact(epochs: float) -> fractions.Fraction:
    """The fraction that was meant: 0.1 is 1/10. (In floating point 0.3 // 0.1 is 2, not 3.)"""
    return fractions.Fraction(epochs).limit_denominator(1_000_000)
