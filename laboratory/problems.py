"""What simulated workers minimize: here a parabola, and a real network in network.py.

Weights are one flat array, so that an update rule reads as its formula.
"""

from typing import NamedTuple, Protocol

import numpy as np


class Measured(NamedTuple):
    """The result of evaluating a model on test images.

    loss: mean cross entropy.
    accuracy: share of the images.
    """

    loss: float
    accuracy: float


class Problem(Protocol):
    """What is to be minimized.

    Attributes:
      initial: weights that every worker begins with, [weights].
      batch: examples of a gradient.
    """

    initial: np.ndarray
    batch: int

    def gradient(self, weights: np.ndarray, number: int) -> np.ndarray:
        """The gradient of batch `number` of the run, [weights], in the type of the weights."""

    def evaluate(self, weights: np.ndarray) -> Measured:
        """Loss and accuracy."""


class Parabola:
    """F(x) = curvature / 2 * x**2, without noise, for the analysis of stability. See Problem."""

    batch = 1

    def __init__(self, curvature: float = 1.0):
        """
        Args:
          curvature: F''; a gradient is `curvature * x`.
        """
        self.curvature = curvature
        self.initial = np.ones(1)

    def gradient(self, weights: np.ndarray, number: int) -> np.ndarray:
        """The same for every batch, float64 [1]."""
        return self.curvature * weights

    def evaluate(self, weights: np.ndarray) -> Measured:
        """F, and no accuracy."""
        return Measured(float(self.curvature / 2 * weights[0] ** 2), 0.0)
