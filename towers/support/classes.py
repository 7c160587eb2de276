"""Classes: integer labels, where the model's largest output is its answer.

A mixed image has a share of each class in place of a label.
"""

import numpy as np
import tensorflow as tf

from towers.support import structures


def is_classifier(labels: structures.Structure, outputs: structures.Structure) -> bool:
    """Whether these are classes, integer [n] or [n, 1], and an output for each of two or more."""
    if not (tf.is_tensor(labels) and tf.is_tensor(outputs)):
        return False
    if outputs.shape.rank != 2 or outputs.shape[1] == 1:
        return False
    is_column = labels.shape.rank == 2 and labels.shape[1] == 1
    return labels.dtype.is_integer and (labels.shape.rank == 1 or is_column)


def count_correct(
    labels: structures.Structure,
    outputs: structures.Structure,
    sample_weight: tf.Tensor | None = None,
) -> tf.Tensor | None:
    """How many examples of weight above 0 have their largest output at their label, int32 [].

    None where the model is not a classifier.
    """
    if not is_classifier(labels, outputs):
        return None
    of_examples = labels if labels.shape.rank == 1 else labels[:, 0]
    predicted = tf.argmax(outputs, axis=-1, output_type=tf.int64)
    correct = predicted == tf.cast(of_examples, tf.int64)
    if sample_weight is not None:
        correct &= sample_weight > 0
    return tf.reduce_sum(tf.cast(correct, tf.int32))


def are_shares(labels: structures.Structure, outputs: structures.Structure) -> bool:
    """Whether labels are floating [n, num_classes], as outputs are."""
    if not (tf.is_tensor(labels) and tf.is_tensor(outputs) and labels.dtype.is_floating):
        return False
    return labels.shape.rank == 2 and labels.shape.is_compatible_with(outputs.shape)


def cross_entropy_of_shares(shares: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """`sum(q * -log p)` of each example, [n].

    Args:
      shares: floating [n, num_classes], q.
      logits: floating [n, num_classes].

    Raises:
      ValueError: they do not have the same shape.
    """
    if not are_shares(shares, logits):
        raise ValueError(
            f"labels are {shares.dtype.name} {shares.shape}: must be integers [n], or the share of "
            f"each class, of the logits' shape {logits.shape}"
        )
    return tf.nn.softmax_cross_entropy_with_logits(tf.cast(shares, logits.dtype), logits)


def check(labels: np.ndarray, num_classes: int) -> None:
    """Checks that the model has an output for each of some labels [n]; else a ValueError."""
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()}: the model has {num_classes} outputs, "
            f"for labels from 0 to {num_classes - 1}"
        )
