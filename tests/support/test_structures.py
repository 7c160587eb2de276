"""Functions of batches: the graph of the last one is called while they are alike."""

import pytest
import tensorflow as tf

from towers.support import structures


def total(images, labels, weight):
    """The sum of everything that is given."""
    given = [v for v in tf.nest.flatten((images, labels, weight)) if v is not None]
    return tf.add_n([tf.reduce_sum(tf.cast(values, tf.float64)) for values in given])


@pytest.mark.parametrize(
    ("other", "sum_of_other", "is_new"),
    [
        (lambda images, labels: (2 * images, labels, None), 24, False),
        (lambda images, labels: (images[:2], labels[:2], None), 6, True),
        (lambda images, labels: (tf.cast(images, tf.float64), labels, None), 12, True),
        (lambda images, labels: (images, labels, images[:, 0]), 16, True),
    ],
    ids=["values", "size", "type", "weights"],
)
def test_a_graph_is_looked_up_where_a_batch_is_of_another_kind(
    monkeypatch, other, sum_of_other, is_new
):
    """And else called at once."""
    made, asked = structures.Traced(total), []
    look_up = made.function.get_concrete_function
    monkeypatch.setattr(
        made.function, "get_concrete_function", lambda *given: asked.append(1) or look_up(*given)
    )
    images, labels = tf.ones([4, 3]), tf.zeros([4], tf.int32)
    assert [made(images, labels, None) for _ in range(3)] == [12] * 3
    assert [made(*other(images, labels)) for _ in range(2)] == [sum_of_other] * 2
    assert len(asked) == 1 + is_new
    assert made(images, labels, None) == 12
    assert made.function.experimental_get_tracing_count() == 1 + is_new


def test_functions_that_run_eagerly_have_no_graph():
    symbolic = []

    def total(images):
        symbolic.append(tf.is_symbolic_tensor(images))
        return tf.reduce_sum(images)

    made = structures.Traced(total)
    assert made(tf.ones([2])) == 2
    tf.config.run_functions_eagerly(True)
    try:
        assert made(tf.ones([2])) == 2
    finally:
        tf.config.run_functions_eagerly(False)
    assert symbolic == [True, False]
