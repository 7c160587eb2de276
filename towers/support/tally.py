"""An evaluation's sums over examples, divided once, at the end."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split.

    Where examples have weights w, a mean or a share of x is `sum(w * x) / sum(w)`.

    Attributes:
      count: examples evaluated, which are those of weight above 0.
      loss: mean of the loss, for cross entropy in nats.
      metrics: `accuracy`, the share of examples whose label has the largest logit, and
        `top5_accuracy`, the share whose label is among the five largest.
      confusion: [num_classes, num_classes], the weight of the examples by (label, predicted class):
        their number, int64, where every weight is 0 or 1; else float64.
      of_workers: (count, accuracy) of each worker's share of the examples.
      examples: each one's loss and prediction, in their order.
    """

    count: int
    loss: float
    metrics: Mapping[str, float]
    confusion: np.ndarray
    of_workers: tuple[tuple[int, float], ...] = ()
    examples: "Seen | None" = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """The metric of that name."""
        return self.metrics["accuracy"]

    @property
    def top5_accuracy(self) -> float:
        """The metric of that name."""
        return self.metrics["top5_accuracy"]

    def per_class_accuracy(self) -> np.ndarray:
        """Accuracy among the examples of each class, [num_classes]; NaN for an absent class."""
        per_class = self.confusion.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.diag(self.confusion) / per_class

    def as_metrics(self) -> dict[str, float | int]:
        """The scalars, under the names of `metrics.jsonl`."""
        return {"count": self.count} | dict(self.metrics) | {"loss": self.loss}


class Seen(NamedTuple):
    """Examples with their results, as NumPy arrays.

    Attributes:
      weight: float64 [n].
      losses: floating [n].
      classes: int64 [n, 3], the label, the predicted class, and 1 where the label is among the five
        largest.
    """

    weight: np.ndarray
    losses: np.ndarray
    classes: np.ndarray

    def split(self, sizes: np.ndarray) -> list["Seen"]:
        """Cut into parts of these sizes, in order."""
        ends = np.cumsum(sizes)[:-1]
        return [Seen(*parts) for parts in zip(*(np.split(v, ends) for v in self), strict=True)]

    @staticmethod
    def joined(parts: Sequence["Seen"]) -> "Seen":
        """Several, one after the other."""
        return Seen(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def counted(self) -> "Seen":
        """Those of weight above 0."""
        return Seen(*(values[self.weight > 0] for values in self))

    def accuracy(self) -> tuple[int, float]:
        """(examples, share that is right); 0.0 where there are no examples."""
        counted = self.counted()
        labels, predicted, _ = counted.classes.T
        right = float((counted.weight * (labels == predicted)).sum())
        n = len(labels)
        return n, right / float(counted.weight.sum()) if n else 0.0


def uncut(of_workers: Sequence[Seen], sizes: Sequence[np.ndarray]) -> list[Seen]:
    """The batches of which each worker has seen its share.

    Args:
      of_workers: what each has seen, all batches one after the other.
      sizes: of each one's share of every batch.

    Raises:
      ValueError: they have seen different numbers of batches.
    """
    counts = [len(of_worker) for of_worker in sizes]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the workers have {', '.join(map(str, counts))} batches to evaluate, in their order: "
            "each must have its share of the same batches"
        )
    cut = map(Seen.split, of_workers, sizes)
    return [Seen.joined(shares) for shares in zip(*cut, strict=True)]


def add_up(
    batches: Sequence[Seen],
    num_classes: int,
    of_workers: tuple[tuple[int, float], ...],
) -> Evaluation:
    """The evaluation of the examples in `batches`, added up batch by batch.

    Args:
      batches: what was seen.
      num_classes: of the model.
      of_workers: as in `Evaluation`.
    """
    count, total, sum_loss, sum_top5 = 0, 0.0, 0.0, 0.0
    confusion = np.zeros((num_classes, num_classes))
    for batch in batches:
        weight, losses, classes = batch.counted()
        labels, predicted, in_top5 = classes.T
        count += len(weight)
        total += float(weight.sum())
        sum_loss += float((weight * losses.astype(np.float64)).sum())
        sum_top5 += float((weight * in_top5).sum())
        np.add.at(confusion, (labels, predicted), weight)
    are_counts = all(np.isin(batch.weight, (0, 1)).all() for batch in batches)
    accuracy = float(np.trace(confusion)) / total
    return Evaluation(
        count=count,
        loss=sum_loss / total,
        metrics={"accuracy": accuracy, "top5_accuracy": sum_top5 / total},
        confusion=confusion.astype(np.int64) if are_counts else confusion,
        of_workers=of_workers,
        examples=Seen.joined([batch.counted() for batch in batches]),
    )
