"""What commands train in most tests: the same program, on less.

`shapes` has a hundred test images, not a thousand; `cifarnet` and `fastnet` have few channels, and
`resnet` one block a stage. A training of four steps takes a second and a half instead of five. All
else is as people have it: the files, the graph, what is said and done. Tests of what depends on the
whole networks or images, as the promise of the same bits does, use the fixture `whole_networks`.
"""

import contextlib
from collections.abc import Iterator

import pytest

from input_pipeline import shapes
from towers.networks import cifarnet, fastnet, resnet

TEST_IMAGES = 100

_DEFAULTS = {
    cifarnet.build: {"filters": 10, "hidden_units": (12, 11)},  # LRN adds up nine channels
    fastnet.build: {"block_filters": (12, 24, 24)},
    resnet.build: {"blocks_per_stage": 1},
}

_wanted = True


def is_wanted() -> bool:
    """Whether runs are made lighter now."""
    return _wanted


@contextlib.contextmanager
def runs() -> Iterator[None]:
    """While entered, networks and `shapes` are the lighter ones."""
    with pytest.MonkeyPatch.context() as patch:
        if _wanted:
            patch.setitem(shapes._NUM_EXAMPLES, "test", TEST_IMAGES)
            patch.setattr(shapes, "GENERATOR_VERSION", TEST_IMAGES)  # else the cache has the whole
            for build, defaults in _DEFAULTS.items():
                patch.setattr(build, "__kwdefaults__", build.__kwdefaults__ | defaults)
        yield


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """While entered, `runs` changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "_wanted", False)
        yield
