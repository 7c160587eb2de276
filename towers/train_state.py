"""The state of a run: all that it carries from step to step, and nothing of towers.

This file alone says what belongs to it. A step updates it, workers receive it, a checkpoint holds
it, and a hash over it tells whether two runs are at the same place.
"""

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from towers import devices, model_state
from towers.support import hashes


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a run carries from step to step.

    Attributes:
      model: its variables are the weights and the batch-norm state.
      optimizer: built on `model.trainable_variables`; None where the state is only evaluated.
      averages: moving averages of the weights, in their order; empty if none are kept.
      statistics_of_each: [num_microbatches, ...] for each variable of `model_state.kept_apart`;
        empty but for the policy `each`.
      step: int64 variable, updates made.
      examples_seen: int64 variable, examples consumed.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer | None
    averages: Sequence[tf.Variable]
    statistics_of_each: Sequence[tf.Variable]
    step: tf.Variable
    examples_seen: tf.Variable

    def parts(self) -> dict[str, list[tf.Variable]]:
        """The variables by what they are; a part that this run does not have is empty.

        `weights`, `model_state` (batch norm), `optimizer` (slots), `moving_averages`,
        `statistics_of_each` and `counters` (step, examples seen).
        """
        slots = self.optimizer.variables if self.optimizer else ()
        return {
            "weights": [weight.value for weight in self.model.trainable_variables],
            "model_state": [variable.value for variable in self.model.non_trainable_variables],
            "optimizer": [slot.value for slot in slots],
            "moving_averages": list(self.averages),
            "statistics_of_each": list(self.statistics_of_each),
            "counters": [self.step, self.examples_seen],
        }

    def evaluated_weights(self) -> list[tf.Variable]:
        """What is evaluated and exported: the moving averages where they are kept, else weights."""
        return list(self.averages) or self.parts()["weights"]

    def parts_sha256(self) -> dict[str, str]:
        """A hash for each of `parts` that this run has."""
        return {
            name: hashes.sha256(variable.numpy() for variable in part)
            for name, part in self.parts().items()
            if part
        }

    def sha256(self) -> str:
        """One hash over those of `parts_sha256`: of the whole state."""
        return hashes.sha256_of_parts(self.parts_sha256())


def new(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | None,
    *,
    keep_averages: bool,
    statistics_of_each: int = 0,
    parameter_device: str | None = None,
) -> TrainState:
    """The state at step 0; its counters are on the CPU.

    Args:
      model: built.
      optimizer: is built here; None for a state that is only evaluated.
      keep_averages: whether to keep moving averages of the weights.
      statistics_of_each: microbatches whose batch-norm statistics are kept apart; 0 for none.
      parameter_device: for all that is made here but the counters; None for the CPU.
    """
    with tf.device(devices.HOST):
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        examples_seen = tf.Variable(0, dtype=tf.int64, trainable=False, name="examples_seen")
    with tf.device(parameter_device or devices.HOST):
        if optimizer is not None:
            optimizer.build(model.trainable_variables)
        averages = [
            tf.Variable(weight.value, trainable=False, name="moving_average")
            for weight in (model.trainable_variables if keep_averages else ())
        ]
        return TrainState(
            model=model,
            optimizer=optimizer,
            averages=averages,
            statistics_of_each=model_state.new_apart(model, statistics_of_each),
            step=step,
            examples_seen=examples_seen,
        )
