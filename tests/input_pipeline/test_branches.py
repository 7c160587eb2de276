"""One of several branches."""

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import branches


@pytest.mark.parametrize("place", range(3))
def test_the_chosen_branch_gets_the_inputs(place):
    ways = [lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y]

    @tf.function(autograph=False)
    def run(place, x, y):
        return branches.run_one(place, ways, x, y)

    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    expected = [x + y, x - y, x * y][place]
    np.testing.assert_array_equal(run(tf.constant(place), x, y), expected)


def test_what_is_not_taken_is_not_in_the_graph_around_it():
    @tf.function(autograph=False)
    def run(place, x):
        return branches.run_one(place, [tf.square, tf.exp], x)

    graph = run.get_concrete_function(tf.TensorSpec([], tf.int32), tf.TensorSpec([2])).graph
    found = {operation.type for operation in graph.get_operations()}
    assert "StatelessCase" in found and not found & {"Square", "Exp"}
    [case] = [each for each in graph.get_operations() if each.type == "StatelessCase"]
    # Otherwise TensorFlow puts all branches into the graph when it runs.
    with pytest.raises(ValueError, match="_lower_using_switch_merge"):
        case.get_attr("_lower_using_switch_merge")


def test_the_shape_is_what_the_branches_agree_on():
    @tf.function(autograph=False)
    def run(place, x):
        found = branches.run_one(place, [lambda x: x, lambda x: x[:1]], x)
        assert found.shape.as_list() == [None, 3]
        return found

    x = np.ones((4, 3), np.float32)
    assert [run(tf.constant(place), x).shape[0] for place in (0, 1)] == [4, 1]
