"""The tree of additions that docs/architecture.md shows."""

import additions
import pytest

from towers import gradients, shares

NUMBERS = range(1, additions.MICROBATCHES + 1)
TOTAL = additions.along_the_tree(additions.VALUES)


@pytest.mark.parametrize("num_towers", NUMBERS)
def test_the_sums_of_a_drawing_are_those_of_the_step(num_towers):
    sums = {}
    for own in shares.evenly(additions.MICROBATCHES, num_towers):
        values = [[additions.VALUES[m]] for m in own]
        sums |= gradients.sum_over_share(values, own, additions.MICROBATCHES)
    assert set(sums) <= additions.on_towers(num_towers)
    whole = (0, additions.MICROBATCHES)
    assert gradients.add_up(sums, whole, gradients.add_weight_by_weight) == [TOTAL]
