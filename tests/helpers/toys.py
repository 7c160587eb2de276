"""Small models, batches and towers that several tests share."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import towers
from towers.networks import cifarnet, fastnet, resnet

from tensorflow.python.eager import context  # isort: skip

CLASSES = 4


def cpus(num_towers: int) -> tuple[str, ...]:
    """The first logical CPU devices, on any machine."""
    return tuple(f"/CPU:{tower}" for tower in range(num_towers))


def linear(*weights: float) -> keras.Model:
    """outputs [n, 1] = images [n, len(weights)] @ weights, to be computed by hand."""
    kernel = keras.initializers.Constant(np.reshape(weights, [-1, 1]))
    line = keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel, name="line")
    return on_cpu(lambda: keras.Sequential([keras.Input([len(weights)]), line]))


def classifier(seed: int = 0) -> keras.Model:
    """Two dense layers from 3 features to CLASSES logits."""
    first, second = (keras.initializers.GlorotUniform(seed=seed + layer) for layer in (1, 2))
    hidden = keras.layers.Dense(5, activation="relu", kernel_initializer=first, name="hidden")
    logits = keras.layers.Dense(CLASSES, kernel_initializer=second, name="logits")
    return on_cpu(lambda: keras.Sequential([keras.Input([3]), hidden, logits]))


def dropout_classifier() -> keras.Model:
    """Weights, batch-norm state and draws: every kind of variable that a model has."""
    with tf.device(towers.devices.HOST):
        layers = [
            keras.layers.Dense(16, activation="relu", name="hidden"),
            keras.layers.Dropout(0.5, seed=1, name="drop"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(CLASSES, name="logits"),
        ]
        return keras.Sequential([keras.Input([3]), *layers])


def small_cifarnet(dtype: str = "float32") -> keras.Model:
    """The tutorial's network for 8 x 8 images, with more channels than an LRN radius."""
    policy = keras.DTypePolicy(dtype)
    return on_cpu(
        lambda: cifarnet.build((8, 8, 3), CLASSES, policy, 3, filters=6, hidden_units=(7, 6))
    )


def small_resnet(dtype: str = "float32") -> keras.Model:
    """Three residual blocks with batch norm, for 8 x 8 images."""
    policy = keras.DTypePolicy(dtype)
    return on_cpu(lambda: resnet.build((8, 8, 3), CLASSES, policy, 3, blocks_per_stage=1))


def small_fastnet(dtype: str = "float32") -> keras.Model:
    """Whitening and two blocks of convolutions, for 8 x 8 images; it has seen some of them."""
    policy = keras.DTypePolicy(dtype)
    model = on_cpu(lambda: fastnet.build((8, 8, 3), CLASSES, policy, 3, block_filters=(7, 6)))
    fastnet.adapt(model, batch(40, [8, 8, 3])[0])
    return model


def on_cpu(build):
    """`build()` with its variables where the package keeps them."""
    with tf.device(towers.devices.HOST):
        return build()


def batch(examples: int, shape=(8, 8, 3), *, seed: int = 0):
    """Random images, float32 [examples, *shape], and labels, int64 [examples]."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(examples, *shape)).astype(np.float32)
    return images, rng.integers(CLASSES, size=examples)


def output_itself(labels, outputs):
    """A loss per example, [n], that is the model's one output."""
    return tf.reshape(outputs, [-1])


class Step:
    """A training step of a model on towers: `step(images, labels)` makes it.

    Attributes:
      model: that is trained.
    """

    def __init__(
        self, model, optimizer=None, *, num_towers=1, microbatch=None, loss=None, jit_compile=False
    ):
        """
        Args:
          model: classifier of CLASSES, or whatever the loss is for.
          optimizer: None for SGD of rate 0.5.
          num_towers: on logical CPUs.
          microbatch: examples of one; None for one microbatch on each tower.
          loss: None for cross entropy of logits.
          jit_compile: whether XLA compiles the step.
        """
        loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer or keras.optimizers.SGD(0.5), loss, jit_compile=jit_compile)
        self.model, self._towers, self._microbatch = model, num_towers, microbatch
        self._distribution = None

    def __call__(self, images, labels, rate=None):
        """Makes a step at a rate; what it showed before its update (`updating.Watched`)."""
        batch = tf.convert_to_tensor(images), tf.convert_to_tensor(labels)
        if self._distribution is None:
            size = self._microbatch or -(-len(images) // self._towers)
            places = cpus(self._towers)
            towers.distribute(self.model, places, microbatch_size=size, joined_loss=False)
            self._distribution = self.model._towers
            self._distribution.prepare(batch, lambda: None)
        if rate is not None:
            self.model.optimizer.learning_rate.assign(rate)
        return self._distribution.train_step(batch)[1]


def column(*values: float) -> np.ndarray:
    """Examples of one feature, float32 [n, 1]."""
    return np.array(values, np.float32)[:, None]


def assert_close(these, those, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Arrays are near others, one by one."""
    for this, that in zip(these, those, strict=True):
        np.testing.assert_allclose(this, that, rtol, atol)


def nodes_run(call: Callable) -> list[tf.compat.v1.NodeDef]:
    """The nodes of all graphs that TensorFlow makes, one for each device, as it first runs them."""
    running = context.context()
    running.enable_run_metadata()
    running.export_run_metadata()  # Keras's TensorBoard may have had graphs kept before
    try:
        call()
        graphs = running.export_run_metadata().function_graphs
    finally:
        running.disable_run_metadata()
    return [node for graph in graphs for part in graph.partition_graphs for node in part.node]
