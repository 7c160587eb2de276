"""All that a run carries from step to step."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from towers import devices, hashes


class FitState:
    """The state of a run; `checkpoints` saves and restores it.

    Attributes:
      model: with its optimizer and its metrics.
      averages: moving averages of the trainable weights, in their order; empty if none are kept.
      step: updates made.
      counter: int64 variable of these. A step counts in its graph; the number spares reading it.
      notes: string variable, what callbacks remember (`callback_state`) and where an epoch is.
    """

    def __init__(self, model: keras.Model, averages: Sequence[tf.Variable] = ()):
        self.model, self.averages = model, list(averages)
        with tf.device(devices.HOST):
            self.counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            self.notes = tf.Variable("{}", trainable=False, name="notes")
        self.read()

    def read(self) -> None:
        """Takes the number of the variable, which was restored."""
        self.step = int(self.counter)

    def count(self, examples: int) -> None:
        """Counts a step in its graph."""
        with tf.device(devices.HOST), tf.name_scope("count"):
            self.counter.assign_add(1)

    def parts(self) -> dict[str, dict[str, tf.Variable]]:
        """The variables but the notes, by what they are and by their place.

        What belongs to a variable of the model has its place in `model.variables`: the order of
        those that train depends on which layers are frozen.
        """
        model = self.model
        trained = {id(variable) for variable in model.trainable_variables}
        numbered = {str(place): v for place, v in enumerate(model.variables)}
        weights = {place: v.value for place, v in numbered.items() if id(v) in trained}
        return {
            "weights": weights,
            "model_state": {p: v.value for p, v in numbered.items() if id(v) not in trained},
            "optimizer": {str(p): v.value for p, v in enumerate(model.optimizer.variables)},
            "metrics": {str(p): v.value for p, v in enumerate(model.metrics_variables)},
            "moving_averages": dict(zip(weights, self.averages, strict=bool(self.averages))),
            "step": {"0": self.counter},
        }

    def variables(self) -> list[tf.Variable]:
        """All variables but the notes."""
        return [variable for part in self.parts().values() for variable in part.values()]

    def parts_sha256(self) -> dict[str, str]:
        """A hash for each part that this run has."""
        return {
            name: hashes.sha256(variable.numpy() for variable in part.values())
            for name, part in self.parts().items()
            if part
        }

    def sha256(self) -> str:
        """One hash over those of `parts_sha256`: of the whole state."""
        return hashes.sha256_of_parts(self.parts_sha256())


@contextlib.contextmanager
def kept(variables: Sequence) -> Iterator[None]:
    """Gives variables back the values that they had before."""
    values = [tf.identity(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
