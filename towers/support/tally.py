"""An evaluation's sums over examples, and what is divided once, at the end."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split.

    Where examples have weights w, a mean or a share of x is `sum(w * x) / sum(w)`.

    Attributes:
      count: examples evaluated, which are those of weight above 0.
      loss: mean of the loss, for cross entropy in nats.
      accuracy: share of examples whose label has the largest logit.
      top5_accuracy: share of examples whose label is among the five largest logits.
      confusion: [num_classes, num_classes], the weight of the examples by (label, predicted class):
        their number, int64, where every weight is 0 or 1; else float64.
      of_workers: (count, accuracy) of each worker's share of the examples.
    """

    count: int
    loss: float
    accuracy: float
    top5_accuracy: float
    confusion: np.ndarray
    of_workers: tuple[tuple[int, float], ...] = ()

    def per_class_accuracy(self) -> np.ndarray:
        """Accuracy among the examples of each class, [num_classes]; NaN for an absent class."""
        per_class = self.confusion.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.diag(self.confusion) / per_class

    def as_metrics(self) -> dict[str, float | int]:
        """The scalars, under the names of `metrics.jsonl`."""
        return {
            "count": self.count,
            "accuracy": self.accuracy,
            "top5_accuracy": self.top5_accuracy,
            "loss": self.loss,
        }


class Seen(NamedTuple):
    """Examples with their outputs, as NumPy arrays [n]."""

    labels: np.ndarray
    weight: np.ndarray  # float64
    losses: np.ndarray
    predicted: np.ndarray
    in_top5: np.ndarray

    def split(self, ends: np.ndarray) -> list["Seen"]:
        """Cut at `ends`, as `np.split` cuts."""
        return [Seen(*parts) for parts in zip(*(np.split(v, ends) for v in self), strict=True)]

    @staticmethod
    def joined(parts: Sequence["Seen"]) -> "Seen":
        """Several, one behind the other."""
        return Seen(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def counted(self) -> "Seen":
        """Those of weight above 0."""
        return Seen(*(values[self.weight > 0] for values in self))

    def accuracy(self) -> tuple[int, float]:
        """(examples, share that is right); 0.0 where there is none."""
        counted = self.counted()
        right = float((counted.weight * (counted.labels == counted.predicted)).sum())
        n = len(counted.labels)
        return n, right / float(counted.weight.sum()) if n else 0.0


def add_up(
    batches: Sequence[Seen], num_classes: int, of_workers: tuple[tuple[int, float], ...]
) -> Evaluation:
    """The evaluation of the examples in `batches`, added up batch by batch."""
    count, total, sum_loss, sum_top5 = 0, 0.0, 0.0, 0.0
    confusion = np.zeros((num_classes, num_classes))
    for batch in batches:
        labels, weight, losses, predicted, in_top5 = batch.counted()
        np.add.at(confusion, (labels, predicted), weight)
        count += len(weight)
        total += float(weight.sum())
        sum_loss += float((weight * losses.astype(np.float64)).sum())
        sum_top5 += float((weight * in_top5).sum())
    are_counts = all(np.isin(batch.weight, (0, 1)).all() for batch in batches)
    return Evaluation(
        count=count,
        loss=sum_loss / total,
        accuracy=float(np.trace(confusion)) / total,
        top5_accuracy=sum_top5 / total,
        confusion=confusion.astype(np.int64) if are_counts else confusion,
        of_workers=of_workers,
    )
