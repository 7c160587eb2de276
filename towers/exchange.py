"""What several workers exchange in a step: `worker.Workers.join`, for the passes of Keras models.

Each worker has the whole batch and computes the microbatches of its own towers. Afterwards all have
the same: the sum of all gradients, and of each microbatch its loss, outputs and new state.
"""

from collections.abc import Sequence

import tensorflow as tf
from keras import tree

from towers import gradients, microbatch, shares, worker


class UnevenRows(Exception):
    """Raised while a step is traced: workers would send different numbers of rows."""


class Exchange:
    """Who computes which microbatches of a batch, and what they exchange.

    Attributes:
      own: for each of this worker's towers its consecutive microbatches; some may be empty.
    """

    def __init__(
        self,
        workers: worker.Workers,
        towers_of_workers: Sequence[int],
        count: int,
        alone: bool = False,
    ):
        """
        Args:
          workers: that make a step together.
          towers_of_workers: how many towers each has.
          count: microbatches of the batch.
          alone: each worker computes the whole batch, and they exchange nothing.
        """
        self._workers = workers
        self._shares = shares.Shares(count, towers_of_workers, workers.index)
        everyone = [sum(map(len, of_towers)) for of_towers in self._shares.of_workers]
        # A batch with too few microbatches for all workers is computed whole by each of them.
        self._alone = alone or workers.count == 1 or not all(everyone)
        if self._alone:
            self.own = shares.evenly(count, towers_of_workers[workers.index])
        else:
            self.own = self._shares.of_towers

    def __call__(
        self,
        sums: gradients.Sums,
        results: Sequence[tuple[tf.Tensor, microbatch.Forward]],
        sizes: Sequence[int],
    ) -> tuple[list[gradients.Gradient], list[tuple[tf.Tensor, microbatch.Forward]]]:
        """The total of the gradients, and the results of all microbatches.

        Args:
          sums: this worker's, from `gradients.sum_over_share`; empty lists to exchange none.
          results: (loss, forward pass) of each of this worker's microbatches.
          sizes: examples of every microbatch of the batch.

        Raises:
          UnevenRows: gradients have rows, and a microbatch is shorter than the others.
        """
        if self._alone:
            return worker.Workers().join(sums, results, self._shares)
        values = [value for of_subtree in sums.values() for value in of_subtree]
        if len(set(sizes)) > 1 and any(isinstance(v, tf.IndexedSlices) for v in values):
            raise UnevenRows
        whole = max(sizes)
        rows = [[*_of_examples(one, whole), *_others(one)] for one in results]
        own = [tf.stack(values) for values in zip(*rows, strict=True)]
        total, joined = self._workers.join(sums, own, self._shares)
        like, each = results[0], [tf.unstack(values) for values in joined]
        everything = [
            _rebuild(like, list(values), size)
            for size, values in zip(sizes, zip(*each, strict=True), strict=True)
        ]
        return total, everything


def _present(values) -> list[tf.Tensor]:
    return [value for value in values if value is not None]


def _of_examples(result, size: int) -> list[tf.Tensor]:
    """Outputs and masks, [size, ...]: those of a shorter microbatch are filled up to travel."""
    _, forward = result
    values = _present([*tree.flatten(forward.outputs), *forward.masks])
    return [
        tf.pad(value, [[0, size - value.shape[0]]] + [[0, 0]] * (value.shape.rank - 1))
        for value in values
    ]


def _others(result) -> list[tf.Tensor]:
    loss, forward = result
    return _present([loss, *forward.losses, *forward.state, *forward.metrics])


def _rebuild(like, values: list[tf.Tensor], size: int) -> tuple[tf.Tensor, microbatch.Forward]:
    """A result from its tensors, in the structure of another."""
    loss, forward = like
    remaining = iter(values)

    def take(old, cut=False):
        value = None if old is None else next(remaining)
        return value[:size] if cut and value is not None else value

    outputs = tree.map_structure(lambda old: take(old, cut=True), forward.outputs)
    masks = [take(old, cut=True) for old in forward.masks]
    return take(loss), microbatch.Forward(
        outputs, masks, *([take(old) for old in part] for part in forward[2:])
    )
