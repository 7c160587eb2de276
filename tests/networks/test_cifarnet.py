"""The tutorial's network, against the same one in TensorFlow's own operations."""

import keras
import numpy as np
import tensorflow as tf
import toys

from towers.networks import cifarnet

NORM = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}


def tensorflow_s(w, x):
    """Logits, from the weights in their order."""
    x = tf.nn.relu(tf.nn.conv2d(x, w[0], 1, "SAME") + w[1])
    x = tf.nn.lrn(tf.nn.max_pool2d(x, 3, 2, "SAME"), **NORM)
    x = tf.nn.relu(tf.nn.conv2d(x, w[2], 1, "SAME") + w[3])
    x = tf.nn.max_pool2d(tf.nn.lrn(x, **NORM), 3, 2, "SAME")
    x = tf.reshape(x, [len(x), -1])
    x = tf.nn.relu(x @ w[4] + w[5])
    x = tf.nn.relu(x @ w[6] + w[7])
    return x @ w[8] + w[9]


def test_it_has_the_values_and_gradients_of_the_tutorial_s():
    policy = keras.DTypePolicy("float32")
    model = toys.on_cpu(lambda: cifarnet.build((13, 10, 3), 4, policy, 3))
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:  # no bias is 0
        weight.assign(weight + rng.normal(0.0, 0.01, weight.shape))
    images, labels = toys.batch(5, (13, 10, 3))
    weights = [variable.value for variable in model.trainable_variables]
    result = []
    for logits in (lambda: model(images), lambda: tensorflow_s(weights, tf.constant(images))):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = logits()
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        result.append([outputs, *tape.gradient(loss, weights)])
    for ours, theirs in zip(*result, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
