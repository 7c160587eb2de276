"""Eight microbatches on any number of towers: the same bits where their shares are uneven, too.

Several workers are in tests/multi_worker/test_collectives.py, sums alone in test_properties.py.
"""

import functools
import itertools

import pytest
import worker_checks

from towers import shares, worker

MOST = worker_checks.BATCH // worker_checks.MICROBATCH
# The others are long.
FEW = {(3, "cifarnet"), (5, "dropout in float64"), (7, "float16")}


@functools.cache
def trained(kind: str, num_towers: int) -> dict:
    """The state after a few steps, the losses of each, and an evaluation."""
    return worker_checks.KINDS[kind](worker.SingleWorker(), num_towers)


@pytest.mark.parametrize(
    ("num_towers", "kind"),
    [
        pytest.param(*one, marks=() if one in FEW else pytest.mark.long)
        for one in itertools.product(range(2, MOST + 2), worker_checks.KINDS)
    ],
)
def test_towers_do_not_show(num_towers, kind):
    """Nor does one that has no microbatch."""
    assert trained(kind, num_towers) == trained(kind, 1)


@pytest.mark.parametrize("num_towers", range(1, MOST + 1))
def test_shares_are_runs_as_even_as_they_go(num_towers):
    of_towers = shares.Shares(MOST, [num_towers]).of_towers
    assert [m for own in of_towers for m in own] == list(range(MOST))
    sizes = [len(own) for own in of_towers]
    assert max(sizes) == -(-MOST // num_towers) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("towers_of_workers", "expected"),
    [
        ([2, 1], [[range(0, 3), range(3, 6)], [range(6, 8)]]),
        ([1, 2], [[range(0, 3)], [range(3, 6), range(6, 8)]]),
        ([1, 1, 1], [[range(0, 3)], [range(3, 6)], [range(6, 8)]]),
    ],
)
def test_workers_are_cut_by_their_towers(towers_of_workers, expected):
    for index in range(len(towers_of_workers)):
        own = shares.Shares(8, towers_of_workers, index)
        assert own.of_workers == expected
        assert own.of_towers == expected[index]
        first, last = expected[index][0].start, expected[index][-1].stop
        assert own.microbatches() == range(first, last)


@pytest.mark.parametrize(("towers", "said"), [(2, "4 for each tower"), (3, "3 or 2")])
def test_shares_in_words(towers, said):
    assert shares.described(8, towers).startswith(said)
