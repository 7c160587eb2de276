"""The batches of a run, from any of its steps on, and those that it evaluates."""

import hashlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from towers import cutting

from keras.src.trainers.data_adapters import data_adapter_utils  # isort: skip


class Epochs:
    """Epochs of a source that can be read at any position; a step may begin one and end another.

    Attributes:
      num_examples: of an epoch.
      batch_size: examples of a step.
      definition: what identifies the data and their order, by name.
    """

    def __init__(self, source: Any, batch_size: int):
        """Takes a source, whose `batches(first_step, last_step, global_batch_size=)` are read."""
        if not all(hasattr(source, name) for name in ("batches", "num_examples", "fingerprint")):
            raise TypeError(
                f"x is a {type(source).__name__}: must be a source that can be read at any "
                "position, such as input_pipeline.arrays.batches(x, y); Keras's fit takes others"
            )
        self.num_examples = source.num_examples
        if not 1 <= batch_size <= self.num_examples:
            raise ValueError(
                f"batch_size={batch_size}: must be from 1 to {self.num_examples}, the examples of x"
            )
        self.batch_size, self._source = batch_size, source
        digest = hashlib.sha256(source.fingerprint.encode()).hexdigest()
        self.definition = {"data": digest[:12], "batch_size": batch_size}

    def first_step(self, epoch: int) -> int:
        """The first step that begins with or after an epoch's first example."""
        return -(-epoch * self.num_examples // self.batch_size)

    def epoch(self, step: int) -> int:
        """The epoch in which a step begins."""
        return step * self.batch_size // self.num_examples

    def batches(self, first_step: int, last_step: int) -> Iterator[cutting.Structure]:
        """The batches of the steps from `first_step` to before `last_step`."""
        read = self._source.batches(first_step, last_step, global_batch_size=self.batch_size)
        return (cutting.dense(tuple(batch)) for batch in read)


def evaluated(data: Any) -> Any:
    """What is evaluated, as Keras's `evaluate` takes it.

    Batches of a list, or of another object that can be iterated over again and again, become one
    data set.
    """
    if data is None or isinstance(data, (tuple, tf.data.Dataset, keras.utils.PyDataset)):
        return data
    signature = data_adapter_utils.get_tensor_spec([tuple(next(iter(data)))])
    # Made once: TensorFlow keeps each data set of a Python function until the process ends.
    return tf.data.Dataset.from_generator(lambda: map(tuple, data), output_signature=signature)
