"""One tower: the forward and backward graph of one device, over its own microbatches."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import ops

from towers import gradients, losses, model_state
from towers.support import bias_gradients, checks, classes, compiled, stateless, structures


@dataclasses.dataclass(frozen=True)
class TowerProgram:
    """What every tower computes; the same in all of them.

    Attributes:
      model: called as a pure function; its variables are never read or written by a tower.
      loss: (labels, outputs) to the loss of each example, floating [n].
      decayed: name of the layer to the index of its weight in `model.trainable_variables`.
      weight_decay: coefficient of the weight-decay terms; >= 0.
      jit_compile: XLA compiles `microbatch`: what is compiled does not depend on towers.
      at_once: most microbatches of a tower whose activations are in memory together; None for all.
      compiles_sums: XLA compiles the sums over a tower's microbatches, with the same bits.
    """

    model: keras.Model
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    decayed: dict[str, int]
    weight_decay: float
    jit_compile: bool
    at_once: int | None = None
    compiles_sums: bool = False

    @functools.cached_property
    def microbatch(self) -> Callable[..., "_Microbatch"]:
        """The forward and backward pass of a microbatch: traced once, called for each of them.

        TensorFlow puts the operations in the place of each call before it runs the step: they run
        on the caller's device, and side by side, as if they were written out for each one.
        """
        one_pass = bias_gradients.summed_in_float32()(_microbatch)
        one_pass = functools.partial(one_pass, self)
        return tf.function(one_pass, autograph=False, jit_compile=self.jit_compile or None)


class TowerResult(NamedTuple):
    """What one tower hands over.

    Attributes:
      sums: of the gradients, from `gradients.sum_over_share`; where examples are weighted, each
        microbatch's are multiplied by its weight first.
      losses: loss term to its value in each microbatch, [microbatches of the tower].
      correct: int32 [microbatches of the tower], examples whose label has the largest output;
        where several outputs are largest the first counts, as in argmax. An example of weight 0
        does not count. None where the model is not a classifier.
      weights: float32 [microbatches of the tower], the weight of each one's examples together;
        None where examples are not weighted.
      model_states: per variable of the model that is not trained, its value after each
        microbatch, [microbatches of the tower, ...]; None where the model leaves it unchanged, as
        in a frozen layer.
    """

    sums: gradients.Sums
    losses: dict[str, tf.Tensor]
    correct: tf.Tensor | None
    weights: tf.Tensor | None
    model_states: list[tf.Tensor | None]


class _Microbatch(NamedTuple):
    gradients: list[gradients.Gradient]
    losses: dict[str, tf.Tensor]
    correct: tf.Tensor | None
    weight: tf.Tensor | None
    model_state: list[tf.Tensor | None]
    done: tf.Tensor | None  # any value, there once the gradients are; None if nothing waits for it


def compute(
    program: TowerProgram,
    weights: Sequence[tf.Tensor],
    model_states: Sequence[Sequence[tf.Tensor]],
    inputs: tf.Tensor,
    labels: tf.Tensor,
    sample_weight: tf.Tensor | None,
    first_draw: tf.Tensor,
    loss_scale: tf.Tensor | None,
    own: range = range(1),
    num_microbatches: int = 1,
) -> TowerResult:
    """Runs one tower. Called under `tf.device(the tower's device)`.

    Args:
      program: what to compute.
      weights: the tower's own copy of the weights; gradients are taken with respect to it.
      model_states: `model_states[m][v]`, variable v of the model that is not trained (batch-norm
        statistics and the like) as microbatch m finds it.
      inputs: [tower_batch, ...], cut into len(own) equal microbatches in order.
      labels: likewise.
      sample_weight: float32 [tower_batch], at least 0; None weighs all examples the same.
      first_draw: int64 [], the number of the step's first microbatch in the run. Random layers such
        as dropout draw by a microbatch's number, so that a draw does not depend on towers.
      loss_scale: float32 [], multiplies the loss before differentiation (float16); None for 1.
      own: the tower's microbatches; the loop over them runs while the graph is built.
      num_microbatches: of the global batch.
    """
    microbatches = zip(
        model_states,
        structures.split(inputs, len(own)),  # each [microbatch, ...]
        structures.split(labels, len(own)),
        [None] * len(own) if sample_weight is None else structures.split(sample_weight, len(own)),
        [first_draw + m for m in own],
        strict=True,
    )
    results = []
    for state, microbatch, *others in microbatches:
        with tf.name_scope("microbatch"):
            if program.at_once and len(results) >= program.at_once:
                # Inputs wait for a result: inlining drops a control edge between two calls.
                with tf.control_dependencies([tf.identity(results[-program.at_once].done)]):
                    microbatch = tf.nest.map_structure(tf.identity, microbatch)
            results.append(program.microbatch(weights, loss_scale, state, microbatch, *others))
    run = compiled.runner(program.compiles_sums and len(own) > 1, results)
    return run(_sums, results, own, num_microbatches)


def _sums(results: list[_Microbatch], own: range, num_microbatches: int) -> TowerResult:
    correct, weights = ([of.correct for of in results], [of.weight for of in results])
    return TowerResult(
        sums=gradients.sum_over_share(
            [result.gradients for result in results], own, num_microbatches
        ),
        losses={
            term: tf.stack([result.losses[term] for result in results])
            for term in results[0].losses
        },
        correct=None if correct[0] is None else tf.stack(correct),
        weights=None if weights[0] is None else tf.stack(weights),
        model_states=[
            None if parts[0] is None else tf.stack(parts)
            for parts in zip(*(result.model_state for result in results), strict=True)
        ],
    )


def _microbatch(
    program, weights, loss_scale, state, inputs, labels, sample_weight, draw_index
) -> _Microbatch:
    """One forward and backward pass; arguments as in `compute`, for one microbatch."""
    before = model_state.with_draw_index(program.model, state, draw_index)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        outputs, after, model_losses = stateless.call(
            program.model, weights, before, inputs, training=True, return_losses=True
        )
        terms = loss_terms(program, weights, labels, outputs, model_losses, sample_weight)
        # Keras's product widens as it must: a scale of 65,536 does not fit into float16.
        scaled = terms["total"] if loss_scale is None else ops.multiply(terms["total"], loss_scale)
    of_loss = tape.gradient(scaled, list(weights))
    weight = None if sample_weight is None else tf.reduce_sum(sample_weight)
    of_loss = of_loss if weight is None else gradients.scale(of_loss, weight)
    with tf.control_dependencies([gradient for gradient in of_loss if gradient is not None]):
        done = tf.identity(terms["total"]) if program.at_once else None
    return _Microbatch(
        gradients=of_loss,
        losses=terms,
        correct=classes.count_correct(labels, outputs, sample_weight),
        weight=weight,
        # Keras hands back the very tensor it was given for a variable that no layer updated.
        model_state=[None if new is old else new for old, new in zip(before, after, strict=True)],
        done=done,
    )


def loss_terms(
    program: TowerProgram,
    weights: Sequence[tf.Tensor],
    labels: tf.Tensor,
    outputs: tf.Tensor,
    model_losses: Sequence[tf.Tensor],
    sample_weight: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """The loss of one microbatch: its terms by name, and `total`, their sum.

    That of the loss has its name, such as `cross_entropy`, and is the mean over the microbatch,
    weighted where there are weights. `weight_decay/<layer>` is described in losses.py; `model` is
    what the Keras model adds itself (its regularizers), if any.
    """
    of_each = program.loss(labels, outputs)
    terms = {losses.name_of(program.loss): losses.mean(of_each, sample_weight)}
    if program.weight_decay:
        decayed = {layer: weights[index] for layer, index in program.decayed.items()}
        terms |= losses.weight_decay_terms(decayed, program.weight_decay)
    if model_losses:
        terms["model"] = losses.total_loss(checks.scalars(program.model, model_losses))
    return terms | {"total": losses.total_loss(list(terms.values()))}
