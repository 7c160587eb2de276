"""The loss of a microbatch and its terms.

Every microbatch adds the same weight decay to its own cross entropy. The mean over M microbatches
then counts the decay once: (1/M) * sum of M equal terms.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Softmax cross entropy in nats.

    Args:
      labels: integer [n], in [0, num_classes); or, for mixed images, floating [n, num_classes], the
        share of each class, which weights its -log p.
      logits: floating [n, num_classes]; narrow types are widened to float32 first.
      label_smoothing: share s of each label that is spread over all classes, in [0, 1):
        `(1 - s) * -log p[label] + s * mean(-log p)` (Szegedy et al. 2015, arXiv:1512.00567,
        section 7).

    Returns:
      [n], one value per example, float32 (float64 for float64 logits).
    """
    if logits.dtype != tf.float64:
        logits = tf.cast(logits, tf.float32)
    if (labels := tf.convert_to_tensor(labels)).dtype.is_floating:
        shares = tf.cast(labels, logits.dtype)
        of_label = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
    else:
        of_label = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if not label_smoothing:
        return of_label
    of_all = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - label_smoothing) * of_label + label_smoothing * of_all


def name_of(loss: Callable) -> str:
    """The name of a loss function's term: `cross_entropy`, or `loss` of a lambda."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss.__name__ if loss.__name__.isidentifier() else "loss"


def mean(per_example: tf.Tensor, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
    """The mean over examples, a scalar: `sum(w * l) / sum(w)`; 0 where all weights are 0.

    Args:
      per_example: floating [n], the losses l.
      sample_weight: floating [n], the weights w, at least 0; None for the plain mean.
    """
    if sample_weight is None:
        return tf.reduce_mean(per_example)
    weight = tf.cast(sample_weight, per_example.dtype)
    weighted = tf.reduce_sum(tf.math.multiply_no_nan(per_example, weight))
    return tf.math.divide_no_nan(weighted, tf.reduce_sum(weight))


def weight_decay_terms(
    weights: Mapping[str, tf.Tensor], coefficient: float
) -> dict[str, tf.Tensor]:
    """The weight-decay terms of the loss: `coefficient * sum(w ** 2) / 2` for each weight.

    Args:
      weights: name of the layer to its kernel, any shape.
      coefficient: >= 0; the gradient of a term is `coefficient * w`.

    Returns:
      `weight_decay/<layer>` to a scalar of the weight's dtype.
    """
    return {
        f"weight_decay/{layer}": tf.cast(coefficient, weight.dtype) * tf.nn.l2_loss(weight)
        for layer, weight in weights.items()
    }


def total_loss(terms: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of scalar terms, added in their order, each time in the wider type of the two."""
    return functools.reduce(keras.ops.add, terms)
