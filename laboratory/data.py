"""What lessons train on, and the small networks that they train."""

import dataclasses
from typing import NamedTuple

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from input_pipeline import batches, datasets, preprocess
from laboratory import findings
from towers import devices, step
from towers.networks import cifarnet, resnet

import keras  # isort: skip
import tensorflow as tf  # isort: skip

# The first digits of the fingerprint of a training split, to the name shown for it.
KNOWN = {"7a2567a4c9a6": "CIFAR-10, JPEG q75"}


PREPROCESSING, SHAPE, CLASSES = "crop_flip_colour", (24, 24, 3), 10  # of both data sets


class Images(NamedTuple):
    """A data set in memory.

    name: for people; CIFAR-10 with pixels other than the original ones has a name that says so.
    """

    name: str
    train: datasets.ImageArrays
    test: datasets.ImageArrays

    def training_batches(
        self,
        global_batch_size: int,
        steps: int,
        *,
        seed: int = 0,
        distorted: bool = True,
    ) -> tf.data.Dataset:
        """(images, labels) of so many steps, as `train.py` has them.

        Args:
          global_batch_size: examples of a step.
          steps: batches.
          seed: of their order and distortions.
          distorted: False preprocesses them as for an evaluation.
        """
        how = preprocess.for_images(PREPROCESSING, self.train.image_shape)
        images, labels = tf.constant(self.train.images), tf.constant(self.train.labels)
        order = batches.Order(len(labels), global_batch_size, seed)

        def batch_of_step(step):
            ids, draws = order(step)
            batch = tf.gather(images, ids)  # [global_batch_size, height, width, channels]
            batch = how.train(batch, draws) if distorted else how.evaluate(batch)
            return batch, tf.gather(labels, ids)

        return batches.mapped(tf.data.Dataset.range(steps), batch_of_step)

    def test_batches(self, split: str = "test") -> tf.data.Dataset:
        """(images, labels) of a whole split, preprocessed for an evaluation."""
        how = preprocess.for_images(PREPROCESSING, self.train.image_shape)
        chosen = {"train": self.train, "test": self.test}[split]
        whole = tf.data.Dataset.from_tensor_slices((chosen.images, chosen.labels)).batch(500)
        return whole.map(lambda images, labels: (how.evaluate(images), labels)).prefetch(1)

    def first(self, training: int, test: int) -> "Images":
        """The same with only the first examples of each split."""
        train, test = (
            dataclasses.replace(split, images=split.images[:count], labels=split.labels[:count])
            for split, count in ((self.train, training), (self.test, test))
        )
        return self._replace(train=train, test=test)


def load(setup: findings.Setup) -> Images:
    """CIFAR-10 if it is available, else `shapes`.

    Raises:
      DataError: the folder that the setup names has no CIFAR-10; the message is for the user.
    """
    name = "shapes" if setup.shapes else "cifar10"
    try:  # without a download
        test = datasets.load(name, setup.data_dir, "test", read_only=True)
    except datasets.DataError as error:
        if setup.data_dir:
            raise datasets.DataError(f"--data_dir={setup.data_dir}: {error}") from error
        name, test = "shapes", datasets.load("shapes", None, "test")
    train = datasets.load(name, setup.data_dir, "train")
    return Images(KNOWN.get(train.fingerprint[:12], name), train, test)


def small_cifarnet(dtype: str = "float32") -> keras.Model:
    """The tutorial's network with a quarter of its filters and a sixth of its hidden units."""
    with tf.device(devices.HOST):
        return cifarnet.build(
            SHAPE, CLASSES, keras.DTypePolicy(dtype), 0, filters=16, hidden_units=(64, 32)
        )


def small_resnet() -> keras.Model:
    """Eight layers with batch norm."""
    with tf.device(devices.HOST):
        return resnet.build(SHAPE, CLASSES, keras.DTypePolicy("float32"), 0, blocks_per_stage=1)


def compile_classifier(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Compiles a model of logits: its loss, `accuracy` and `cross_entropy`."""
    devices.run_graphs_as_written()
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy("accuracy"),
            keras.metrics.SparseCategoricalCrossentropy("cross_entropy", from_logits=True),
        ],
        jit_compile=False,
    )


def program(
    model: keras.Model, optimizer, num_towers: int = 1, loss=None, **options
) -> step.Program:
    """A training step on towers, which shows its losses and gradients.

    Args:
      model: is compiled anew.
      optimizer: one of Keras's.
      num_towers: on which the step runs.
      loss: as `compile` takes it; None for the cross entropy of logits.
      **options: as a `step.Program` takes them.
    """
    devices.run_graphs_as_written()
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    optimizer.build(model.trainable_variables)
    on = devices.choose(num_towers)
    return step.Program(model, on, training=True, joined=False, watched=True, **options)
