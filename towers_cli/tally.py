"""An evaluation of a classifier, example by example: predictions of Keras's, counted with NumPy.

Sums travel; division happens once, at the end.
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import keras
import numpy as np

TOP = 5


class Seen(NamedTuple):
    """Examples with their results, in their order.

    Attributes:
      losses: floating [n], the cross entropy of each, in nats.
      labels, predicted: int64 [n].
      in_top: bool [n], whether the label is among the five largest logits.
    """

    losses: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    in_top: np.ndarray


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split.

    Attributes:
      examples: each one's loss and prediction.
      confusion: int64 [num_classes, num_classes], examples by (label, predicted class).
    """

    examples: Seen
    confusion: np.ndarray

    @property
    def count(self) -> int:
        """Examples evaluated."""
        return len(self.examples.labels)

    @property
    def loss(self) -> float:
        """The mean cross entropy, in nats."""
        return float(self.examples.losses.mean(dtype=np.float64))

    @property
    def accuracy(self) -> float:
        """The share of examples whose label has the largest logit."""
        return float((self.examples.labels == self.examples.predicted).mean())

    @property
    def top5_accuracy(self) -> float:
        """The share whose label is among the five largest."""
        return float(self.examples.in_top.mean())

    def per_class_accuracy(self) -> np.ndarray:
        """Accuracy among the examples of each class, [num_classes]; NaN for an absent class."""
        with np.errstate(invalid="ignore"):
            return np.diag(self.confusion) / self.confusion.sum(axis=1)

    def as_metrics(self) -> dict[str, float | int]:
        """The scalars, under the names of `eval.jsonl`."""
        return {
            "count": self.count,
            "accuracy": self.accuracy,
            "top5_accuracy": self.top5_accuracy,
            "cross_entropy": self.loss,
        }


def evaluate(model: keras.Model, batches: Iterable, test_time_flip: bool = False) -> Evaluation:
    """Evaluates each example once.

    Args:
      model: of images to logits; on towers, each batch is spread over them.
      batches: (images [n, height, width, channels], labels int [n]).
      test_time_flip: evaluates the mean of the logits of each image and of its mirror image.
    """
    seen, num_classes = [], 0
    for images, labels in batches:
        logits = model.predict_on_batch(images).astype(np.float64)
        if test_time_flip:
            mirrored = model.predict_on_batch(images[:, :, ::-1]).astype(np.float64)
            logits = (logits + mirrored) / 2
        num_classes = logits.shape[-1]
        seen.append(_seen(logits, np.asarray(labels).astype(np.int64)))
    examples = Seen(*(np.concatenate(values) for values in zip(*seen, strict=True)))
    confusion = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(confusion, (examples.labels, examples.predicted), 1)
    return Evaluation(examples, confusion)


def _seen(logits: np.ndarray, labels: np.ndarray) -> Seen:
    shifted = logits - logits.max(axis=1, keepdims=True)
    of_label = np.take_along_axis(shifted, labels[:, None], axis=1)
    losses = np.log(np.exp(shifted).sum(axis=1)) - of_label[:, 0]
    larger = (shifted > of_label).sum(axis=1)
    in_top = (larger < TOP) & np.isfinite(losses)
    return Seen(losses, labels, logits.argmax(axis=1), in_top)
