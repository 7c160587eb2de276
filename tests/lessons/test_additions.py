"""The tree of additions that docs/architecture.md shows."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from lessons import additions
from towers import gradients, shares

NUMBERS = range(1, additions.MICROBATCHES + 1)


def test_tower_by_tower_is_each_tower_s_own_sum_and_then_the_sum_of_those():
    values = [np.float32(value) for value in (1e8, 1, -1e8, 1)]
    assert additions.tower_by_tower(values, 1) == 1  # the first 1 is lost beside 1e8
    assert additions.tower_by_tower(values, 2) == 0  # the second one beside -1e8, too
    assert additions.tower_by_tower(values, 4) == 1


def test_the_gradients_that_are_drawn_show_why_the_order_matters():
    values = additions.drawn()
    assert {type(value) for value in values} == {np.float32}
    assert len(set(additions.sums(values))) > 1
    shown = {additions.shown(value) for value in additions.sums(values)}
    assert len(shown) == len(set(additions.sums(values)))  # the digits tell them apart


@pytest.mark.parametrize("num_towers", NUMBERS)
def test_the_towers_of_the_drawing_hand_over_what_makes_the_drawn_total(num_towers):
    values = additions.drawn()
    sums = {}
    for own in shares.evenly(len(values), num_towers):
        of_tower = gradients.sum_over_share([[values[m]] for m in own], own, len(values))
        assert set(of_tower) <= additions.on_towers(num_towers)
        sums |= of_tower
    (total,) = gradients.add_up(sums, (0, len(values)), gradients.add_weight_by_weight)
    assert total == additions.along_the_tree(values)


@pytest.mark.parametrize("num_towers", NUMBERS)
def test_a_sum_is_drawn_on_the_cpu_where_its_parts_are_on_different_towers(num_towers):
    words = [node.text for node in ElementTree.fromstring(additions.svg(num_towers)).iter()]
    on_towers = sum(
        len(own) - len(gradients.subtrees(own, additions.MICROBATCHES))
        for own in shares.evenly(additions.MICROBATCHES, num_towers)
    )
    assert words.count("CPU") == additions.MICROBATCHES - 1 - on_towers
    assert [word for word in words if word and word.startswith("tower ")] == [
        f"tower {tower}" for tower in range(num_towers)
    ]
    assert words.count(additions.shown(additions.along_the_tree(additions.drawn()))) == 1


def test_the_page_s_drawing_is_up_to_date():
    drawn = additions.DRAWING.read_text(encoding="utf-8")
    assert drawn == additions.svg(additions.ON_THE_PAGE), "python -m lessons.pages draws it again"
