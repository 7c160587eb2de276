"""The lesson on the loop over towers: what it counts, what it walks and what it measures."""

import lesson_checks
import numpy as np
import pytest
import tensorflow as tf

from laboratory import data, findings
from lessons import graph
from towers import container_limits, devices

LESSON = graph.LESSON


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(finding, tmp_path):
    lesson_checks.check_finding(finding, tmp_path)


@pytest.mark.long
class TestClaim:
    def test_the_loop_s_body_runs_while_the_graph_is_built_and_never_again(self, numbers):
        for k in (1, 2, 4):
            built = numbers["built"][k]
            assert (built.building, built.running) == (k, 0)

    def test_no_tower_needs_another_and_the_update_needs_all(self, numbers):
        for k in (1, 2, 4):
            built = numbers["built"][k]
            assert len(built.operations) == k
            assert min(built.operations) == max(built.operations) > 50
            assert (built.waiting, built.needed) == (0, k)

    def test_a_profile_has_operations_of_both_towers(self, numbers):
        assert all({0, 1} <= towers for towers in numbers["towers seen"])

    def test_two_towers_are_at_work_at_once_and_one_by_one_they_are_not(self, numbers):
        steps, loops = numbers["overlaps"]
        if container_limits.available_cores() > 1:
            assert max(steps) > 0
        assert max(loops) < 0.01


def test_the_two_ways_give_the_same_gradients():
    images, labels = next(iter(data.load(findings.Setup(short=True)).training_batches(8, 1)))
    ways = graph.two_ways(data.small_cifarnet(), devices.choose(2))
    in_graph, one_by_one = (way(images, labels) for way in ways)
    assert len(in_graph) == len(one_by_one) == 2
    for of_tower, again in zip(in_graph, one_by_one, strict=True):
        for gradient, other in zip(of_tower, again, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-7)


def test_what_needs_another_tower_is_found_by_any_path():
    with tf.Graph().as_default() as built:
        with tf.name_scope("tower_0"):
            first = tf.constant(1.0, name="first")
        between = tf.identity(first, name="between")
        with tf.name_scope("tower_1"):
            tf.identity(between, name="by_input")
            with tf.control_dependencies([between]):
                tf.constant(2.0, name="by_control")
            tf.constant(3.0, name="alone")
    of_towers = [graph.operations_of(built, index) for index in (0, 1)]
    assert [len(own) for own in of_towers] == [1, 3]
    assert graph.waiting(of_towers) == 2
    assert graph.waiting(of_towers[1:]) == 0
    names = {operation.name for operation in graph.needed_for([between.op])}
    assert names == {"between", "tower_0/first"}


@pytest.mark.parametrize(
    "name, tower",
    [
        ("tower_0/conv1/convolution", 0),
        ("tower_11/microbatch/gradient_tape/local3/MatMul", 11),
        ("loop/tower_11/microbatch/add", 11),
        ("average_gradients/add", None),
        ("my_tower_1/add", None),
    ],
)
def test_an_operation_s_tower_is_its_scope(name, tower):
    assert graph.tower_of(name) == tower


class TestOverlap:
    # Tower 0 is busy from 0 to 3 and from 5 to 6, tower 1 from 2 to 5.5.
    EVENTS = [
        graph.Event(0.0, 2.0, 0),
        graph.Event(1.0, 3.0, 0),
        graph.Event(5.0, 6.0, 0),
        graph.Event(2.0, 5.5, 1),
        graph.Event(0.0, 9.0, None),
    ]

    def test_busy_is_the_union(self):
        assert graph.busy(event for event in self.EVENTS if event.tower == 0) == [
            (0.0, 3.0),
            (5.0, 6.0),
        ]

    def test_is_a_share_of_the_less_busy_one(self):
        assert graph.overlap(self.EVENTS) == pytest.approx((1.0 + 0.5) / 3.5)

    def test_is_nothing_one_after_the_other(self):
        assert graph.overlap([graph.Event(0.0, 2.0, 0), graph.Event(2.0, 3.0, 1)]) == 0

    def test_the_call_of_the_median_time_is_shown(self):
        calls = [[graph.Event(0.0, end, 0)] for end in (5.0, 1.0, 3.0)]
        assert graph.median_call(calls) == calls[2]
