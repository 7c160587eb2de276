"""An evaluation of a classifier, example by example: predictions of Keras's, counted with NumPy."""

import dataclasses
from collections.abc import Iterable

import keras
import numpy as np

TOP = 5


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split, in the order of its n examples.

    Attributes:
      losses: float64 [n], the cross entropy of each, in nats.
      labels, predicted: int64 [n].
      in_top: bool [n], whether the label is among the five largest logits.
      confusion: int64 [num_classes, num_classes], examples by (label, predicted class).
    """

    losses: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    in_top: np.ndarray
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of examples whose label has the largest logit."""
        return float((self.labels == self.predicted).mean())

    def per_class_accuracy(self) -> np.ndarray:
        """Accuracy among the examples of each class, [num_classes]; NaN for an absent class."""
        with np.errstate(invalid="ignore"):
            return np.diag(self.confusion) / self.confusion.sum(axis=1)

    def as_metrics(self) -> dict[str, float | int]:
        """The scalars, under the names of `eval.jsonl`."""
        return {
            "count": len(self.labels),
            "accuracy": self.accuracy,
            "top5_accuracy": float(self.in_top.mean()),
            "cross_entropy": float(self.losses.mean()),
        }


def evaluate(model: keras.Model, batches: Iterable, test_time_flip: bool = False) -> Evaluation:
    """Evaluates each example once.

    Args:
      model: of images to logits; on towers, each batch is spread over them.
      batches: (images [n, height, width, channels], labels int [n]).
      test_time_flip: evaluates the mean of the logits of each image and of its mirror image.
    """
    parts, num_classes = [], 0
    for images, labels in batches:
        logits = model.predict_on_batch(images).astype(np.float64)
        if test_time_flip:
            mirrored = model.predict_on_batch(images[:, :, ::-1]).astype(np.float64)
            logits = (logits + mirrored) / 2
        num_classes = logits.shape[1]
        parts.append(_results(logits, np.asarray(labels).astype(np.int64)))
    losses, labels, predicted, in_top = map(np.concatenate, zip(*parts, strict=True))
    confusion = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    return Evaluation(losses, labels, predicted, in_top, confusion)


def _results(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of a batch, whose logits are not kept: a split may have a thousand classes."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    of_label = np.take_along_axis(shifted, labels[:, None], axis=1)
    losses = np.log(np.exp(shifted).sum(axis=1)) - of_label[:, 0]
    in_top = ((shifted > of_label).sum(axis=1) < TOP) & np.isfinite(losses)
    return losses, labels, logits.argmax(axis=1), in_top
