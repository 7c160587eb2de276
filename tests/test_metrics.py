"""Accuracy with the counts behind it, against Keras and NumPy."""

import keras
import numpy as np
import pytest

from towers import metrics

RNG = np.random.default_rng(0)
LABELS, OUTPUTS = RNG.integers(4, size=50), RNG.normal(size=(50, 4)).astype("float32")


@pytest.mark.parametrize("form", ["labels", "column", "shares"])
@pytest.mark.parametrize("weight", [None, RNG.integers(3, size=50).astype("float32")])
def test_it_is_keras_s_accuracy_and_numpy_s_counts(form, weight):
    mine, keras_s = metrics.Accuracy(4), keras.metrics.SparseCategoricalAccuracy()
    given = {"labels": LABELS, "column": LABELS[:, None], "shares": np.eye(4)[LABELS]}[form]
    for part in (slice(0, 30), slice(30, 50)):
        of_part = None if weight is None else weight[part]
        mine.update_state(given[part], OUTPUTS[part], of_part)
        keras_s.update_state(LABELS[part], OUTPUTS[part], of_part)
    assert float(mine.result()) == pytest.approx(float(keras_s.result()), rel=1e-6)
    counts = np.zeros((4, 4))
    np.add.at(counts, (LABELS, OUTPUTS.argmax(axis=1)), 1 if weight is None else weight)
    np.testing.assert_array_equal(mine.confusion, counts)
    mine.reset_state()
    assert float(mine.result()) == 0


def test_keras_saves_it():
    config = keras.metrics.serialize(metrics.Accuracy(3, name="right"))
    again = keras.metrics.deserialize(config)
    assert (again.num_classes, again.name) == (3, "right")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_others_are_keras_s_in_float32(dtype):
    outputs = keras.ops.cast(OUTPUTS, dtype)
    wide = keras.ops.cast(outputs, "float32")
    expected = [
        keras.metrics.sparse_top_k_categorical_accuracy(LABELS, wide, 2),
        keras.losses.sparse_categorical_crossentropy(LABELS, wide, from_logits=True),
    ]
    for labels in (LABELS, np.eye(4)[LABELS]):
        found = metrics.in_top(labels, outputs, 2), metrics.cross_entropy(labels, outputs)
        for mine, keras_s in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, keras_s, rtol=1e-5)
