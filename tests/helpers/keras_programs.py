"""Ordinary Keras programs of every kind, each with one foreign line: `switch(model)`.

A program is a function of the switch, which puts a model on towers or does nothing. It returns what
a user would look at: the history, evaluations, predictions, weights, the optimizer's variables.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import towers

rng = np.random.default_rng(0)
N = 86  # a batch of 64, and one of 22, which is a microbatch of 16 and one of 6
X = rng.normal(size=(N, 8)).astype("float32")
Y = X[:, :3].argmax(axis=1)  # int64 [N]
ONE_HOT = np.eye(3, dtype="float32")[Y]
SIZE = X[:, 3:4] * 2 + 1  # [N, 1]
WEIGHTS = rng.uniform(0.1, 2, N).astype("float32")
OTHERS = rng.uniform(0.1, 2, N).astype("float32")
TOKENS = rng.integers(1, 9, (N, 6)) * (rng.integers(1, 7, (N, 1)) > np.arange(6))  # 0 is padding
IMAGES = rng.normal(size=(N, 6, 6, 2)).astype("float32")
FIT = {"batch_size": 64, "epochs": 2, "verbose": 0, "shuffle": False}
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and what is known of it.

    Attributes:
      run: with a switch.
      tolerance: to plain Keras, relative and absolute; None where it draws or has batch norm.
      imprecise: endings of names of Keras's values that are not right (test_keras_programs.py).
      policy: of Keras's types.
      long: whether it takes longer than others.
    """

    run: Callable
    tolerance: float | None = 1e-5
    imprecise: tuple[str, ...] = ()
    policy: str = "float32"
    long: bool = False


PROGRAMS: dict[str, Program] = {}


def program(**known):
    def register(function):
        PROGRAMS[function.__name__] = Program(function, **known)
        return function

    return register


@functools.cache
def found(name: str, num_towers: int) -> dict:
    """What a program returns on so many towers; 0 for plain Keras."""
    one = PROGRAMS[name]

    def switch(model):
        if num_towers:
            towers.distribute(model, num_towers, microbatch_size=16)

    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_floatx("float64" if one.policy == "float64" else "float32")
    keras.config.set_dtype_policy(one.policy)
    try:
        return one.run(switch)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def sha256(value) -> str:
    """One hash of all that a program returns."""
    digest = hashlib.sha256()
    for path, leaf in keras.tree.flatten_with_path(value):
        array = np.asarray(leaf)
        digest.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def summary(model, history=None, x=X[:22], y=Y[:22], **evaluation) -> dict:
    """Evaluates and predicts, and looks at the weights; of an `x` of None, at the weights alone."""
    if history is not None:
        evaluation = {"history": history.history} | evaluation
    if x is not None:
        evaluation["evaluation"] = model.evaluate(x, y, verbose=0, return_dict=True)
        evaluation["predictions"] = model.predict(x, verbose=0)
    return evaluation | {
        "weights": model.get_weights(),
        "optimizer": [np.asarray(variable) for variable in model.optimizer.variables],
    }


def dense(*between, units=3, **arguments):
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(12, "relu"), *between, layers.Dense(units, **arguments)]
    )


def trained(
    switch, model=None, x=X, y=Y, *, loss=None, optimizer=None, fit=None, only=False, **compiled
):
    """The shortest program, with something of its own; `only` trains."""
    model = model or dense()
    loss = loss or CROSSENTROPY(from_logits=True)
    arguments = {"metrics": ["accuracy"]} | compiled
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, **arguments)
    switch(model)
    history = model.fit(x, y, **FIT | (fit or {}))
    return summary(model, history, *((None, None) if only else (x[:22], y[:22])))


# Optimizers


def _with_optimizer(name, make, **known):
    PROGRAMS[name] = Program(lambda switch: trained(switch, optimizer=make(), only=True), **known)


def _accumulated():
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1)


def _scheduled():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))


_with_optimizer("adam", lambda: "adam")
_with_optimizer("accumulation", _accumulated)
_with_optimizer("clipnorm", lambda: keras.optimizers.SGD(0.1, clipnorm=0.05), long=True)
_with_optimizer(
    "ema", lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5), long=True
)
_with_optimizer("schedule", _scheduled, long=True)
_with_optimizer(
    "bfloat16", lambda: keras.optimizers.SGD(0.1), policy="mixed_bfloat16", tolerance=0.02
)
_with_optimizer(
    "float16", lambda: keras.optimizers.SGD(0.1), policy="mixed_float16", tolerance=3e-3
)
_with_optimizer(
    "float64", lambda: keras.optimizers.Adam(0.01), policy="float64", tolerance=1e-10, long=True
)


# What fit takes


@program()
def sample_weight(switch):
    fit = {"sample_weight": WEIGHTS, "validation_data": (X[:30], Y[:30], OTHERS[:30])}
    return trained(switch, fit=fit, weighted_metrics=["accuracy"])


@program()
def batch_smaller_than_towers(switch):
    return trained(switch, x=X[:23], y=Y[:23], fit={"batch_size": 2, "epochs": 1}, only=True)


def two_by_two():
    """Two inputs and two outputs, in dicts."""
    image, age = keras.Input((6, 6, 2), name="image"), keras.Input((8,), name="age")
    x = layers.Concatenate()([layers.Flatten()(image), age])
    x = layers.Dense(12, "relu")(x)
    outputs = {"kind": layers.Dense(3, name="kind")(x), "size": layers.Dense(1, name="size")(x)}
    model = keras.Model({"image": image, "age": age}, outputs)
    model.compile(
        keras.optimizers.Adam(0.01),
        {"kind": CROSSENTROPY(from_logits=True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.25},
        metrics={"kind": "accuracy"},
        weighted_metrics={"size": "mae"},
    )
    return model


PAIR = {"image": IMAGES, "age": X}, {"kind": Y, "size": SIZE}, {"kind": WEIGHTS, "size": OTHERS}


def _first(n, structure):
    return keras.tree.map_structure(lambda array: array[:n], structure)


@program(imprecise=("kind_loss", "size_loss"))
def dicts_with_a_weight_for_each_output(switch):
    model = two_by_two()
    switch(model)
    x, y, weights = PAIR
    history = model.fit(x, y, sample_weight=weights, validation_data=_first(30, PAIR), **FIT)
    x, y, weights = _first(22, PAIR)
    of_weighted = model.evaluate(x, y, sample_weight=weights, verbose=0)
    return summary(model, history, x, y, of_weighted=of_weighted)


@program(imprecise=("/optimizer/0",))
def dataset_of_unknown_sizes(switch):
    def batches():
        for first in (0, 40, 57):
            yield X[first : first + 40], Y[first : first + 40]

    specs = tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    model = dense()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        CROSSENTROPY(from_logits=True),
        metrics=["accuracy"],
    )
    switch(model)
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=data)
    evaluation = model.evaluate(data, verbose=0)
    return summary(model, history, None, again=evaluation, predicted=model.predict(data, verbose=0))


@program()
def steps_per_execution(switch):
    batch_ends = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch_ends.append([batch, logs["loss"]])
    )
    fit = {"batch_size": 16, "callbacks": [seen]}
    return trained(switch, steps_per_execution=4, fit=fit) | {"batch_ends": batch_ends}


@program()
def fit_twice_and_initial_epoch(switch):
    model = dense()
    model.compile("adam", CROSSENTROPY(from_logits=True), metrics=["accuracy"])
    switch(model)
    first = model.fit(X, Y, **FIT)
    second = model.fit(X, Y, initial_epoch=3, **FIT | {"epochs": 5})
    return summary(model, second, first=first.history, epochs=second.epoch)


@program()
def on_batches(switch):
    model = dense()
    model.compile("adam", CROSSENTROPY(from_logits=True), metrics=["accuracy"])
    switch(model)
    return summary(
        model,
        None,
        None,
        train=[
            model.train_on_batch(X[:40], Y[:40]),
            model.train_on_batch(X[40:], Y[40:], class_weight={0: 1.0, 1: 3.0, 2: 0.5}),
            model.train_on_batch(X[:1], Y[:1], sample_weight=WEIGHTS[:1], return_dict=True),
        ],
        test=model.test_on_batch(X[:40], Y[:40], sample_weight=WEIGHTS[:40]),
        predicted=[model.predict_on_batch(X[:n]) for n in (1, 2, 40)],
        few=[model.predict(X[:5], batch_size=size, verbose=0) for size in (1, 2)],
    )


# Compile, and what happens between


@program()
def distributed_before_compile(switch):
    model = dense()
    switch(model)
    model.compile(keras.optimizers.Adam(0.01), CROSSENTROPY(from_logits=True))
    return summary(model, model.fit(X, Y, **FIT), None)


@program(long=True)
def jit_compile(switch):
    return trained(switch, jit_compile=True, fit={"epochs": 1})


# Callbacks


@program()
def callbacks_that_decide(switch):
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=1.0),
        keras.callbacks.EarlyStopping("val_accuracy", patience=2, restore_best_weights=True),
    ]
    model = dense()
    model.compile(keras.optimizers.Adam(0.3), CROSSENTROPY(from_logits=True), metrics=["accuracy"])
    switch(model)
    fit = FIT | {"epochs": 12, "batch_size": 22, "validation_data": (X[:22], Y[:22])}
    history = model.fit(X[20:], -X[20:, :3].argmin(1) + 2, callbacks=callbacks, **fit)
    return summary(model, history)


# Losses


@program()
def regularizers(switch):
    between = layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l1")
    return trained(switch, dense(between, bias_regularizer="l1l2"))


def squared(y_true, y_pred):
    return ops.square(y_true - y_pred)


@program()
def a_loss_function_of_ones_own(switch):
    labels = np.rint(SIZE).astype("int64")
    return trained(switch, dense(units=1), y=labels, loss=squared, metrics=["mae"])


@program()
def a_loss_that_reads_a_kernel(switch):
    model = dense()

    def loss(y_true, y_pred):
        of_examples = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return of_examples + 0.1 * ops.sum(model.layers[0].kernel ** 2)

    return trained(switch, model, loss=loss)


@program(long=True)
def dice(switch):
    return trained(switch, dense(activation="softmax"), y=ONE_HOT, loss=keras.losses.Dice())


@program()
def summed_loss(switch):
    optimizer = keras.optimizers.SGD(0.002)
    loss = CROSSENTROPY(from_logits=True, reduction="sum")
    return trained(switch, loss=loss, optimizer=optimizer, fit={"sample_weight": WEIGHTS})


@program()
def mean_over_weights(switch):
    loss = CROSSENTROPY(from_logits=True, reduction="mean_with_sample_weight")
    return trained(switch, loss=loss, fit={"sample_weight": WEIGHTS})


def _taggers(y=TOKENS % 3, **arguments):
    model = keras.Sequential(
        [
            layers.Embedding(9, 6, mask_zero=True),
            layers.LSTM(6, return_sequences=True),
            layers.Dense(3),
        ]
    )
    return {"model": model, "x": TOKENS, "y": y} | arguments


@program()
def an_output_with_a_mask(switch):
    return trained(switch, **_taggers(weighted_metrics=["accuracy"], fit={"epochs": 1}))


class Distilled(keras.Model):
    """A student that learns from a frozen teacher and from labels."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = dense(layers.Dense(8)), dense()
        self.teacher.trainable = False

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hard = super().compute_loss(x, y, y_pred, sample_weight, training)
        wanted = ops.softmax(self.teacher(x, training=False) / 2)
        soft = keras.losses.kl_divergence(wanted, ops.softmax(y_pred / 2))
        return 0.3 * hard + 0.7 * ops.mean(soft)


@program()
def distillation(switch):
    return trained(switch, Distilled())


# Metrics


class Largest(keras.metrics.Metric):
    """A metric whose states are not added: the largest output."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))

    def result(self):
        return self.largest


def spread(y_true, y_pred):
    """One number of a batch."""
    return ops.max(y_pred) - ops.min(y_pred)


@program(long=True)
def an_accuracy_by_its_class_s_name(switch):
    """A forum: "Accuracy" was exact equality of labels and outputs."""
    return trained(switch, metrics=["Accuracy"])


class Flow(keras.utils.PyDataset):
    """20 examples, as ImageDataGenerator(...).flow gives them: its iterator never ends."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[:20][8 * index : 8 * index + 8], Y[:20][8 * index : 8 * index + 8]

    def __iter__(self):
        while True:
            yield from (self[index] for index in range(3))


@program()
def an_iterator_that_never_ends(switch):
    """A forum: generators that know their length were read for ever."""
    model = dense()
    model.compile("adam", CROSSENTROPY(from_logits=True), metrics=["accuracy"])
    switch(model)
    history = model.fit(Flow(), epochs=2, verbose=0, shuffle=False, validation_data=Flow())
    return summary(model, history, None, again=model.evaluate(Flow(), verbose=0))


@program(long=True)
def metrics_of_one_hot_labels(switch):
    metrics = keras.metrics
    chosen = ["accuracy", metrics.AUC(), metrics.F1Score(), metrics.Precision(), metrics.Recall()]
    chosen += [metrics.TruePositives(), metrics.TopKCategoricalAccuracy(2), Largest(), spread]
    model = dense(activation="softmax")
    weighted = [metrics.FalseNegatives(), metrics.CategoricalAccuracy(name="weighted")]
    fit = {"sample_weight": WEIGHTS, "validation_split": 0.3}
    loss = "categorical_crossentropy"
    return trained(
        switch, model, y=ONE_HOT, loss=loss, metrics=chosen, weighted_metrics=weighted, fit=fit
    )


class Counted(keras.Model):
    """Its metrics are its own, and one of its layers' metrics adds what it sees."""

    def __init__(self):
        super().__init__()
        self.last = layers.Dense(3)
        self.norm = keras.metrics.Mean("norm")

    def call(self, x):
        return self.last(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.norm.update_state(ops.norm(y_pred, axis=-1), sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight) | {"largest": ops.max(y_pred)}


@program()
def metrics_of_ones_own(switch):
    return trained(switch, Counted(), fit={"sample_weight": WEIGHTS})


# Networks


@program()
def repeated_rows_of_an_embedding(switch):
    model = keras.Sequential(
        [layers.Embedding(9, 6, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(3)]
    )
    return trained(switch, model, x=TOKENS)


class Positions(layers.Layer):
    """Adds a vector for each place."""

    def __init__(self, n):
        super().__init__()
        self.n, self.table = n, layers.Embedding(n, 4)

    def call(self, x):
        return x + self.table(ops.arange(self.n))


@program()
def position_embedding(switch):
    tokens = keras.Input((6,), dtype="int32")
    x = Positions(6)(layers.Embedding(9, 4)(tokens))
    model = keras.Model(tokens, layers.Dense(3)(layers.Flatten()(x)))
    return trained(switch, model, x=TOKENS)


# Those that draw, or normalize each microbatch


@program(tolerance=None)
def batch_norm_and_dropout(switch):
    between = layers.BatchNormalization(), layers.Dropout(0.5)
    return trained(switch, dense(*between), fit={"validation_split": 0.25})


# Layers that have learned from the data, and an optimizer of several


@program()
def words_become_numbers_within_the_model(switch):
    """After a lookup TensorFlow no longer knows how many examples there are."""
    words = np.array([["a b"], ["b c"], ["c c"], ["a a"]] * 8)
    vectors = layers.TextVectorization(output_sequence_length=2)
    vectors.adapt(words.ravel())
    between = [vectors, layers.Embedding(8, 3), layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((1,), dtype="string"), *between])
    optimizer = keras.optimizers.SGD(0.5)
    x = ops.convert_to_tensor(words)
    return trained(switch, model, x=x, y=Y[:32], optimizer=optimizer, only=True)


@program()
def a_layer_has_learned_from_the_data(switch):
    """Normalization keeps what it learned as variables and as constants."""
    normalization = layers.Normalization()
    normalization.adapt(3 * X + 1)
    return trained(switch, keras.Sequential([keras.Input((8,)), normalization, layers.Dense(3)]))


@program()
def two_optimizers(switch):
    """One for kernels, one for all else."""
    of_kernels, of_others = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    both = keras.optimizers.MultiOptimizer(
        lambda variable: of_kernels if variable.name == "kernel" else of_others
    )
    return trained(switch, optimizer=both, only=True)
