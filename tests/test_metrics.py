"""Metrics of logits of any type, against Keras's in float32."""

import keras
import numpy as np
import pytest
import toys

from towers import metrics

RNG = np.random.default_rng(0)
LABELS, OUTPUTS = RNG.integers(4, size=50), RNG.normal(size=(50, 4)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_are_keras_s_in_float32(dtype):
    outputs = keras.ops.cast(OUTPUTS, dtype)
    wide = keras.ops.cast(outputs, "float32")
    expected = [
        keras.metrics.sparse_top_k_categorical_accuracy(LABELS, wide, 2),
        keras.losses.sparse_categorical_crossentropy(LABELS, wide, from_logits=True),
    ]
    for labels in (LABELS, np.eye(4)[LABELS]):
        result = metrics.in_top(labels, outputs, 2), metrics.cross_entropy(labels, outputs)
        toys.assert_close(result, expected, rtol=1e-5)
