"""Test data in memory: each example exactly once, on any number of workers."""

import hashlib
import operator
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from towers.support import checks, shares, structures


class Arrays:
    """This worker's share of each batch of some arrays, as often as they are iterated over.

    The last batch is filled up with example 0, of weight 0.

    Attributes:
      num_examples: in the arrays.
    """

    def __init__(self, given: tuple, of: shares.Shares):
        """
        Args:
          given: (inputs [n, ...], labels [n, ...]), or with sample_weight [n]; the first two may be
            dicts, tuples or lists of arrays.
          of: the workers that evaluate together, and the batch.

        Raises:
          TypeError, ValueError: they are not such arrays, or are empty.
        """
        if len(given) not in (2, 3):
            raise TypeError(
                f"test is {checks.described(given)}: must be (inputs, labels) or (inputs, labels, "
                "sample_weight), or batches of these"
            )
        inputs, labels, *weight = given
        self._arrays = [tf.nest.map_structure(np.asarray, part) for part in (inputs, labels)]
        leaves = tf.nest.flatten(self._arrays)
        if any(isinstance(each, np.ma.MaskedArray) for each in tf.nest.flatten(given)):
            raise TypeError(
                "test: a masked array, whose mask would be lost; fill it (`.filled(...)`)"
            )
        lengths = {len(leaf) if leaf.ndim else 0 for leaf in leaves}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(
                "test: its arrays must all have the same number of examples, at least 1; they are "
                f"{', '.join(str(list(leaf.shape)) for leaf in leaves)}"
            )
        (self.num_examples,) = lengths
        self._weight = np.ones(self.num_examples, np.float32)
        if weight and weight[0] is not None:
            self._weight = checks.weights(weight[0], self.num_examples, np.float32)
        self._batch, self._own = of.global_batch_size, np.array(of.examples)

    def sha256(self) -> str:
        """A hash of all arrays, in hex."""
        digest = hashlib.sha256()
        for leaf in [*tf.nest.flatten(self._arrays), self._weight]:
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            for first in range(0, len(leaf), 4096):  # one that is memory-mapped is not read whole
                part = leaf[first : first + 4096]
                if part.dtype == object:  # strings: the array has only where they are
                    digest.update(repr(part.tolist()).encode("utf-8", "surrogatepass"))
                else:
                    digest.update(np.ascontiguousarray(part))
        return digest.hexdigest()

    @property
    def num_counted(self) -> int:
        """How many have a weight above 0."""
        return int((self._weight > 0).sum())

    def __iter__(self) -> Iterator[tuple[structures.Structure, structures.Structure, np.ndarray]]:
        for first in range(0, self.num_examples, self._batch):
            places = first + self._own
            is_there = places < self.num_examples
            places = np.where(is_there, places, 0)
            inputs, labels = tf.nest.map_structure(operator.itemgetter(places), self._arrays)
            yield inputs, labels, self._weight[places] * is_there
