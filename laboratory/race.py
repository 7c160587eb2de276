"""Runs until an accuracy is reached: how many examples a batch size and a rate need.

Each run is plain Keras on one device, and as many runs work side by side as there are cores.
"""

import concurrent.futures
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from laboratory import data, problems
from towers import devices, machine

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

EXAMPLES_BETWEEN_EVALUATIONS = 2_000
TEST_BATCHES = 4  # of 500
SMOOTHED_OVER = 3  # evaluations: a single one is off by a point


OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}


class Entry(NamedTuple):
    """One run.

    global_batch_size: examples of a step.
    rate: after the warm-up.
    warm_up: examples over which the rate rises.
    start_factor: of the rate, with which the warm-up starts.
    optimizer: one of OPTIMIZERS.
    seed: of the initial weights and of the order of the examples.
    """

    global_batch_size: int
    rate: float
    warm_up: int = 0
    start_factor: float = 0.0
    optimizer: str = "sgd"
    seed: int = 0


def examples_needed(
    entries: Sequence[Entry], images: data.Images, accuracy: float, at_most: int
) -> list[float | None]:
    """The examples that each run has seen when it reaches the test accuracy.

    Args:
      entries: the runs; those of one seed begin with the same weights.
      images: what they train on, without distortions.
      accuracy: share of the test examples, as the mean of the last three evaluations.
      at_most: examples after which a run is given up.

    Returns:
      One number for each entry; None where the accuracy was not reached.
    """
    test = images.test_batches().take(TEST_BATCHES).cache()
    return side_by_side(
        [functools.partial(run, entry, images, test, accuracy, at_most) for entry in entries]
    )


def mean_needed(of_seeds: Sequence[float | None]) -> float | None:
    """The mean over the seeds; None if there are none, or if one did not reach the accuracy."""
    return float(np.mean(of_seeds)) if of_seeds and None not in of_seeds else None


def side_by_side(calls: Sequence[Callable]) -> list:
    """Makes calls in threads, as many at a time as there are cores; returns their results."""
    cores, silent = machine.available_cores(), keras.config.disable_interactive_logging
    with concurrent.futures.ThreadPoolExecutor(cores, initializer=silent) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            return [one.result() for one in running]
        except BaseException:  # also at Ctrl-C: do not begin the rest
            pool.shutdown(cancel_futures=True)
            raise


def run(entry: Entry, images: data.Images, test, accuracy: float, at_most: int) -> float | None:
    """One run of `examples_needed`."""
    batch, trained = entry.global_batch_size, model(entry)
    seen, measured = [], []
    for step, pair in enumerate(
        images.training_batches(batch, at_most // batch, seed=entry.seed, distorted=False), start=1
    ):
        if not math.isfinite(trained.train_on_batch(*pair, return_dict=True)["loss"]):
            return None
        if step * batch < (seen[-1] if seen else 0) + EXAMPLES_BETWEEN_EVALUATIONS:
            continue
        seen.append(step * batch)
        measured.append(evaluated(trained, test).accuracy)
        last = measured[-SMOOTHED_OVER:]
        if len(last) == SMOOTHED_OVER and statistics.mean(last) >= accuracy:
            return statistics.mean(seen[-SMOOTHED_OVER:])
    return None


def model(entry: Entry) -> keras.Model:
    """The small network at its first weights, compiled with an entry's optimizer."""
    made, rate = network(entry.seed), entry.rate
    if entry.warm_up:
        rate = keras.optimizers.schedules.PolynomialDecay(
            entry.start_factor * rate, entry.warm_up / entry.global_batch_size, rate
        )
    data.compile_classifier(made, OPTIMIZERS[entry.optimizer](rate))
    return made


def evaluated(model: keras.Model, batches: tf.data.Dataset) -> problems.Measured:
    """What Keras's `evaluate` says."""
    logs = model.evaluate(batches, return_dict=True, verbose=0)
    return problems.Measured(logs["cross_entropy"], logs["accuracy"])


def network(seed: int = 0) -> keras.Model:
    """Two convolutions and a dense layer: fast enough to be trained about thirty times."""
    start = iter(range(4 * seed, 4 * seed + 4))

    def layer(kind, *arguments, **options):
        return kind(
            *arguments,
            kernel_initializer=keras.initializers.GlorotUniform(seed=next(start)),
            **options,
        )

    convolution = {"strides": 2, "padding": "same", "activation": "relu"}
    with tf.device(devices.HOST):
        return keras.Sequential(
            [
                keras.Input(data.SHAPE),
                layer(keras.layers.Conv2D, 16, 5, **convolution),
                layer(keras.layers.Conv2D, 32, 3, **convolution),
                keras.layers.Flatten(),
                layer(keras.layers.Dense, 64, activation="relu"),
                layer(keras.layers.Dense, data.CLASSES),
            ]
        )


def right(trained: keras.Model, images: data.Images) -> np.ndarray:
    """Whether the last weights get each test image right, bool [images]."""
    correct = []
    for pixels, labels in images.test_batches():
        logits = trained(pixels, training=False)
        correct.append(tf.argmax(logits, axis=1, output_type=labels.dtype) == labels)
    return np.concatenate(correct)
