"""Lighter runs: what the commands train and evaluate in most tests.

The program is the same and works on less: `shapes` has 120 test images and not a thousand,
`cifarnet` and `fastnet` have few channels, and `resnet` has one block in each stage. A run of four
steps takes half the time. Files, graph and messages are those of a whole run.

Where the network itself matters, as for the promise of the same bits, a test takes the fixture
`whole_networks`; where the number of test images matters too, `whole_runs`.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import towers  # noqa: F401  before what imports TensorFlow: it sets it up
from input_pipeline import shapes
from towers.networks import cifarnet, fastnet, resnet

TEST_IMAGES = 120  # whole batches of small runs, and twelve of each class

_DEFAULTS = {
    cifarnet.build: {"filters": 10, "hidden_units": (12, 11)},  # LRN adds up nine channels
    fastnet.build: {"block_filters": (12, 24, 24)},
    resnet.build: {"blocks_per_stage": 1},
}

_make = shapes.make


@functools.cache
def _drawn(split: str, *_) -> tuple[np.ndarray, np.ndarray]:
    """Of `shapes`, once for all runs here, and for the forks of this process."""
    return _make(split)


_drawn("train", *shapes._SPLITS["train"])
made_lighter = frozenset({"networks", "images"})  # what of the runs is, now


@contextlib.contextmanager
def runs() -> Iterator[None]:
    """While entered, networks and `shapes` are the lighter ones."""
    with pytest.MonkeyPatch.context() as patch:
        if "images" in made_lighter:
            patch.setitem(shapes._SPLITS, "test", (1, TEST_IMAGES))
        patch.setattr(shapes, "make", lambda split: _drawn(split, *shapes._SPLITS.get(split, ())))
        if "networks" in made_lighter:
            for build, defaults in _DEFAULTS.items():
                patch.setattr(build, "__kwdefaults__", build.__kwdefaults__ | defaults)
        yield


@contextlib.contextmanager
def only(what: Iterable[str]) -> Iterator[None]:
    """While entered, `runs` makes no more than that lighter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "made_lighter", frozenset(what))
        yield
