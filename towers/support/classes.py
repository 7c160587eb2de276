"""Counting correct predictions: a model's largest output is its answer."""

import tensorflow as tf


def count_correct(
    labels: tf.Tensor, outputs: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> tf.Tensor | None:
    """How many examples of weight above 0 have their largest output at their label, int32 [].

    Args:
      labels: integer [n]; or, for mixed images, floating [n, num_classes], the share of each class,
        of which the largest is the label.
      outputs: floating [n, num_classes], of two or more classes; None is returned for others.
      sample_weight: floating [n]; None counts every example.
    """
    if outputs.shape.rank != 2 or outputs.shape[1] == 1:
        return None
    if labels.dtype.is_floating:
        labels = tf.argmax(labels, axis=-1)
    correct = tf.argmax(outputs, axis=-1, output_type=tf.int64) == tf.cast(labels, tf.int64)
    if sample_weight is not None:
        correct &= sample_weight > 0
    return tf.reduce_sum(tf.cast(correct, tf.int32))
