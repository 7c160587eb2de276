"""Evaluation: each example exactly once, and the same bits on any number of towers.

Sums travel; division happens once, at the end. The last batch is filled up to full size, and what
fills it has weight 0, which keeps it out of every sum. A batch is cut into microbatches, as in
training, so that what an operation sees, and with it the last bits of its result, does not depend
on the number of towers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towers import devices, worker
from towers.support import checks, shares, stateless, structures, tally


class _Outputs(NamedTuple):
    losses: tf.Tensor  # floating [n]
    predicted: tf.Tensor  # int64 [n]
    in_top5: tf.Tensor  # bool [n]


class Evaluator:
    """Evaluates a classifier with given weights, the batch spread over towers.

    Like a Trainer, it turns off TensorFlow's rewriting of graphs: `devices.run_graphs_as_written`.
    """

    def __init__(
        self,
        model: keras.Model,
        weights: Sequence,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        tower_devices: Sequence[str],
        num_microbatches: int = 1,
        test_time_flip: bool = False,
        workers: worker.Workers | None = None,
    ):
        """
        Args:
          model: called as a pure function with `training=False`; gives logits [n, num_classes].
          weights: variables in the order of `model.trainable_variables`: the model's own, or their
            moving averages.
          loss: as a Trainer's.
          tower_devices: one device per tower.
          num_microbatches: equal parts of a batch (of this worker's share of one), spread over the
            towers; towers beyond that number are idle.
          test_time_flip: evaluates the mean of the logits of each image and of its mirror image;
            for images [n, height, width, channels].
          workers: those that evaluate together, each its share of every batch; None for one.
        """
        devices.run_graphs_as_written()
        self._model = model
        self._weights = list(weights)
        self._loss = loss
        self._tower_devices = tuple(tower_devices)
        self._num_microbatches = num_microbatches
        self._test_time_flip = test_time_flip
        self._workers = workers or worker.SingleWorker()
        self._num_classes = 0  # known once a batch was seen
        self._batch_outputs = tf.function(self._build, autograph=False)
        # Traced once, and called for every microbatch of every tower, as in training.
        self._outputs_of_microbatch = tf.function(self._microbatch, autograph=False)

    def __call__(self, batches: Iterable) -> tally.Evaluation:
        """Evaluates every example of weight above 0.

        Args:
          batches: of (inputs [n, ...], labels [n]) or (inputs, labels, sample_weight [n]), of any
            size; labels are integers in [0, num_classes), and weights as for `Trainer.train_step`:
            at least 0, or a boolean mask. With several workers, this one's share of each batch, and
            the same number of batches on all.

        Raises:
          ValueError: there is no example to evaluate, or a weight is missing, negative or not
            finite.
          WorkerError: another worker is gone or has ended.
        """
        seen = []
        for inputs, labels, *weight in batches:
            with tf.device(devices.HOST):
                inputs, labels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels)
                n = labels.shape[0]
                weight = checks.weights(weight[0], n, np.float64) if weight else np.ones(n)
                with checks.explained():
                    losses, *answers = self._outputs(inputs, labels)
                classes = np.stack([labels.numpy(), *answers], axis=1).astype(np.int64)
                seen.append(tally.Seen(weight, losses, classes))
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
        accuracies = tuple(own.accuracy() for own in of_workers)
        return tally.add_up(whole, self._num_classes, accuracies)

    def _outputs(self, inputs: tf.Tensor, labels: tf.Tensor) -> list[np.ndarray]:
        """What `_Outputs` has, of one batch."""
        n = labels.shape[0]
        filling = -n % self._num_microbatches  # a last batch may not divide evenly
        if filling:
            inputs, labels = (
                tf.concat([tensor, tf.repeat(tensor[:1], filling, axis=0)], axis=0)
                for tensor in (inputs, labels)
            )
        return [values.numpy()[:n] for values in self._batch_outputs(inputs, labels)]

    def _build(self, inputs, labels) -> _Outputs:
        parts = self._num_microbatches
        with tf.device(devices.HOST), tf.name_scope("split_batch"):
            cut = (structures.split(inputs, parts), structures.split(labels, parts))
            microbatches = list(zip(*cut, strict=True))  # each [microbatch, ...]
        results = []
        towers = zip(
            self._tower_devices, shares.evenly(parts, len(self._tower_devices)), strict=True
        )
        for index, (device, own) in enumerate(towers):
            with tf.device(device), tf.name_scope(f"tower_{index}"):
                results += self._tower([microbatches[m] for m in own])
        with tf.device(devices.HOST), tf.name_scope("gather"):
            return _Outputs(*(tf.concat(values, axis=0) for values in zip(*results, strict=True)))

    def _tower(self, microbatches) -> list[_Outputs]:
        weights = [tf.identity(weight) for weight in self._weights]
        state = [tf.identity(variable.value) for variable in self._model.non_trainable_variables]
        return [self._outputs_of_microbatch(weights, state, *part) for part in microbatches]

    def _microbatch(self, weights, state, inputs, labels) -> _Outputs:
        outputs, _ = stateless.call(self._model, weights, state, inputs, training=False)
        if self._test_time_flip:
            mirrored = inputs[:, :, ::-1]
            others, _ = stateless.call(self._model, weights, state, mirrored, training=False)
            wide = tf.float64 if outputs.dtype == tf.float64 else tf.float32
            outputs = (tf.cast(outputs, wide) + tf.cast(others, wide)) / 2.0
        self._num_classes = outputs.shape[-1]
        five = min(5, self._num_classes)
        in_top5 = tf.math.in_top_k(tf.cast(labels, tf.int64), tf.cast(outputs, tf.float32), five)
        return _Outputs(self._loss(labels, outputs), tf.argmax(outputs, axis=-1), in_top5)
