"""The Trainer: a classifier or the like, of one input and one output, trained on towers."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from towers import (  # isort: skip
    devices, evaluation, gradients, losses, model_state, not_finite, prefetch, step, tower,
    train_state, worker,
)  # fmt: skip
from towers.support import checks, shares, structures, tally, weight_filters

from tensorflow.python.framework import config  # isort: skip


class Trainer:
    """One set of weights, trained by several towers.

    The model given to it is updated in place and holds the last weights. With moving averages,
    `evaluate` uses these.

    Making one turns off TensorFlow's rewriting of graphs (`devices.run_graphs_as_written`).

    Attributes:
      state: weights, optimizer slots, moving averages and counters.
      tower_devices: one device per tower of this worker.
      workers: those that make each step together.
      global_batch_size: examples of one step, over all workers.
      num_microbatches: equal parts of the global batch, at least one for each tower.
      shares: which of them each tower computes, and which examples of a batch this worker has.
      learning_rate: (examples seen) to the next update's rate; None leaves it to the optimizer.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = losses.cross_entropy,
        evaluation_loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        towers: int | Sequence[str] | None = None,
        workers: worker.Workers | None = None,
        global_batch_size: int,
        num_microbatches: int = 0,
        learning_rate: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        weight_filter: str = "kernels",
        gradient_reduction: str = "mean",
        batch_norm_statistics: str = "mean",
        moving_average_decay: float = 0.0,
        jit_compile: bool = False,
        accumulate_gradients: bool = False,
        parameter_device: str | None = None,
    ):
        """
        Args:
          model: a built Keras model, its variables on `parameter_device`.
          optimizer: any Keras optimizer. Its own clipping comes after the reduction.
          loss: (labels [n, ...], outputs [n, ...]) to one loss per example, floating [n].
          evaluation_loss: what an evaluation reports as its loss; None for `loss`.
          towers: of this worker: how many, as for `devices.choose`, or the names of their devices,
            as it returns them. Other workers may have another number.
          workers: a started `collectives.MultiWorker`; None where there is one worker. Before
            the first step each must have the chief's state: `broadcast_state`.
          global_batch_size: examples of one step; a multiple of `num_microbatches`.
          num_microbatches: at least the number of towers of all workers; 0 for the largest number
            up to 8 that divides the batch. With as many, any number of towers gives the same bits.
          learning_rate: such as a `schedules.LearningRate`.
          weight_decay: coefficient of the weight-decay terms of the loss; 0 for none.
          weight_filter: key of `weight_filters.FILTERS`, which weights decay.
          gradient_reduction: one of `gradients.REDUCTIONS`.
          batch_norm_statistics: one of `model_state.POLICIES`.
          moving_average_decay: in [0, 1); 0 keeps no averages.
          jit_compile: XLA compiles each microbatch and, with the parameters on a GPU, the update.
          accumulate_gradients: gradient accumulation: a tower computes its microbatches one after
            the other; otherwise one for each core at a time, or on GPUs all. The bits are the same.
          parameter_device: of state and reduction: None for the CPU, or with one worker "/GPU:0".

        Raises:
          ValueError: sizes do not divide, a policy is none, or the model has what a Trainer would
            ignore, such as `compile`.
        """
        self.tower_devices = devices.of_towers(towers)
        self.workers = workers = workers or worker.SingleWorker()
        parameter_device = parameter_device or devices.HOST
        num_towers = len(self.tower_devices)
        self.shares = shares.agreed(global_batch_size, num_microbatches, num_towers, workers)
        self.global_batch_size = global_batch_size
        self.num_microbatches = self.shares.num_microbatches
        checks.choice("gradient_reduction", gradient_reduction, gradients.REDUCTIONS)
        checks.choice("batch_norm_statistics", batch_norm_statistics, model_state.POLICIES)
        checks.choice("weight_filter", weight_filter, weight_filters.FILTERS)
        checks.model(model)
        if jit_compile and config.is_op_determinism_enabled():
            checks.compiled_deterministically(model)
        devices.run_graphs_as_written()
        self.learning_rate = learning_rate
        self.state = train_state.new(
            model,
            optimizer,
            keep_averages=moving_average_decay > 0,
            statistics_of_each=self.num_microbatches if batch_norm_statistics == "each" else 0,
            parameter_device=parameter_device,
        )
        are_there = checks.tell_of_other_devices(self.state.parts(), parameter_device, jit_compile)
        compiles_update = are_there and jit_compile and parameter_device != devices.HOST
        self.program = step.StepProgram(
            state=self.state,
            tower_program=tower.TowerProgram(
                model=model,
                loss=loss,
                decayed=weight_filters.places(model, weight_filters.FILTERS[weight_filter](model)),
                weight_decay=weight_decay,
                jit_compile=jit_compile,
                at_once=1 if accumulate_gradients else shares.at_once(self.tower_devices),
                compiles_sums=compiles_update and not accumulate_gradients,
            ),
            tower_devices=self.tower_devices,
            workers=workers,
            shares=self.shares,
            gradient_reduction=gradient_reduction,
            batch_norm_statistics=batch_norm_statistics,
            moving_average_decay=moving_average_decay,
            parameter_device=parameter_device,
            compiles_update=compiles_update,
        )
        self._train_step = structures.Traced(self._build_step)
        self._evaluator = evaluation.Evaluator(
            model,
            self.state.evaluated_weights(),
            evaluation_loss or loss,
            self.tower_devices,
            len(self.shares.microbatches()),
            workers=workers,
        )

    def _build_step(
        self, learning_rate, inputs, labels, sample_weight=None, parts=None
    ) -> step.StepResult:
        return step.train_step(self.program, inputs, labels, learning_rate, sample_weight, parts)

    def train_step(
        self,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        *,
        parts: prefetch.Parts | None = None,
    ) -> step.StepResult:
        """Makes one update.

        Args:
          inputs: [n, ...], the global batch, or of several workers this one's `shares.examples`.
          labels: [n, ...], as the loss takes them.
          sample_weight: [n], at least 0; booleans count as 1 and 0. The loss is then
            the weighted mean, `sum(w * l) / sum(w)` over the global batch, so an example of weight
            0 that fills a batch up leaves no trace, except that batch norm sees it.
          parts: of the same batch, from `prefetch.to_towers`.

        Raises:
          ValueError: the batch is not full: an uneven share would weight examples unequally; or a
            weight is missing, negative or not finite.
          NotFiniteError: a loss or a gradient is not finite; nothing was updated.
          WorkerError, UserError: another worker is gone; XLA cannot compile the step.
        """
        with tf.device(devices.HOST):  # else operations go to the first GPU
            return self._update(*self._checked(inputs, labels, sample_weight), parts)

    def _checked(self, inputs, labels, sample_weight) -> tuple:
        inputs, labels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels)
        own = len(self.shares.examples)
        whole = f"global_batch_size={self.global_batch_size}"
        size = f"{own} of {whole} on this worker" if self.workers.count > 1 else whole
        for examples in (inputs.shape[0], labels.shape[0]):
            if examples != own:
                raise ValueError(
                    f"a batch of {examples} examples: every training batch must have {size}; fill "
                    "it up with examples of sample_weight 0"
                )
        if sample_weight is not None:
            weight = checks.weights(sample_weight, own, np.float32, size)
            sample_weight = tf.convert_to_tensor(weight)
        return inputs, labels, sample_weight

    def _update(self, *batch) -> step.StepResult:
        try:
            on_device = tf.device(self.program.parameter_device)  # for what the graph returns
            with self.workers.watched(), checks.explained(), on_device:
                return self._train_step(self._rate_of_next_step(), *batch)
        except tf.errors.InvalidArgumentError as error:
            if not not_finite.is_from_check(error):
                raise
        # Nothing was updated: the towers can be run again, to look at them one by one.
        look = tf.function(functools.partial(step.run_towers, self.program), autograph=False)
        own = not_finite.find(look(*batch), self.state.model.trainable_variables)
        found = enumerate(self.workers.exchange("what is not finite", own))
        known = [
            (self.shares.first_tower(worker) + index, what)
            for worker, (index, what) in found
            if index is not None
        ]
        tower_index, what = known[0] if known else own
        raise not_finite.NotFiniteError(int(self.state.step) + 1, tower_index, what)

    def _rate_of_next_step(self) -> tf.Tensor | None:
        if self.learning_rate is None:
            return None
        # Not as a Python number: TensorFlow 2.21 keeps each one it makes a tensor of, forever
        # (tensorflow#68196), and a rate that falls with every step would be a leak.
        rate = np.float32(self.learning_rate(int(self.state.examples_seen)))
        return tf.constant(rate)

    def fit(self, batches: Iterable, steps: int | None = None) -> list[float]:
        """Trains on batches; stops after `steps`, or after the last batch.

        Args:
          batches: of (inputs, labels) or (inputs, labels, sample_weight), as `train_step` takes.
          steps: at most this many; None for all batches.

        Returns:
          The mean total loss over the global batch at each step, before its update.

        Raises:
          ValueError, NotFiniteError, WorkerError, UserError: as `train_step`.
        """
        history = []
        for batch in itertools.islice(batches, steps):
            with tf.device(devices.HOST):
                result = self.train_step(*batch)
                history.append(float(losses.mean(result.losses["total"], result.weights)))
        return history

    def evaluate(self, batches: Iterable) -> tally.Evaluation:
        """Evaluates a classifier by the moving averages, where they are kept, else the weights.

        Args:
          batches: as for an `evaluation.Evaluator`.

        Raises:
          ValueError, WorkerError: as an `evaluation.Evaluator`.
        """
        return self._evaluator(batches)

    def step_graph(
        self,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        *,
        parts: prefetch.Parts | None = None,
    ) -> tf.Graph:
        """The graph of the step that `train_step` makes of such a batch, for TensorBoard."""
        with tf.device(devices.HOST):
            given = self._rate_of_next_step(), *self._checked(inputs, labels, sample_weight), parts
            return self._train_step.function.get_concrete_function(*given).graph

    def broadcast_state(self) -> None:
        """Gives every worker the chief's state; all call it together."""
        variables = [v for part in self.state.parts().values() for v in part]
        self.workers.broadcast("the chief's state", variables)
