"""The update of a step: of weights, batch statistics and metrics, from averages over the batch.

Where XLA compiles the model it is one program, the same for any number of towers. XLA cannot stop
halfway, so the program takes back what it has changed where a loss or a gradient is not finite.
Without XLA the update waits until all are known to be finite.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from towers import cutting, devices, gradients, microbatch

_MARK = "a loss or a gradient is not finite"  # tells this error from TensorFlow's own

Changes = list[tuple[keras.Variable, tf.Tensor]]  # variables that are not trained: new values


class Watched(NamedTuple):
    """What a step shows of itself, before its update.

    Attributes:
      losses: of each microbatch, [M]; of the joined outputs [1].
      gradients: the mean ones, one per trainable variable; not clipped, and without a loss scale.
    """

    losses: tf.Tensor
    gradients: list[gradients.Gradient]


class Averages(NamedTuple):
    """What a step updates with: means over the examples of the batch."""

    loss: tf.Tensor  # scalar
    losses: Sequence[tf.Tensor]  # of each microbatch; of the joined outputs the one
    gradients: list[gradients.Gradient]  # one per trainable variable, scaled for the optimizer
    changes: Changes  # of what is not trained


def are_on_one_device(variables: Sequence[tf.Variable]) -> bool:
    """Whether XLA can have them in one program."""
    return len({variable.device for variable in variables}) == 1


def loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """What the optimizer will divide gradients by, float32 []; None for nothing."""
    one = tf.ones([])
    scale = optimizer.scale_loss(one)
    return None if scale is one else scale


@dataclasses.dataclass(frozen=True)
class Update:
    """Updates a model in the graph of a step.

    Attributes:
      model: compiled and built.
      training: whether weights are updated.
      watched: whether a step shows what it has; then it fails where not all is finite.
      after_update: functions of the number of examples, called once the weights are updated.
    """

    model: keras.Model
    training: bool
    watched: bool
    after_update: Sequence[Callable[[int], None]] = ()

    def __call__(
        self,
        batch: cutting.Structure,
        forwards: Sequence[microbatch.Forward],
        total: Sequence[gradients.Gradient],
        average: Callable[[], Averages],
    ) -> dict[str, tf.Tensor] | tuple[dict[str, tf.Tensor], Watched]:
        """Updates; returns the metrics after it, and the `Watched` if a step is watched.

        `average` makes the averages, of `total`, within the program that XLA compiles.
        """
        is_compiled = self._is_compiled(total)
        if is_compiled:
            program = tf.function(
                lambda: self._update_if_finite(batch, forwards, average()),
                autograph=False,
                jit_compile=True,
            )
            logs, watched, finite = program()
        else:
            averages = average()
            watched, finite = self._watch(averages)
        with tf.control_dependencies([] if finite is None else [check_finite(finite)]):
            if not is_compiled:
                logs = self._update(batch, forwards, averages)
            for function in self.after_update:
                function(cutting.num_examples(batch))
        return logs if watched is None else (logs, watched)

    def _variables(self) -> list[tf.Variable]:
        model = self.model
        optimizer = model.optimizer.variables if self.training else ()
        variables = [*model.variables, *model.metrics_variables, *optimizer]
        return [variable.value for variable in variables]

    def _is_compiled(self, total: Sequence[gradients.Gradient]) -> bool:
        """Whether XLA compiles it: all variables are on one device, and no gradient has rows."""
        if not self.model.jit_compile or any(isinstance(g, tf.IndexedSlices) for g in total):
            return False
        return are_on_one_device(self._variables())

    def _watch(self, averages: Averages) -> tuple[Watched | None, tf.Tensor | None]:
        """What the step shows, and whether losses and gradients are finite, bool []."""
        if not (self.training and self.watched):
            return None, None
        with tf.name_scope("watched"):
            losses, mean = tf.stack(averages.losses), averages.gradients
            finite = all_finite(losses, mean, self.model.optimizer)
            if (scale := loss_scale(self.model.optimizer)) is not None:  # before it may change
                mean = [gradients.times(gradient, 1.0 / scale) for gradient in mean]
            return Watched(losses, mean), finite

    def _update_if_finite(self, batch, forwards, averages: Averages) -> tuple:
        watched, finite = self._watch(averages)
        variables = [] if finite is None else self._variables()
        before = [tf.identity(variable) for variable in variables]
        logs = self._update(batch, forwards, averages)
        for variable, value in zip(variables, before, strict=True):
            variable.assign(tf.where(finite, variable, value))
        return logs, watched, finite

    def _update(self, batch, forwards, averages: Averages) -> dict[str, tf.Tensor]:
        model = self.model
        with tf.name_scope("apply"):
            if self.training and model.trainable_variables:
                pairs = zip(averages.gradients, model.trainable_variables, strict=True)
                model.optimizer.apply_gradients(pairs)
        with tf.name_scope("state"):
            for variable, value in averages.changes:
                variable.assign(value)
        with tf.name_scope("metrics"):
            count = cutting.num_examples(batch)
            model._loss_tracker.update_state(averages.loss, sample_weight=count)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            outputs = microbatch.join_outputs(forwards)
            return model.compute_metrics(x, y, outputs, sample_weight=sample_weight)


def all_finite(
    losses: tf.Tensor, mean: Sequence[gradients.Gradient], optimizer: keras.optimizers.Optimizer
) -> tf.Tensor:
    """Whether losses [M] and gradients are finite, bool [].

    So must the gradients' norm be, where it is clipped. With a dynamic loss scale above 1 they may
    overflow: the optimizer skips the update and lowers the scale.
    """
    # TensorFlow's check_numerics takes ten times as long on a CPU (docs/reliability.md).
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in mean if g is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    if getattr(optimizer, "global_clipnorm", None) is not None:
        finite &= tf.math.is_finite(gradients.global_norm(mean))
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        finite |= optimizer.scale_loss(tf.ones([])) > 1
    return finite & tf.reduce_all(tf.math.is_finite(losses))


def check_finite(all_finite: tf.Tensor) -> tf.Operation:
    """An operation that fails where not all is finite."""
    with tf.device(devices.HOST):  # no GPU has a constant of text
        return tf.raw_ops.Assert(condition=all_finite, data=[_MARK])


def is_from_check(error: tf.errors.OpError) -> bool:
    """Whether the error that a step ended with is that of `check_finite`."""
    return _MARK in error.message
