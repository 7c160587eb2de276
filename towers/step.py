"""The training step: one graph with every tower in it.

    split_batch -> tower_0 ... tower_{k-1} -> average_gradients -> apply -> moving_averages

With several workers each has such a graph, and within average_gradients they exchange the sums of
their towers.

The loop over towers below runs once, while the graph is built. The graph it leaves has k towers
that depend on nothing but their own inputs, and TensorFlow runs them side by side. Nothing is
updated before every loss and every reduced gradient is known to be finite.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from towers import (  # isort: skip
    devices, gradients, model_state, moving_averages, not_finite, prefetch, tower, train_state,
    worker,
)  # fmt: skip
from towers.support import compiled, loss_scale, shares, structures


class StepResult(NamedTuple):
    """What one step returns; M is num_microbatches.

    Attributes:
      losses: loss term to its value in each microbatch, [M].
      correct: int32 [M], examples classified correctly before the update; None where the model is
        not a classifier, with integer labels [n] or [n, 1] and outputs [n, num_classes].
      weights: float32 [M], the weight of each microbatch's examples; None if all weigh the same.
      gradients: the reduced gradients, one per weight, before clipping; never scaled.
    """

    losses: dict[str, tf.Tensor]
    correct: tf.Tensor | None
    weights: tf.Tensor | None
    gradients: list[gradients.Gradient]


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """The parts and policies of a training step.

    Attributes:
      state: what the step updates.
      tower_program: what each tower computes.
      tower_devices: one device per tower of this worker.
      workers: those that make a step together.
      shares: which microbatches each tower computes.
      gradient_reduction: one of gradients.REDUCTIONS.
      batch_norm_statistics: one of model_state.POLICIES.
      moving_average_decay: of the weights; not used where the state keeps no averages.
      parameter_device: where the state is, but for its counters, and gradients are averaged.
      compiles_update: XLA compiles the average and the update, where all gradients are dense.
    """

    state: train_state.TrainState
    tower_program: tower.TowerProgram
    tower_devices: tuple[str, ...]
    workers: worker.Workers
    shares: shares.Shares
    gradient_reduction: str
    batch_norm_statistics: str
    moving_average_decay: float
    parameter_device: str
    compiles_update: bool


def train_step(
    program: StepProgram,
    inputs: tf.Tensor,
    labels: tf.Tensor,
    learning_rate: tf.Tensor | None,
    sample_weight: tf.Tensor | None = None,
    parts: prefetch.Parts | None = None,
) -> StepResult:
    """Makes one update. To be wrapped in `tf.function`.

    Args:
      program: parts and policies.
      inputs: [worker_batch, ...], this worker's share of the global batch.
      labels: likewise.
      learning_rate: float32 [], of this update; None leaves it to the optimizer.
      sample_weight: float32 [worker_batch], at least 0; None weighs all examples the same.
      parts: each tower's inputs and labels where they are on its device already; None cuts the
        batch within the step.

    Raises:
      InvalidArgumentError: when it runs, from `not_finite.check`; the state is then unchanged.
    """
    state = program.state
    results = run_towers(program, inputs, labels, sample_weight, parts)
    with tf.device(program.parameter_device):
        with tf.name_scope("average_gradients"):
            results = program.workers.join(results, program.shares)
            run = compiled.runner(program.compiles_update, results)
            # Not within the program: XLA would add up each tower's weights first.
            weight = None if sample_weight is None else tf.reduce_sum(_microbatch_weights(results))
            reduced, all_finite = run(_average, program, results, weight)
            shown = loss_scale.taken_off(state.optimizer, reduced)  # before the scale may change
            checked = not_finite.check(all_finite)
            updates = tf.convert_to_tensor(state.step)
        with tf.control_dependencies([checked]):
            run(_update, program, results, reduced, learning_rate, updates)
            with tf.device(devices.HOST), tf.name_scope("count"):
                state.step.assign_add(1)
                state.examples_seen.assign_add(program.shares.global_batch_size)
        with tf.name_scope("result"):
            return _result(results, shown)


def _average(
    program: StepProgram, results: list[tower.TowerResult], total_weight: tf.Tensor | None
) -> tuple[list[gradients.Gradient], tf.Tensor]:
    """The reduced gradients, and whether all is finite."""
    sums, shares = [result.sums for result in results], program.shares
    reduced = gradients.reduce_towers(
        sums, shares.num_microbatches, program.gradient_reduction, total_weight
    )
    return reduced, not_finite.all_finite(results, reduced, program.state.optimizer)


def _update(
    program: StepProgram,
    results: list[tower.TowerResult],
    reduced: list[gradients.Gradient],
    learning_rate: tf.Tensor | None,
    updates: tf.Tensor,  # int64 [], before this one
) -> None:
    state, trained = program.state, program.state.model.trainable_variables
    with tf.name_scope("apply"):
        if learning_rate is not None:
            state.optimizer.learning_rate.assign(learning_rate)
        state.optimizer.apply(reduced, trained)
    with tf.name_scope("batch_norm_statistics"):
        model_state.after_step(
            state.model,
            state.statistics_of_each,
            [result.model_states for result in results],
            program.batch_norm_statistics,
        )
    if state.averages:
        with tf.name_scope("moving_averages"):
            weights = [weight.value for weight in trained]
            moving_averages.update(state.averages, weights, program.moving_average_decay, updates)


def run_towers(
    program: StepProgram,
    inputs: tf.Tensor,
    labels: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    parts: prefetch.Parts | None = None,
) -> list[tower.TowerResult]:
    """Builds every tower of this worker on its device, each on its own part of the batch."""
    model, num_microbatches = program.state.model, program.shares.num_microbatches
    sizes = program.shares.tower_batch_sizes
    with tf.device(devices.HOST), tf.name_scope("split_batch"):
        # Each [tower_batch, ...].
        input_parts, label_parts = (
            zip(*parts, strict=True)
            if parts
            else (structures.split(inputs, sizes), structures.split(labels, sizes))
        )
        weight_parts = [None] * len(sizes)
        if sample_weight is not None:
            weight_parts = structures.split(sample_weight, sizes)
        first_draw = program.state.step * num_microbatches
    with tf.device(program.parameter_device), tf.name_scope("weights"):
        weights = [tf.convert_to_tensor(weight.value) for weight in model.trainable_variables]
        model_states = model_state.before_step(  # [microbatch][variable]
            model, program.state.statistics_of_each, num_microbatches
        )
        scale = loss_scale.of(program.state.optimizer)
    results = []
    towers = zip(program.tower_devices, program.shares.of_towers, strict=True)
    for index, (device, own) in enumerate(towers):
        with tf.device(device), tf.name_scope(f"tower_{index}"):
            results.append(
                tower.compute(
                    program.tower_program,
                    [tf.identity(weight) for weight in weights],  # the tower's own copy
                    [[tf.identity(value) for value in model_states[m]] for m in own],
                    input_parts[index],
                    label_parts[index],
                    weight_parts[index],
                    first_draw,
                    None if scale is None else tf.identity(scale),
                    own,
                    num_microbatches,
                )
            )
    return results


def _result(results: Sequence[tower.TowerResult], shown: list[gradients.Gradient]) -> StepResult:
    """The towers' losses and counts side by side, in the order of the microbatches."""
    correct = [result.correct for result in results]
    return StepResult(
        losses={
            term: tf.concat([result.losses[term] for result in results], axis=0)  # [M]
            for term in results[0].losses
        },
        correct=None if correct[0] is None else tf.concat(correct, axis=0),  # [M]
        weights=None if results[0].weights is None else _microbatch_weights(results),
        gradients=shown,
    )


def _microbatch_weights(results: Sequence[tower.TowerResult]) -> tf.Tensor:
    return tf.concat([result.weights for result in results], axis=0)  # [M]
