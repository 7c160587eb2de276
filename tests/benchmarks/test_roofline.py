"""How much of what a processor can multiply a step uses: the multiplications, counted by hand."""

import argparse

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import roofline, turns
from benchmarks.peers import tasks


def multiplications_of(function, *shapes: tuple[int, ...]) -> int:
    """Those of a function of float32 tensors of these shapes."""
    signature = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*signature).graph
    return sum(map(roofline.of_operation, graph.get_operations()))


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (tf.matmul, [(2, 3), (3, 5)], 2 * 3 * 5),
        (lambda a, b: tf.matmul(a, b, transpose_a=True), [(3, 2), (3, 5)], 2 * 3 * 5),
        (lambda a, b: tf.matmul(a, b, transpose_b=True), [(2, 3), (5, 3)], 2 * 3 * 5),
        (tf.matmul, [(7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (lambda a, b: tf.matmul(a, b, adjoint_a=True), [(7, 3, 2), (7, 3, 5)], 7 * 2 * 3 * 5),
        (lambda a, b: tf.einsum("abc,acd->abd", a, b), [(7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (  # 4 x 4 places of 6 filters, each of 3 x 3 pixels with 5 channels
            lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"),
            [(1, 8, 8, 5), (3, 3, 5, 6)],
            4 * 4 * 6 * 3 * 3 * 5,
        ),
        (
            lambda x, k: tf.nn.depthwise_conv2d(x, k, (1, 1, 1, 1), "VALID"),
            [(1, 8, 8, 5), (3, 3, 5, 2)],
            6 * 6 * 10 * 3 * 3,
        ),
        (lambda a, b: a * b + tf.reduce_sum(a), [(2, 3), (2, 3)], 0),
    ],
)
def test_an_operation_s_are_those_counted_by_hand(function, shapes, expected):
    assert multiplications_of(function, *shapes) == expected


def test_a_loop_is_refused():
    def doubled(a):
        return tf.while_loop(lambda x: tf.norm(x) < 9, lambda x: [tf.matmul(x, x)], [a])

    with pytest.raises(ValueError, match="runs other operations"):
        multiplications_of(doubled, (3, 3))


def test_every_step_of_a_recurrent_layer_counts():
    model = keras.Sequential([keras.Input((7, 3)), keras.layers.LSTM(2), keras.layers.Dense(5)])
    gates = 4 * 2  # four of two units each
    expected = 7 * (3 * gates + 2 * gates) + 2 * 5
    assert roofline.multiplications(model, np.zeros((1, 7, 3), np.float32)) == expected


def test_those_of_the_tutorial_s_network():
    convolutions = 24 * 24 * 64 * 5 * 5 * 3 + 12 * 12 * 64 * 5 * 5 * 64
    normalizations = 2 * 12 * 12 * 64 * 64  # as products with a band
    dense = 6 * 6 * 64 * 384 + 384 * 192 + 192 * 10
    model, images = tasks.build("cifarnet", "float32"), tasks.inputs("cifarnet", 1)
    assert roofline.multiplications(model, images) == convolutions + normalizations + dense


def test_a_share_is_of_the_products_in_the_same_round(monkeypatch):
    rates = {"towers": [1.0, 2.0, 9.0], "fused": [3.0, 8.0, 4.0], "products": [10.0, 20.0, 40.0]}

    def measured(sides, rounds):
        assert (set(sides), rounds) == (set(rates), 3)
        assert sides["products"].arguments == ("benchmarks.peers.products", "bfloat16")
        return {name: turns.Measured(rates[name], None) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    monkeypatch.setattr(roofline, "multiplications", lambda *_: 10**6)
    options = argparse.Namespace(num_microbatches=2, seconds=1.0, rounds=3)
    row = roofline.measure("lstm", "bfloat16", options)
    assert (row["side"], row["share"]) == ("fused", 0.9)  # of 0.9, 1.2 and 0.3
    assert roofline.as_row(row) == (
        "| lstm | bfloat16 | 2 | with `fused` | 3.0 | 4 | 0 | 0 | 0.90 (0.30–1.20) |"
    )
