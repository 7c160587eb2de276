"""Evaluation: each example exactly once, and the same bits on any number of towers.

Sums travel; division happens once, at the end. The last batch is filled up to full size, and what
fills it has weight 0, which keeps it out of every sum. A batch is cut into microbatches, as in
training, so that what an operation sees, and with it the last bits of its result, does not depend
on the number of towers.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towers import devices, worker
from towers.support import checks, objective, shares, stateless, structures, tally
from towers.support import classes as class_labels
from towers.support import metrics as keras_metrics


class _Outputs(NamedTuple):
    losses: list[tf.Tensor]  # [n] for each term
    classes: list[tf.Tensor]  # of a classifier: predicted, int64 [n], and in_top5, bool [n]
    states: list[list[tf.Tensor]]  # of each metric, [microbatches, ...] per variable


class Evaluator:
    """Evaluates a model with given weights, the batch spread over towers.

    Like a Trainer, it turns off TensorFlow's rewriting of graphs: `devices.run_graphs_as_written`.
    """

    def __init__(
        self,
        model: keras.Model,
        weights: Sequence,
        loss: objective.Loss | objective.Objective,
        tower_devices: Sequence[str],
        num_microbatches: int = 1,
        test_time_flip: bool = False,
        workers: worker.Workers | None = None,
        metrics: Sequence | Mapping | None = None,
    ):
        """
        Args:
          model: called as a pure function with `training=False`.
          weights: variables in the order of `model.trainable_variables`: the model's own, or their
            moving averages.
          loss: as a Trainer's.
          tower_devices: one device per tower.
          num_microbatches: equal parts of a batch (of this worker's share of one), spread over the
            towers; towers beyond that number are idle.
          test_time_flip: evaluates the mean of the logits of each image and of its mirror image;
            for images [n, height, width, channels].
          workers: those that evaluate together, each its share of every batch; None for one.
          metrics: as a Trainer's.
        """
        devices.run_graphs_as_written()
        self._model = model
        self._weights = list(weights)
        self._objective = objective.of(loss)
        self._metrics = None if metrics is None else keras_metrics.Metrics(metrics)
        self._tower_devices = tuple(tower_devices)
        self._num_microbatches = num_microbatches
        self._test_time_flip = test_time_flip
        self._workers = workers or worker.SingleWorker()
        self._labels = checks.LabelsOfOneKind()
        self._terms: dict[str, float] = {}  # known once a batch was seen, like the next
        self._num_classes = 0
        self._batch_outputs = tf.function(self._build, autograph=False)
        # Traced once, and called for every microbatch of every tower, as in training.
        self._outputs_of_microbatch = tf.function(self._microbatch, autograph=False)

    def __call__(self, batches: Iterable) -> tally.Evaluation:
        """Evaluates every example of weight above 0.

        Args:
          batches: of (inputs [n, ...], labels) or (inputs, labels, sample_weight [n]); weights as
            for `Trainer.train_step`: at least 0, or a boolean mask. With several workers, this
            one's share of each batch, and the same number of batches on all.

        Raises:
          TypeError: a batch, or a part of it, is of the wrong type.
          ValueError: there is no example to evaluate, the model has no output for a label, a metric
            cannot be computed on towers, or a weight is missing, negative or not finite.
          WorkerError: another worker is gone or has ended.
        """
        seen, states = [], []
        for batch in checks.batches(batches):
            with tf.device(devices.HOST):
                inputs, labels, weight = checks.batch(batch, self._model)
                self._labels.check(labels)
                n = structures.num_examples(labels)
                weight = np.ones(n) if weight is None else checks.weights(weight, n, np.float64)
                labels = checks.without_weight_0(labels, weight)
                with checks.explained():
                    outputs = self._outputs(inputs, labels, weight)
                classes = np.zeros((n, 0), np.int64)
                if self._metrics:
                    self._metrics.check_weights(weight)
                if outputs.classes:
                    of_examples = labels.numpy().reshape(n)
                    class_labels.check(of_examples[weight > 0], self._num_classes)
                    classes = np.stack([of_examples, *outputs.classes], axis=1).astype(np.int64)
                seen.append(tally.Seen(weight, np.stack(outputs.losses, axis=1), classes))
                states.append(outputs.states)
        if not seen:
            raise ValueError("there is no example to evaluate")
        sizes = np.array([len(batch.weight) for batch in seen])
        columns = [np.concatenate(values) for values in zip(*seen, strict=True)]
        gathered = self._workers.all_gather("an evaluation", [sizes, *columns])
        of_workers = [tally.Seen(*own) for _, *own in gathered]
        # As they were before the batches were cut: sums do not depend on the number of workers.
        whole = tally.uncut(of_workers, [own[0] for own in gathered])
        if not any(batch.weight.any() for batch in whole):
            raise ValueError("there is no example to evaluate")
        accuracies = tuple(own.accuracy() for own in of_workers) if self._num_classes else ()
        found = tally.add_up(whole, self._terms, self._num_classes, accuracies)
        if self._metrics is None:
            return found
        flat = [tf.nest.flatten(of_batch) for of_batch in states]
        # [microbatches of this worker, batches, ...] for each variable of each metric
        own = [np.stack(values, axis=1) for values in zip(*flat, strict=True)]
        of_metrics = {}
        if own:
            gathered = self._workers.all_gather("the metrics of an evaluation", own)
            of_metrics = self._metrics.results(gathered)
        return dataclasses.replace(found, metrics=of_metrics)

    def _outputs(self, inputs, labels, weight: np.ndarray) -> _Outputs:
        """What the model gives for one batch, as NumPy arrays."""
        n = len(weight)
        filling = -n % self._num_microbatches  # a user's last batch may not divide evenly
        if filling:
            inputs = structures.filled_up(inputs, filling)
            labels = structures.filled_up(labels, filling)
        given = tf.constant(np.concatenate([weight, np.zeros(filling)]), tf.float32)
        outputs = self._batch_outputs(inputs, labels, given if self._metrics else None)
        outputs = tf.nest.map_structure(lambda values: values.numpy(), outputs)
        return outputs._replace(
            losses=[values[:n] for values in outputs.losses],
            classes=[values[:n] for values in outputs.classes],
        )

    def _build(self, inputs, labels, weight=None) -> _Outputs:
        parts = self._num_microbatches
        with tf.device(devices.HOST), tf.name_scope("split_batch"):
            cut = (  # each [microbatch, ...]
                structures.split(inputs, parts),
                structures.split(labels, parts),
                [None] * parts if weight is None else tf.split(weight, parts),
            )
            microbatches = list(zip(*cut, strict=True))
        results = []
        towers = zip(
            self._tower_devices, shares.evenly(parts, len(self._tower_devices)), strict=True
        )
        for index, (device, own) in enumerate(towers):
            with tf.device(device), tf.name_scope(f"tower_{index}"):
                results += self._tower([microbatches[m] for m in own])
        with tf.device(devices.HOST), tf.name_scope("gather"):
            losses, classes, states = zip(*results, strict=True)
            return _Outputs(
                [tf.concat(values, axis=0) for values in zip(*losses, strict=True)],
                [tf.concat(values, axis=0) for values in zip(*classes, strict=True)],
                tf.nest.map_structure(lambda *values: tf.stack(values), *states),
            )

    def _tower(self, microbatches) -> list[_Outputs]:
        weights = [tf.identity(weight) for weight in self._weights]
        state = [tf.identity(variable.value) for variable in self._model.non_trainable_variables]
        return [self._outputs_of_microbatch(weights, state, *part) for part in microbatches]

    def _microbatch(self, weights, state, inputs, labels, weight) -> _Outputs:
        outputs, _ = stateless.call(self._model, weights, state, inputs, training=False)
        if self._test_time_flip:
            mirrored = inputs[:, :, ::-1]
            others, _ = stateless.call(self._model, weights, state, mirrored, training=False)
            wide = tf.float64 if outputs.dtype == tf.float64 else tf.float32
            outputs = (tf.cast(outputs, wide) + tf.cast(others, wide)) / 2.0
        of_outputs = self._objective(self._model, labels, outputs)
        self._terms = {name: term.weight for name, term in of_outputs.items()}
        classes, states = [], []
        if self._metrics is not None:
            states = self._metrics.states(self._model, labels, outputs, weight)
        elif self._objective.is_of_classes(labels, outputs):
            self._num_classes = outputs.shape[-1]
            of_examples = tf.cast(labels if labels.shape.rank == 1 else labels[:, 0], tf.int64)
            five = min(5, self._num_classes)
            in_top5 = tf.math.in_top_k(of_examples, tf.cast(outputs, tf.float32), five)
            classes = [tf.argmax(outputs, axis=-1), in_top5]
        return _Outputs([term.of_each for term in of_outputs.values()], classes, states)
