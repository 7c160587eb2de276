"""What augmentation does to accuracy: the table by hand, and one run of each way on few images."""

import argparse

import numpy as np
import pytest

from benchmarks import augmented
from input_pipeline import datasets

OPTIONS = argparse.Namespace(rounds=2, images=100, epochs=3.0)


def test_a_difference_is_that_of_runs_of_one_seed():
    found = {
        (augmented.PLAIN, 0): {"loss": 0.1, "accuracy": 0.5},
        (augmented.PLAIN, 1): {"loss": 0.3, "accuracy": 0.6},
        ("CutMix, 1", 0): {"loss": 1.0, "accuracy": 0.54},
        ("CutMix, 1", 1): {"loss": 1.2, "accuracy": 0.58},
    }
    plain, mixed = (augmented.figures(way, found, OPTIONS) for way in ("none", "CutMix, 1"))
    assert mixed["against_none_points"] == [4.0, -2.0]
    assert augmented.as_row(plain) == "| none | 0.20 | 55.0% (50.0% to 60.0%) |  |"
    assert (
        augmented.as_row(mixed)
        == "| CutMix, 1 | 1.10 | 56.0% (54.0% to 58.0%) | +1.0 (-2.0 to +4.0) |"
    )


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if "CutMix" in way else pytest.mark.long)
            for way in augmented.WAYS]
)  # fmt: skip
def test_each_way_trains(way, monkeypatch):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (256, 32, 32, 3), np.uint8)
    labels = np.arange(256, dtype=np.int32) % 10
    names = tuple("abcdefghij")
    monkeypatch.setattr(
        datasets, "load", lambda *_: datasets.ImageArrays(images, labels, names, "drawn", "0")
    )
    found = augmented.trained(None, 256, 1.0, way, 0)
    assert 1 < found["loss"] < 4
    assert 0 <= found["accuracy"] <= 0.4
