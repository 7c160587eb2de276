"""One microbatch: the forward pass of a model, and the backward pass, as pure functions.

Keras computes the model, its loss and its regularizers, within a `keras.StatelessScope`, which
gives its variables the values that the pass gets and keeps what it assigns to them. So a pass has
no effect but its result, and depends on nothing but its arguments.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from towers import adapted, cutting, gradients, model_state, refusals, separable

from keras.src import backend  # isort: skip
from keras.src.trainers.data_adapters import data_adapter_utils  # isort: skip


class Forward(NamedTuple):
    """What a forward pass gives; n is the number of examples of the microbatch.

    Attributes:
      outputs: of the model, [n, ...], in its structure.
      masks: of each output in flat order, [n, ...]; None where it carries none.
      losses: what layers gave to `add_loss`, scalars.
      state: per variable of `model.non_trainable_variables` its new value; None where unchanged.
      metrics: per variable of `model.metrics_variables` what the pass adds; None where nothing.
    """

    outputs: object
    masks: list[tf.Tensor | None]
    losses: list[tf.Tensor]
    state: list[tf.Tensor | None]
    metrics: list[tf.Tensor | None]


class Backward(NamedTuple):
    """What a forward and backward pass give.

    Attributes:
      gradients: of the loss, scaled as the optimizer wants it, one per trainable variable.
      loss: of the microbatch, a scalar, not scaled; with regularizers and `add_loss`.
      forward: the forward pass.
    """

    gradients: list[gradients.Gradient]
    loss: tf.Tensor
    forward: Forward


@dataclasses.dataclass(frozen=True, eq=False)
class Microbatch:
    """The passes of a model; each is traced once for a shape, and called for each microbatch.

    TensorFlow puts the operations in the place of each call before it runs the step: they run on
    the caller's device.

    Attributes:
      model: called as a pure function.
      training: whether layers train.
      jit_compile: XLA compiles a pass to one program, the same for any number of towers.
      traced: of each trace what its forward pass gives, which says what is None in it.
    """

    model: keras.Model
    training: bool
    jit_compile: bool
    traced: list[Forward] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def forward(self) -> Callable[..., Forward]:
        """(weights, state, draw, x) to the `Forward`.

        Args of the function:
          weights: values of `model.trainable_variables`.
          state: values of `model.non_trainable_variables`.
          draw: int64 [], the microbatch's number in its batch, by which random layers draw.
          x: [n, ...], the inputs in the structure that the model takes.
        """
        return self._function(self._forward)

    @functools.cached_property
    def backward(self) -> Callable[..., Backward]:
        """(weights, state, draw, batch, scale) to the `Backward`, with a loss of its own.

        Args of the function, beside those of `forward`:
          batch: (x, y, sample_weight) as Keras's adapters yield it.
          scale: float32 [], what the loss is multiplied by; None for nothing.
        """
        return self._function(self._backward)

    @functools.cached_property
    def loss(self) -> Callable[..., tuple[tf.Tensor, Forward]]:
        """(weights, state, draw, batch) to the loss of an evaluation and the `Forward`."""
        return self._function(self._loss)

    def _function(self, function: Callable) -> Callable:
        made = tf.function(function, autograph=False, jit_compile=self.jit_compile or None)
        made._omit_frequent_tracing_warning = True  # a batch may have several shapes
        return made

    def _forward(self, weights, state, draw, x) -> Forward:
        return self._call(weights, state, draw, x, lambda outputs: None)[1]

    def _loss(self, weights, state, draw, batch) -> tuple[tf.Tensor, Forward]:
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(batch)

        def loss(outputs):
            separable.check_outputs(outputs)
            return self.model._compute_loss(
                x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=self.training
            )

        return self._call(weights, state, draw, x, loss)

    def _backward(self, weights, state, draw, batch, scale) -> Backward:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, forward = self._loss(weights, state, draw, batch)
            scaled = loss if scale is None else keras.ops.multiply(loss, scale)
        return Backward(tape.gradient(scaled, list(weights)), loss, forward)

    def _call(self, weights, state, draw, x, loss: Callable) -> tuple[tf.Tensor | None, Forward]:
        """The model on `x`, and `loss` of its outputs within the same scope."""
        model = self.model
        state = model_state.with_draw_index(model, state, draw)
        zeros = [tf.zeros_like(variable.value) for variable in model.metrics_variables]
        mapping = [
            *zip(model.trainable_variables, weights, strict=True),
            *zip(model.non_trainable_variables, state, strict=True),
            *zip(model.metrics_variables, zeros, strict=True),
        ]
        mode = {"training": self.training} if model._call_has_training_arg else {}
        scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
        with refusals.explained(model), refusals.no_hidden_state(model, scope), scope:
            with adapted.read_from(model, state):
                outputs = model(x, **mode)
            refusals.check_outputs(model, outputs, x)
            from_layers = list(scope.losses)
            value = loss(outputs)

        def changed(variables: Sequence[keras.Variable], before: Sequence[tf.Tensor]) -> list:
            # Keras hands back the very tensor it was given for a variable that nothing assigned.
            after = [scope.get_current_value(variable) for variable in variables]
            return [None if new is old else new for old, new in zip(before, after, strict=True)]

        masks = [backend.get_keras_mask(output) for output in tree.flatten(outputs)]
        forward = Forward(
            outputs=outputs,
            masks=masks,
            losses=from_layers,
            state=changed(model.non_trainable_variables, state),
            metrics=changed(model.metrics_variables, zeros),
        )
        self.traced.append(forward)
        return value, forward


def join_outputs(forwards: Sequence[Forward]) -> object:
    """The outputs of all microbatches, one after the other, with their masks."""
    outputs = cutting.join([forward.outputs for forward in forwards])
    flat = tree.flatten(outputs)
    for output, *masks in zip(flat, *(forward.masks for forward in forwards), strict=True):
        if masks[0] is not None:
            backend.set_keras_mask(output, tf.concat(masks, axis=0))
    return outputs
