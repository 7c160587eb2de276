"""Your own arrays as a source of training batches.

The order of the examples is that of `batches`: every epoch its own permutation, from the seed.
"""

import functools
import hashlib
import operator
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from . import batches as by_step
from . import reading


def batches(
    inputs,
    labels,
    sample_weight: np.ndarray | None = None,
    *,
    augment: Callable[[tf.Tensor, by_step.Draws], tf.Tensor] | None = None,
    mix: Callable[[tf.Tensor, tf.Tensor, by_step.Draws], tuple] | None = None,
    seed: int = 0,
    shuffle: bool = True,
) -> "Arrays":
    """Training batches of arrays, in an order of their own in every epoch.

    Args:
      inputs: [n, ...], or a dict, tuple or list of these, nested or not. They are not copied, and
        may be memory-mapped; float64 becomes float32 batch by batch.
      labels: likewise.
      sample_weight: [n], at least 0; None weighs all examples the same.
      augment: (inputs, draws) to inputs, of a batch as tensors, as `preprocess` of
        `batches.training_batches`.
      mix: (inputs, labels, draws) to inputs and labels, such as a `mixing.Mixing`, after `augment`;
        not together with `sample_weight`. A Mixing needs a share of even size for each worker,
        which microbatches of even size give.
      seed: of the order and of what `augment` and `mix` draw.
      shuffle: False takes the examples in their order, epoch by epoch.

    Raises:
      TypeError, ValueError: they are not arrays, have a mask, or differ in their number of
        examples.
    """
    return Arrays(inputs, labels, sample_weight, augment, mix, seed, shuffle)


class Arrays:
    """A source of batches by step, for `towers.Run`.

    Attributes:
      num_examples: n.
      fingerprint: sha256 of the arrays, the seed and whether they are shuffled. What `augment` and
        `mix` do is not in it.
    """

    def __init__(self, inputs, labels, sample_weight, augment, mix, seed, shuffle):
        given = (inputs, labels) if sample_weight is None else (inputs, labels, sample_weight)
        self._parts = tuple(tf.nest.map_structure(by_step.as_array, part) for part in given)
        leaves = tf.nest.flatten(self._parts)
        for leaf in leaves:
            if leaf.dtype.kind not in "biuf" or not leaf.ndim:
                raise TypeError(
                    f"arrays: {leaf.dtype} {list(leaf.shape)}; must be numbers or booleans [n, ...]"
                )
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                "arrays must all have the same number of examples, at least 1; they have "
                f"{', '.join(map(str, (len(leaf) for leaf in leaves)))}"
            )
        (self.num_examples,) = lengths
        if sample_weight is not None:
            weight = self._parts[2]
            fits = isinstance(weight, np.ndarray) and weight.ndim == 1
            if not (fits and np.isfinite(weight).all() and (weight >= 0).all()):
                raise ValueError(
                    "arrays: sample_weight must be [n], every one finite and at least 0"
                )
            if mix is not None:
                raise ValueError(
                    "arrays: sample_weight and mix do not go together: an example of weight 0 "
                    "would be mixed into its neighbour"
                )
        self._augment, self._mix, self._seed, self._shuffle = augment, mix, seed, shuffle
        changes = f"{augment is None} {mix is None}"
        digest = hashlib.sha256(f"{seed} {shuffle} {changes}".encode())
        for leaf in leaves:
            digest.update(f"{leaf.dtype} {leaf.shape}".encode())
            for first in range(0, len(leaf), 4096):  # one that is memory-mapped is not read whole
                digest.update(np.ascontiguousarray(leaf[first : first + 4096]))
        self.fingerprint = digest.hexdigest()

    def batches(
        self,
        first_step: int,
        last_step: int,
        *,
        global_batch_size: int,
        share: range | None = None,
    ) -> Iterator[tuple]:
        """The batches of steps `first_step` to `last_step - 1`, or a share of each.

        Args:
          first_step: number of steps made already.
          last_step: number of steps made when the data set ends.
          global_batch_size: examples per step.
          share: the places in each batch that are read; None for all.

        Returns:
          An iterator over (inputs, labels) or (inputs, labels, sample_weight), in the structures of
          the arrays.
        """
        own = by_step.places(share, global_batch_size)
        leaves = tf.nest.flatten(self._parts)
        types = [_type_in_batches(leaf.dtype) for leaf in leaves]
        with tf.device("/CPU:0"):
            coin_of_example = by_step.coins(self.num_examples, seed=self._seed)

        def gathered(ids: np.ndarray) -> list[np.ndarray]:
            chosen = map(operator.itemgetter(ids), leaves)
            return [
                part.astype(dtype, copy=False) for part, dtype in zip(chosen, types, strict=True)
            ]

        def batch_of_step(step):
            position = step * global_batch_size + tf.range(own.start, own.stop, dtype=tf.int64)
            ids = position % self.num_examples
            if self._shuffle:
                ids = by_step.example_ids(
                    step,
                    num_examples=self.num_examples,
                    global_batch_size=global_batch_size,
                    seed=self._seed,
                )[own.start : own.stop]
            # With NumPy, from the arrays as they are: tensors would be a second copy of them.
            values = tf.numpy_function(gathered, [ids], types)
            for value, leaf in zip(values, leaves, strict=True):
                value.set_shape([len(own), *leaf.shape[1:]])
            inputs, labels, *weight = tf.nest.pack_sequence_as(self._parts, values)
            draws = by_step.draws_of(
                step, ids, coin_of_example, share,
                global_batch_size=global_batch_size, seed=self._seed,
            )  # fmt: skip
            if self._augment is not None:
                inputs = self._augment(inputs, draws)
            if self._mix is not None:
                inputs, labels = self._mix(inputs, labels, draws)
            # Flat: in the structures of tf.data a list is one tensor.
            return tuple(tf.nest.flatten((inputs, labels, *weight)))

        steps = tf.data.Dataset.range(first_step, last_step)
        flat = reading.Reading(by_step.mapped(steps, batch_of_step))
        return map(functools.partial(tf.nest.pack_sequence_as, self._parts), flat)


def _type_in_batches(dtype: np.dtype) -> np.dtype:
    """What TensorFlow takes, of this machine's byte order; float32 for all longer floats."""
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")
