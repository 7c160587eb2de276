"""One microbatch: the forward pass of a model, and the backward pass, as pure functions.

Keras computes the model, its loss and its regularizers, within a `keras.StatelessScope`, which
gives its variables the values that the pass gets and keeps what it assigns to them. So a pass has
no effect but its result, and depends on nothing but its arguments.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from towers import cutting, gradients, model_state, refusals, separable

from keras.src import backend  # isort: skip


class Forward(NamedTuple):
    """What a forward pass gives; n is the number of examples of the microbatch.

    Attributes:
      loss: of the microbatch, a scalar, with regularizers and `add_loss`; None where the outputs
        will be joined for one.
      outputs: of the model, [n, ...], in its structure.
      masks: of each output in flat order, [n, ...]; None where it carries none.
      losses: what layers gave to `add_loss`, scalars.
      state: per variable of `model.non_trainable_variables` its new value; None where unchanged.
      metrics: per variable of `model.metrics_variables` what the pass adds; None where nothing.
    """

    loss: tf.Tensor | None
    outputs: object
    masks: list[tf.Tensor | None]
    losses: list[tf.Tensor]
    state: list[tf.Tensor | None]
    metrics: list[tf.Tensor | None]


class Backward(NamedTuple):
    """What both passes give; gradients are those of the loss as the optimizer scales it."""

    gradients: list[gradients.Gradient]  # one per trainable variable; none in an evaluation
    forward: Forward


@dataclasses.dataclass(eq=False)
class Microbatch:
    """The passes of a model; each is traced once for a shape, and called for each microbatch.

      forward(weights, state, draw, x) gives a `Forward` without a loss
      backward(weights, state, draw, batch, scale) gives a `Backward`

    TensorFlow puts the operations in the place of each call before it runs the step: they run on
    the caller's device.

    Args of the passes:
      weights: values of `model.trainable_variables`.
      state: values of `model.non_trainable_variables`.
      draw: int64 [], the microbatch's number in its batch, by which random layers draw.
      x: [n, ...], the inputs in the structure that the model takes.
      batch: (x, y, sample_weight) as Keras's adapters yield it.
      scale: float32 [], what the loss is multiplied by; None for nothing.

    Attributes:
      model: called as a pure function.
      training: whether layers train.
      jit_compile: XLA compiles a pass to one program, the same for any number of towers.
      traced: of each trace what its forward pass gives, which says what is None in it.
      has_same_rows: after a trace, of each weight whether all microbatches take the same rows.
    """

    model: keras.Model
    training: bool
    jit_compile: bool

    def __post_init__(self):
        self.traced: list[Forward] = []
        self.has_same_rows: list[bool] = []
        self.forward = self._function(self._forward)
        self.backward = self._function(self._backward)

    def values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """What the model's variables hold: the weights and the state that passes take."""
        both = self.model.trainable_variables, self.model.non_trainable_variables
        weights, state = ([tf.convert_to_tensor(v.value) for v in each] for each in both)
        return weights, state

    def _function(self, function: Callable) -> Callable:
        made = tf.function(function, autograph=False, jit_compile=self.jit_compile or None)
        made._omit_frequent_tracing_warning = True  # a batch may have several shapes
        return made

    def _backward(self, weights, state, draw, batch, scale) -> Backward:
        if not self.training:
            return Backward([], self._loss(weights, state, draw, batch))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            forward = self._loss(weights, state, draw, batch)
            scaled = forward.loss if scale is None else keras.ops.multiply(forward.loss, scale)
        return Backward(tape.gradient(scaled, list(weights)), forward)

    def _loss(self, weights, state, draw, batch) -> Forward:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)

        def loss(outputs):
            separable.check_outputs(outputs)
            return self.model._compute_loss(x, y, outputs, sample_weight, training=self.training)

        return self._forward(weights, state, draw, x, loss)

    def _forward(self, weights, state, draw, x, loss: Callable = lambda outputs: None) -> Forward:
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
        with refusals.no_hidden_state(model, scope), scope:
            with model_state.read_from(model, state):
                outputs = model(x, **mode)
            refusals.check_outputs(model, outputs, x)
            from_layers = list(scope.losses)
            value = loss(outputs)
        if self.training:
            refusals.check_gradients(model, weights, [outputs, from_layers, value])
            both = zip(model.trainable_variables, weights, strict=True)
            same = [_has_same_rows(v.path, weight, x) for v, weight in both]
            self.has_same_rows = [*map(all, zip(same, self.has_same_rows or same, strict=True))]

        def changed(variables: Sequence[keras.Variable], before: Sequence[tf.Tensor]) -> list:
            # Keras hands back the very tensor it was given for a variable that nothing assigned.
            after = [scope.get_current_value(variable) for variable in variables]
            return [None if new is old else new for old, new in zip(before, after, strict=True)]

        forward = Forward(
            loss=value,
            outputs=outputs,
            masks=[backend.get_keras_mask(output) for output in tree.flatten(outputs)],
            losses=from_layers,
            state=changed(model.non_trainable_variables, state),
            metrics=changed(model.metrics_variables, zeros),
        )
        self.traced.append(forward)
        return forward


def _has_same_rows(path: str, weight: tf.Tensor, x: object) -> bool:
    """Whether rows are taken of a weight, but not by what is in the examples, nor one for each."""
    inputs, waiting, by_place = {t.name for t in cutting.tensors(x)}, [weight], set()
    while waiting:
        for op in waiting.pop().consumers():
            waiting += op.outputs if op.type in ("Cast", "Identity") else []
            if op.type == "GatherV2":
                rows = op.inputs[1]
                if not (is_by_examples := bool(refusals.source(rows, inputs))):
                    while rows.op.type == "SelectV2":  # of keras.ops.take, for rows below 0
                        rows = rows.op.inputs[-1]
                    known = np.ravel(tf.get_static_value(rows))  # [None] where it is not
                    is_by_examples = len(known) > 1 == len(set(known))  # one for each of them
                by_place.add(not is_by_examples)
    if len(by_place) == 2:
        raise ValueError(f"{path} has rows of tokens and of places: make them two embeddings")
    return by_place == {True}


def join_outputs(forwards: Sequence[Forward]) -> object:
    """The outputs of all microbatches, one after the other, with their masks."""
    outputs = cutting.join([forward.outputs for forward in forwards])
    flat = tree.flatten(outputs)
    for output, *masks in zip(flat, *(forward.masks for forward in forwards), strict=True):
        if masks[0] is not None:
            backend.set_keras_mask(output, tf.concat(masks, axis=0))
    return outputs
