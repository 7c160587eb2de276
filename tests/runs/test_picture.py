"""The picture of a step's graph is what TensorFlow runs: tested by running the picture itself."""

import numpy as np
import pytest
import tensorflow as tf
import toys

from towers.runs import picture


def nodes_of(function, *args):
    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph
    return {node.name: node for node in picture.of_graph(graph).node}


def run(nodes, fetch, **fed):
    """What the operation computes as the picture has it."""
    drawn = tf.compat.v1.GraphDef(node=nodes.values())
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(drawn, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(fetch, {f"{name}:0": value for name, value in fed.items()})


def test_a_call_is_replaced_by_its_operations_in_its_scope_on_its_device():
    @tf.function(autograph=False)
    def called(x, y):
        parts = tf.split(x, 3)  # one output of three places
        unique = tf.unique(parts[2], name="unique")  # two outputs
        return unique.idx, tf.subtract(parts[1], y, name="sub")

    def step(x):
        results = []
        for index in range(2):
            with tf.device(f"/CPU:{index}"), tf.name_scope(f"tower_{index}"):
                moved = x + float(index)
                with tf.name_scope("microbatch"):
                    results.append(called(moved, 10.0))
        with tf.name_scope("result"):
            return tf.add(results[0][1], results[1][1], name="sum"), results[1][0]

    nodes = nodes_of(step, tf.TensorSpec([6], name="x"))
    assert not [node for node in nodes.values() if "PartitionedCall" in node.op]
    for index in range(2):
        sub = nodes[f"tower_{index}/microbatch/sub"]
        assert (sub.op, sub.device) == ("Sub", f"/device:CPU:{index}")
    x = np.float32([1, 2, 3, 4, 5, 5])
    total, indices = run(nodes, ["result/sum:0", "tower_1/microbatch/unique:1"], x=x)
    np.testing.assert_array_equal(total, [2 * (3 - 10) + 1, 2 * (4 - 10) + 1])
    np.testing.assert_array_equal(indices, [0, 0])


def test_calls_that_share_a_scope_are_kept_apart():
    @tf.function(autograph=False)
    def called(x):
        return tf.square(x, name="square")

    def step(x):
        with tf.name_scope("both"):
            first, second = called(x), called(x + 1.0)
        with tf.name_scope("result"):
            return tf.subtract(second, first, name="difference")

    nodes = nodes_of(step, tf.TensorSpec([], name="x"))
    assert sum(node.op == "Square" for node in nodes.values()) == 2
    assert run(nodes, "result/difference:0", x=3.0) == 16.0 - 9.0


def test_what_waits_for_a_call_waits_for_its_operations():
    variable = tf.Variable(1.0)

    @tf.function(autograph=False)
    def called():
        return variable.assign_add(1.0)

    def step():
        with tf.name_scope("call"):
            called()
        with tf.name_scope("result"):
            return tf.identity(variable.read_value(), name="after")

    nodes = nodes_of(step)
    waiting = [name for node in nodes.values() for name in node.input if name.startswith("^call/")]
    assert waiting
    assert {name[1:] for name in waiting} <= set(nodes)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_xla_compiles_stays_a_call(jit_compile):
    step = toys.Step(toys.small_cifarnet(), num_towers=2, jit_compile=jit_compile)
    batch = [tf.constant(values) for values in toys.batch(4)]
    step(*batch)
    drawn = picture.of_graph(step.model._towers.program.trace(tuple(batch), 2).graph)
    kinds = [node.op for node in drawn.node if node.name.startswith("tower_")]
    assert ("Conv2D" in kinds) != jit_compile
    assert any("PartitionedCall" in kind for kind in kinds) == jit_compile
