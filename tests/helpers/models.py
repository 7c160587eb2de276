"""Models and data of a user's, as small as they can be, each with its loss and its metrics.

`TASKS` has them by name.
"""

from typing import NamedTuple

import keras
import numpy as np
import toys


class Task(NamedTuple):
    """A model, what it is trained for, and examples (inputs, labels)."""

    model: keras.Model
    loss: object
    metrics: object
    inputs: object
    labels: object
    loss_weights: object = None


def _rng():
    return np.random.default_rng(3)


def dense(units: int, **arguments):
    """A dense layer whose weights do not depend on what was built before."""
    return keras.layers.Dense(
        units, kernel_initializer=keras.initializers.GlorotUniform(seed=units), **arguments
    )


def two_by_two(n: int) -> Task:
    """Two inputs in a dict and two outputs, with dropout and batch norm."""
    image, age = keras.Input((4, 4, 1), name="image"), keras.Input((1,), name="age")
    x = keras.layers.Concatenate()([keras.layers.Flatten()(image), age])
    x = keras.layers.BatchNormalization()(dense(8, activation="relu")(x))
    x = keras.layers.Dropout(0.5, seed=1)(x)
    outputs = {"kind": dense(3, activation="softmax")(x), "size": dense(1)(x)}
    model = keras.Model({"image": image, "age": age}, outputs)
    rng = _rng()
    inputs = {"image": rng.normal(size=(n, 4, 4, 1)), "age": rng.uniform(size=(n, 1))}
    labels = {"kind": rng.integers(3, size=n), "size": rng.normal(size=(n, 1))}
    return Task(
        model,
        {"kind": "sparse_categorical_crossentropy", "size": keras.losses.MeanSquaredError()},
        {"kind": ["accuracy"], "size": ["mae"]},
        {name: values.astype(np.float32) for name, values in inputs.items()},
        {"kind": labels["kind"], "size": labels["size"].astype(np.float32)},
        {"kind": 1.0, "size": 0.25},
    )


def regression(n: int) -> Task:
    """A number, by a subclass of Keras's Model."""

    class Line(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = dense(1)

        def call(self, x):
            return self.layer(x)

    model, rng = Line(), _rng()
    inputs = rng.normal(size=(n, 5)).astype(np.float32)
    model(inputs[:1])
    labels = rng.normal(size=(n, 1)).astype(np.float32)
    metrics = ["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()]
    return Task(model, "mse", metrics, inputs, labels)


def multi_label(n: int) -> Task:
    """Several labels of one example."""
    model, rng = keras.Sequential([keras.Input((5,)), dense(4, activation="sigmoid")]), _rng()
    return Task(
        model,
        "binary_crossentropy",
        [keras.metrics.AUC(multi_label=True, num_labels=4, name="auc"), "binary_accuracy"],
        rng.normal(size=(n, 5)).astype(np.float32),
        rng.integers(2, size=(n, 4)).astype(np.float32),
    )


def segmentation(n: int) -> Task:
    """A class for each pixel."""
    layer = keras.layers.Conv2D(
        3, 3, padding="same", kernel_initializer=keras.initializers.GlorotUniform(seed=2)
    )
    model, rng = keras.Sequential([keras.Input((6, 6, 2)), layer]), _rng()
    return Task(
        model,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        [keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou"), "sparse_categorical_accuracy"],
        rng.normal(size=(n, 6, 6, 2)).astype(np.float32),
        rng.integers(3, size=(n, 6, 6)),
    )


def next_token(n: int) -> Task:
    """The token that follows, by an embedding and a recurrent layer."""
    initializer = keras.initializers.RandomUniform(seed=5)
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(11, 4, embeddings_initializer=initializer)(tokens)
    x = keras.layers.GRU(
        5,
        return_sequences=True,
        seed=1,
        kernel_initializer=keras.initializers.GlorotUniform(seed=6),
        recurrent_initializer=keras.initializers.GlorotUniform(seed=7),
    )(x)
    model = keras.Model(tokens, dense(11)(x))
    text = _rng().integers(11, size=(n, 7))
    return Task(
        model,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3)],
        text[:, :-1].astype(np.int32),
        text[:, 1:],
    )


def pictures(n: int) -> Task:
    """A network of `keras.applications` within another model, with a head of its own."""
    keras.utils.set_random_seed(4)  # it has no seeds of its own
    shape = 32, 32, 3
    base = keras.applications.MobileNetV2(shape, 0.35, False, weights=None, pooling="avg")
    scale = keras.layers.Rescaling(1 / 127.5, offset=-1)
    head = keras.layers.Dropout(0.2, seed=1), dense(3)
    rng = _rng()
    return Task(
        keras.Sequential([keras.Input(shape), scale, base, *head]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ["accuracy"],
        rng.integers(256, size=(n, *shape), dtype=np.uint8),
        rng.integers(3, size=n),
    )


TASKS = {
    task.__name__: task for task in (two_by_two, regression, multi_label, segmentation, next_token)
}
LARGE = {"pictures": pictures}  # its graph alone takes ten seconds


def made(name: str, n: int) -> Task:
    """The task on the CPU, with n examples."""
    return toys.on_cpu(lambda: (TASKS | LARGE)[name](n))


def part(structure, own: slice):
    """The examples of a part of a batch."""
    if isinstance(structure, dict):
        return {key: values[own] for key, values in structure.items()}
    return structure[own]
