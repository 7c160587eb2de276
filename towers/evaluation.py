"""Evaluation: each example exactly once, and the same bits on any number of towers.

Sums travel; division happens once, at the end. The last batch is filled up to full size, and what
fills it has weight 0, which keeps it out of every sum. A batch is cut into microbatches, as in
training, so that what an operation sees, and with it the last bits of its result, does not depend
on towers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towers import devices, tower, worker
from towers.support import checks, per_example, tally


class _Outputs(NamedTuple):
    losses: tf.Tensor  # [n], one per example
    predicted: tf.Tensor  # int64 [n]
    in_top5: tf.Tensor  # bool [n]


class Evaluator:
    """Evaluates a classifier with given weights, the batch spread over towers.

    As a Trainer, it turns TensorFlow's rewriting of graphs off: `devices.run_graphs_as_written`.
    """

    def __init__(
        self,
        model: keras.Model,
        weights: Sequence,
        loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        tower_devices: Sequence[str],
        num_microbatches: int = 1,
        test_time_flip: bool = False,
        workers: worker.Workers | None = None,
    ):
        """
        Args:
          model: called as a pure function with `training=False`.
          weights: variables in the order of `model.trainable_variables`: the model's own, or their
            moving averages.
          loss_fn: (labels, logits [n, num_classes]) to one loss per example, as a Trainer's.
          tower_devices: one device per tower.
          num_microbatches: equal parts of a batch (of this worker's share of one), spread over the
            towers; need not be a multiple of their number, and more towers than parts are idle.
          test_time_flip: evaluates the mean of the logits of each image and of its mirror image;
            for images [n, height, width, channels].
          workers: that evaluate together, each its own share of every batch; None for one.
        """
        devices.run_graphs_as_written()
        self._model = model
        self._weights = list(weights)
        self._loss_fn = per_example.of(loss_fn)
        self._tower_devices = tuple(tower_devices)
        self._num_microbatches = num_microbatches
        self._test_time_flip = test_time_flip
        self._workers = workers or worker.SingleWorker()
        self._batch_outputs = tf.function(self._build, autograph=False)
        # Traced once, and called for every microbatch of every tower, as in training.
        self._outputs_of_microbatch = tf.function(self._microbatch, autograph=False)

    def __call__(self, batches: Iterable) -> tally.Evaluation:
        """Evaluates every example of weight above 0.

        Args:
          batches: of (images [n, ...], labels) or (images, labels, sample_weight [n]); labels are
            integer [n] or [n, 1], weights as for `Trainer.train_step`: at least 0, a mask of truth
            values among them. With several workers, of this one's share of each batch, and as many
            on all.

        Raises:
          TypeError: a batch, or a part of it, is of the wrong type.
          ValueError: there is no example to evaluate, the model is no classifier or has no output
            for a label, or a weight is missing, negative or not finite.
          WorkerError: another worker is gone or has ended.
        """
        seen, num_classes = [], 0
        for batch in checks.batches(batches):
            images, labels, weight = checks.batch(batch)
            n = labels.shape[0]
            weight = np.ones(n) if weight is None else checks.weights(weight, n, np.float64)
            labels = checks.without_weight_0(labels, weight)
            with checks.labels_in_range():
                outputs, num_classes = self._outputs(images, labels)
            of_examples = labels.numpy().reshape(n)
            _check_labels(of_examples[weight > 0], num_classes)
            seen.append(tally.Seen(of_examples, weight, *outputs))
        if not seen:
            raise ValueError("there is no example to evaluate")
        ends = np.cumsum([len(batch.labels) for batch in seen])[:-1]
        columns = [np.concatenate(values) for values in zip(*seen, strict=True)]
        of_workers = [tally.Seen(*own) for own in self._workers.all_gather(columns)]
        # As they were before the batches were cut: sums do not depend on the number of workers.
        in_batches = zip(*(own.split(ends) for own in of_workers), strict=True)
        whole = [tally.Seen.joined(shares) for shares in in_batches]
        if not any(batch.weight.any() for batch in whole):
            raise ValueError("there is no example to evaluate")
        return tally.add_up(whole, num_classes, tuple(own.accuracy() for own in of_workers))

    def _outputs(self, images, labels) -> tuple[_Outputs, int]:
        """One batch's outputs as NumPy arrays, [n], and the number of classes."""
        n = labels.shape[0]
        filling = -n % self._num_microbatches  # a user's last batch may not divide
        if filling:
            images = tf.concat([images, tf.repeat(images[:1], filling, axis=0)], axis=0)
            labels = tf.concat([labels, tf.repeat(labels[:1], filling, axis=0)], axis=0)
        outputs, num_classes = self._batch_outputs(images, labels)
        return _Outputs(*(values.numpy()[:n] for values in outputs)), int(num_classes)

    def _build(self, images, labels):
        num_towers, parts = len(self._tower_devices), self._num_microbatches
        with tf.device(devices.PARAMETER_DEVICE), tf.name_scope("split_batch"):
            image_parts = tf.split(images, parts)  # each [microbatch, ...]
            label_parts = tf.split(labels, parts)
        results = []
        for index, device in enumerate(self._tower_devices):
            # In order, and as evenly as they go: with fewer parts than towers, some have none.
            own = range(-(-index * parts // num_towers), -(-(index + 1) * parts // num_towers))
            with tf.device(device), tf.name_scope(f"tower_{index}"):
                results += self._tower([(image_parts[m], label_parts[m]) for m in own])
        num_classes = results[0][1]
        with tf.device(devices.PARAMETER_DEVICE), tf.name_scope("gather"):
            outputs = zip(*(result[0] for result in results), strict=True)
            return _Outputs(*(tf.concat(values, axis=0) for values in outputs)), num_classes

    def _tower(self, microbatches) -> list[tuple[_Outputs, int]]:
        weights = [tf.identity(weight) for weight in self._weights]
        state = [tf.identity(variable.value) for variable in self._model.non_trainable_variables]
        return [self._outputs_of_microbatch(weights, state, *part) for part in microbatches]

    def _microbatch(self, weights, state, images, labels) -> tuple[_Outputs, int]:
        logits, _ = self._model.stateless_call(weights, state, images, training=False)
        if not tower.is_classifier(labels, logits):
            raise ValueError(
                "only a classifier can be evaluated, with integer labels [n] or [n, 1] and outputs "
                f"[n, num_classes] of two classes or more: labels are {checks.described(labels)}, "
                f"outputs {checks.described(logits)}"
            )
        if self._test_time_flip:
            mirrored = images[:, :, ::-1]
            others, _ = self._model.stateless_call(weights, state, mirrored, training=False)
            wide = tf.float64 if logits.dtype == tf.float64 else tf.float32
            logits = (tf.cast(logits, wide) + tf.cast(others, wide)) / 2.0
        num_classes = logits.shape[-1]
        of_examples = tf.cast(labels if labels.shape.rank == 1 else labels[:, 0], tf.int64)
        outputs = _Outputs(
            losses=self._loss_fn(labels, logits),
            predicted=tf.argmax(logits, axis=-1),
            in_top5=tf.math.in_top_k(of_examples, tf.cast(logits, tf.float32), min(5, num_classes)),
        )
        return outputs, num_classes


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()}: the model has {num_classes} outputs, "
            f"for labels from 0 to {num_classes - 1}"
        )
