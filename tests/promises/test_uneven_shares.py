"""Eight microbatches on any number of towers: the same bits where their shares are uneven, too.

Several workers are in tests/multi_worker/test_collectives.py, sums alone in test_properties.py.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
import toys
import worker_checks

from towers import worker
from towers.support import shares

MOST = worker_checks.MICROBATCHES
KINDS = {
    "cifarnet, float32": lambda: (toys.small_cifarnet(), {"weight_decay": 0.01}),
    "cifarnet, bfloat16": lambda: (toys.small_cifarnet("bfloat16"), {}),
    "resnet, float32": lambda: (toys.small_resnet(), {"moving_average_decay": 0.9}),
    "resnet, bfloat16": lambda: (toys.small_resnet("bfloat16"), {"batch_norm_statistics": "each"}),
    "sparse gradients": lambda: (
        worker_checks.embedding(),
        {
            "optimizer": keras.optimizers.Adam(0.01),
            "weights": np.arange(worker_checks.BATCH) % 5,
        },
    ),
    "float16, clipped": lambda: (
        toys.small_cifarnet("float16"),
        {
            "optimizer": keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.05, global_clipnorm=0.1)
            ),
            "gradient_reduction": "sum",
        },
    ),
    "dropout": lambda: (worker_checks.dropout("float64"), {}),
}
# The others are long.
FEW = {(3, "cifarnet, float32"), (5, "dropout")}


@functools.cache
def trained(kind: str, num_towers: int) -> dict:
    """The state after a few steps, the losses of each, and an evaluation."""
    model, arguments = KINDS[kind]()
    return worker_checks.train(worker.SingleWorker(), model, num_towers, **arguments)


@pytest.mark.parametrize(
    ("num_towers", "kind"),
    [
        pytest.param(*of, marks=() if of in FEW else pytest.mark.long)
        for of in itertools.product(range(2, MOST + 1), KINDS)
    ],
)
def test_towers_do_not_show(num_towers, kind):
    assert trained(kind, num_towers) == trained(kind, 1)


@pytest.mark.parametrize("num_towers", range(1, MOST + 1))
def test_shares_are_runs_as_even_as_they_go(num_towers):
    of_towers = shares.Shares(16, MOST, [num_towers]).of_towers
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
        own = shares.Shares(16, 8, towers_of_workers, index)
        assert own.of_workers == expected
        assert own.of_towers == expected[index]
        first, last = expected[index][0].start, expected[index][-1].stop
        assert own.microbatches() == range(first, last)
        assert own.examples == range(2 * first, 2 * last)
        assert own.first_tower(index) == sum(towers_of_workers[:index])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(128, 8), (30, 6), (7, 7), (127, 1), (1, 1), (16, 8), (20, 5), (2**20, 8), (11, 1)],
)
def test_the_default_microbatches_are_the_largest_number_up_to_8(batch, expected):
    assert shares.default_microbatches(batch) == expected


@pytest.mark.parametrize(("counts", "said"), [([2, 2], "2 for each tower"), ([3, 2, 3], "3 or 2")])
def test_shares_in_words(counts, said):
    assert shares.described(counts).startswith(said)
