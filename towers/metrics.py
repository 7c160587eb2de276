"""Keras metrics of classifiers that give logits, of any type that layers compute in."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="towers")
class Accuracy(keras.metrics.Metric):
    """The share of examples whose label has the largest output, and which classes were confused.

    Attributes:
      confusion: float32 [num_classes, num_classes], the weight of the examples, most often their
        number, by (label, predicted class).
    """

    def __init__(self, num_classes: int, name: str = "accuracy", **options):
        """
        Args:
          num_classes: of the labels and of the outputs.
          name, options: as a Keras metric takes them.
        """
        super().__init__(name=name, **options)
        self.num_classes = num_classes
        self.confusion = self.add_variable(
            [num_classes, num_classes], keras.initializers.Zeros(), name="confusion"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts a batch.

        Args:
          y_true: integers [n] or [n, 1]; or the share of each class, [n, num_classes].
          y_pred: [n, num_classes].
          sample_weight: [n], or None.
        """
        y_true = tf.convert_to_tensor(y_true)
        if _are_shares(y_true, y_pred):
            y_true = tf.argmax(y_true, axis=-1)
        labels = tf.cast(tf.reshape(y_true, [-1]), tf.int64)
        pairs = tf.stack([labels, tf.argmax(y_pred, axis=-1)], axis=1)  # [n, 2]
        weight = tf.ones_like(labels) if sample_weight is None else sample_weight
        weight = tf.cast(tf.reshape(weight, [-1]), self.confusion.dtype)
        shape = tf.constant([self.num_classes] * 2, tf.int64)
        # tf.math.confusion_matrix has checks that no GPU can make.
        self.confusion.assign_add(tf.scatter_nd(pairs, weight, shape))

    def result(self) -> tf.Tensor:
        """A scalar; 0 before the first example."""
        right = tf.linalg.trace(self.confusion.value)
        return tf.math.divide_no_nan(right, tf.reduce_sum(self.confusion.value))

    def get_config(self) -> dict:
        """What Keras makes it from."""
        return super().get_config() | {"num_classes": self.num_classes}


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
