"""All that a run carries from step to step."""

from collections.abc import Sequence
from typing import Any

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

    def arithmetic(self) -> dict[str, list[tf.Variable]]:
        """The variables by what they are that a hash is taken over: all but the notes."""
        model = self.model
        parts = {
            "weights": model.trainable_variables,
            "model_state": model.non_trainable_variables,
            "optimizer": model.optimizer.variables,
            "metrics": model.metrics_variables,
        }
        return {name: [v.value for v in part] for name, part in parts.items()} | {
            "moving_averages": self.averages,
            "step": [self.counter],
        }

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds.

        What belongs to a variable of the model is known by its place in `model.variables`: the
        order of those that train depends on which layers are frozen.
        """
        places = {id(variable.value): str(n) for n, variable in enumerate(self.model.variables)}
        parts: dict[str, Any] = self.arithmetic()
        trained = [places[id(variable)] for variable in parts["weights"]]
        parts["moving_averages"] = dict(zip(trained, self.averages, strict=bool(self.averages)))
        for name in ("weights", "model_state"):
            parts[name] = {places[id(variable)]: variable for variable in parts[name]}
        return parts | {"notes": [self.notes]}

    def parts_sha256(self) -> dict[str, str]:
        """A hash for each part that this run has."""
        return {
            name: hashes.sha256(variable.numpy() for variable in part)
            for name, part in self.arithmetic().items()
            if part
        }

    def sha256(self) -> str:
        """One hash over those of `parts_sha256`: of the whole state."""
        return hashes.sha256_of_parts(self.parts_sha256())
