"""Keras metrics of classifiers that give logits, of any type that layers compute in."""

import keras
import tensorflow as tf


def in_top(y_true: tf.Tensor, y_pred: tf.Tensor, k: int) -> tf.Tensor:
    """Whether the label has one of the k largest outputs, float32 [n]; for a MeanMetricWrapper.

    Args:
      y_true: integers [n] or [n, 1], or the share of each class, [n, num_classes].
      y_pred: [n, num_classes].
      k: at most num_classes.
    """
    y_pred = tf.cast(y_pred, tf.float32)
    labels = tf.argmax(y_true, axis=-1) if _are_shares(y_true, y_pred) else y_true
    return keras.metrics.sparse_top_k_categorical_accuracy(labels, y_pred, k)


def cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Softmax cross entropy in nats, float32 [n]; arguments as those of `in_top`."""
    y_pred = tf.cast(y_pred, tf.float32)
    if _are_shares(y_true, y_pred):
        return keras.losses.categorical_crossentropy(y_true, y_pred, from_logits=True)
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def _are_shares(y_true, y_pred) -> bool:
    return len(y_true.shape) == 2 and y_true.shape[1] == y_pred.shape[1] > 1
