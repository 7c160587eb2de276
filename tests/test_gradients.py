"""Gradients of several parts become one; what a hash of arrays tells apart; metrics in float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import gradients, hashes, metrics


def test_a_factor_is_not_rounded_to_the_type_of_a_narrow_gradient():
    # 257 is 256 in bfloat16.
    one = tf.constant([[1.0]], tf.bfloat16)
    rows = tf.IndexedSlices(one, tf.constant([0]), tf.constant([1, 1]))
    dense, sparse = (gradients.times(each, tf.constant(257.0)) for each in (one, rows))
    assert (dense.dtype, dense.numpy()) == (tf.float32, 257.0)
    assert (sparse.values.dtype, sparse.values.numpy()) == (tf.float32, 257.0)


def test_global_norm_is_of_all_gradients_together():
    rows = tf.constant([[5.0, 0.0], [7.0, 0.0]])
    repeated = tf.IndexedSlices(rows, tf.constant([0, 0]), tf.constant([5, 2]))  # a row of 12
    norm = gradients.global_norm([tf.constant([3.0]), None, tf.constant([[4.0]]), repeated])
    assert norm.numpy() == 13.0


@pytest.mark.pitfall(21)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weight_that_the_loss_does_not_depend_on_stays():
    images = keras.Input([1])
    used = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="used")
    unused = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False, name="unused")
    outputs = keras.layers.Concatenate()([used(images), unused(images)])
    step = toys.Step(
        toys.on_cpu(lambda: keras.Model(images, outputs)),
        num_towers=2,
        loss=lambda labels, outputs: tf.stop_gradient(outputs[:, 1]) + outputs[:, 0],
    )
    result = step(toys.column(1.0, 3.0), [0, 0])
    assert used.kernel.numpy() == 1.0 - 0.5 * 2.0
    assert unused.kernel.numpy() == 1.0
    assert result.gradients[0].numpy() == 2.0


def test_hash_is_of_values_types_shapes_and_order():
    a, b = np.arange(4, dtype=np.float32), np.ones(2, np.float32)
    different = [[a, b], [b, a], [a], [a[None], b], [a.view(np.int32), b], [np.nextafter(a, 9), b]]
    result = [hashes.sha256(values) for values in different]
    assert len(set(result)) == len(result) and len(result[0]) == 64
    assert hashes.sha256([a[::-1][::-1], b.copy()]) == result[0]
    combined = [hashes.sha256_of_parts({"a": x, "b": y}) for x, y in ("12", "21", "11")]
    assert len(set(combined)) == 3 and len(combined[0]) == 64


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
