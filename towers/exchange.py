"""What several workers exchange in a step: `worker.Workers.join`, for the passes of Keras models.

Each worker has the whole batch and computes the microbatches of its own towers. Afterwards all have
the same: the sum of all gradients, and the forward pass of each microbatch.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from towers import gradients, microbatch, shares, worker


class UnevenRows(Exception):
    """Raised while a step is traced: workers would send different numbers of rows."""


class Exchange:
    """Who computes which of `count` microbatches, and what they exchange.

    Where workers are `alone`, or there are too few microbatches for all, each computes the whole
    batch.

    Attributes:
      shares: (tower, its consecutive microbatches) of this worker, without towers that have none.
    """

    def __init__(
        self, workers: worker.Workers, towers_of_workers: Sequence[int], count: int, alone: bool
    ):
        self._workers = workers
        self._split = shares.Shares(count, towers_of_workers, workers.index)
        if alone or not all(map(self._split.microbatches, range(workers.count))):
            self._workers = worker.Workers()
            self._split = shares.Shares(count, [towers_of_workers[workers.index]])
        self.shares = [(tower, s) for tower, s in enumerate(self._split.tower_shares()) if s]

    def __call__(
        self, sums: gradients.Sums, results: Sequence[microbatch.Forward], sizes: Sequence[int]
    ) -> tuple[list[gradients.Gradient], list[microbatch.Forward]]:
        """The total of the gradients, and the forward passes of all microbatches.

        Args:
          sums: this worker's, from `gradients.sum_over_share`; empty lists to exchange none.
          results: of each of this worker's microbatches; empty to exchange none.
          sizes: examples of every microbatch of the batch.

        Raises:
          UnevenRows: gradients have rows, and a microbatch is shorter than the others.
        """
        values = [value for subtree_sums in sums.values() for value in subtree_sums]
        has_rows = any(isinstance(value, tf.IndexedSlices) for value in values)
        if self._workers.count > 1 and has_rows and len(set(sizes)) > 1:
            raise UnevenRows
        if self._workers.count == 1 or not results:
            return self._workers.join(sums, results, self._split)
        rows = [_filled_up(forward, max(sizes)) for forward in results]
        stacked = [tf.stack(values) for values in zip(*rows, strict=True)]
        total, joined = self._workers.join(sums, stacked, self._split)
        each = zip(*map(tf.unstack, joined), strict=True)
        return total, [
            _rebuilt(results[0], values, size) for values, size in zip(each, sizes, strict=True)
        ]


def _filled_up(forward: microbatch.Forward, size: int) -> list[tf.Tensor]:
    """The tensors of a pass; outputs and masks of a shorter one, [n, ...], become [size, ...]."""

    def fill(value: tf.Tensor) -> tf.Tensor:
        return tf.pad(value, [[0, size - value.shape[0]]] + [[0, 0]] * (value.shape.rank - 1))

    values = tf.nest.flatten(_map_examples(fill, forward))
    return [value for value in values if value is not None]


def _rebuilt(like: microbatch.Forward, values: Sequence, size: int) -> microbatch.Forward:
    """A pass of `size` examples from its tensors, in the structure of another."""
    remaining = iter(values)
    filled_up = tf.nest.map_structure(lambda old: None if old is None else next(remaining), like)
    return _map_examples(lambda value: value[:size], filled_up)


def _map_examples(change: Callable, forward: microbatch.Forward) -> microbatch.Forward:
    """A pass with other outputs and masks."""
    outputs, masks = tf.nest.map_structure(
        lambda value: None if value is None else change(value), (forward.outputs, forward.masks)
    )
    return forward._replace(outputs=outputs, masks=masks)
