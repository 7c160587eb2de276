"""Compares two ways of training on the same test images, over several seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES, CONFIDENCE = 2_000, 0.95


class Difference(NamedTuple):
    """How much more often one way is right than the other.

    mean: the difference of the accuracies, averaged over the seeds.
    low: lower end of its 95 % interval, by a bootstrap over the test images.
    high: upper end.
    of_seeds: the difference of each seed.
    """

    mean: float
    low: float
    high: float
    of_seeds: tuple[float, ...]

    @property
    def verdict(self) -> int:
        """1 for more often right, -1 for less often, 0 if the data cannot tell.

        They can if all seeds agree and the interval excludes 0.
        """
        signs = set(np.sign([self.low, self.high, *self.of_seeds]))
        return int(signs.pop()) if len(signs) == 1 else 0

    def __str__(self) -> str:
        """In percentage points, as `-1.2 (-1.9 to -0.5)`."""
        mean, low, high = (round(100 * x, 1) + 0.0 for x in (self.mean, self.low, self.high))
        return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Difference:
    """Compares two ways that were trained with the same seeds.

    Both are evaluated on the same images, so what makes an image easy or hard drops out of the
    difference: the interval is that of the mean of `ours - theirs` over the images, and is narrower
    than those of the two accuracies. (Efron & Tibshirani 1993, An Introduction to the Bootstrap,
    chapter 13.)

    Args:
      ours: for each seed whether each test image was right, bool [images].
      theirs: the same for the other way.
    """
    of_images = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)  # [seeds, images]
    mean_of_image = of_images.mean(axis=0)
    count = len(mean_of_image)
    random = np.random.default_rng(0)
    resampled = [mean_of_image[random.integers(0, count, count)].mean() for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Difference(
        float(mean_of_image.mean()), float(low), float(high), tuple(map(float, of_images.mean(1)))
    )
