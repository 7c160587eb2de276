"""What commands train in most tests: the same program, on less.

`shapes` has a hundred test images, not a thousand; `cifarnet` and `fastnet` have few channels, and
`resnet` one block a stage. A training of four steps takes a second and a half instead of five. All
else is as people have it: the files, the graph, what is said and done. Tests of what depends on the
networks themselves, as the promise of the same bits does, use the fixture `whole_networks`; those
of the images too `whole_runs`.
"""

import contextlib
from collections.abc import Iterable, Iterator

import pytest

from input_pipeline import shapes
from towers.networks import cifarnet, fastnet, resnet

TEST_IMAGES = 100

_DEFAULTS = {
    cifarnet.build: {"filters": 10, "hidden_units": (12, 11)},  # LRN adds up nine channels
    fastnet.build: {"block_filters": (12, 24, 24)},
    resnet.build: {"blocks_per_stage": 1},
}

_made_lighter = frozenset({"networks", "images"})


def made_lighter() -> frozenset[str]:
    """What of the runs is made lighter now: "networks", "images"."""
    return _made_lighter


@contextlib.contextmanager
def runs() -> Iterator[None]:
    """While entered, networks and `shapes` are the lighter ones."""
    with pytest.MonkeyPatch.context() as patch:
        if "images" in _made_lighter:
            patch.setitem(shapes._NUM_EXAMPLES, "test", TEST_IMAGES)
            patch.setattr(shapes, "GENERATOR_VERSION", TEST_IMAGES)  # else the cache has the whole
        if "networks" in _made_lighter:
            for build, defaults in _DEFAULTS.items():
                patch.setattr(build, "__kwdefaults__", build.__kwdefaults__ | defaults)
        yield


@contextlib.contextmanager
def only(what: Iterable[str]) -> Iterator[None]:
    """While entered, `runs` makes no more than that lighter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "_made_lighter", frozenset(what))
        yield
