"""What all four programs train on, and what they print at the end."""

import hashlib
import json

import numpy as np

EPOCHS, BATCH, PATIENCE = 12, 50, 5


def data(seed: int, count: int) -> tuple:
    """((images [n, 16, 16, 3], ages [n, 1]), classes int64 [n]).

    Which of three channels is brighter, and whether age is above a half, make six classes.
    """
    rng = np.random.default_rng(seed)
    channels = rng.integers(3, size=count)
    images = rng.normal(size=(count, 16, 16, 3)) + 0.6 * np.eye(3)[channels][:, None, None]
    ages = rng.uniform(size=(count, 1))
    classes = channels + 3 * (ages[:, 0] > 0.5)
    return (images.astype(np.float32), ages.astype(np.float32)), classes


TRAIN, TEST = data(0, 2000), data(1, 500)


def report(weights: list[np.ndarray], accuracy: float) -> None:
    """Prints a hash of the trained weights, and the accuracy on the test data."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(np.ascontiguousarray(weight).tobytes())
    print(json.dumps({"sha256": digest.hexdigest()[:12], "accuracy": float(accuracy)}))
