"""Keras is the oracle: ordinary programs of every kind, with and without towers.

A program is a function of a switch, which puts a model on towers or does nothing: its one foreign
line. It returns what a user would look at: history, evaluations, predictions, weights.

Where Keras itself is imprecise, towers are right:

- The loss of one of several outputs. Keras takes the mean over batches that do not count by their
  examples where its graph does not know their sizes; right is the mean over examples, so that they
  add up to the loss.
- The optimizer's count of steps, after data of unknown cardinality. Keras's is one higher for some
  ends of the data, as its graph may count before it finds that there is no batch.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import towers

rng = np.random.default_rng(0)
N = 66  # three batches of 22, each of which is two microbatches of 8 and one of 6
X = rng.normal(size=(N, 8)).astype("float32")
Y = X[:, :3].argmax(axis=1)  # int64 [N]
ONE_HOT = np.eye(3, dtype="float32")[Y]
SIZE = X[:, 3:4] * 2 + 1  # [N, 1]
WEIGHTS = rng.uniform(0.1, 2, N).astype("float32")
OTHERS = rng.uniform(0.1, 2, N).astype("float32")
TOKENS = rng.integers(1, 9, (N, 6)) * (rng.integers(1, 7, (N, 1)) > np.arange(6))  # 0 is padding
IMAGES = rng.normal(size=(N, 6, 6, 2)).astype("float32")
FIT = {"batch_size": 22, "epochs": 2, "verbose": 0, "shuffle": False}
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and what is known of it."""

    run: Callable  # with a switch
    tolerance: float | None = 1e-5  # to plain Keras; None where it draws or has batch norm
    imprecise: tuple[str, ...] = ()  # parts of the paths of Keras's values that are not right
    policy: str = "float32"  # of Keras's types
    long: bool = False  # whether it takes longer than others


PROGRAMS: dict[str, Program] = {}


def program(**known):
    def register(function):
        PROGRAMS[function.__name__] = Program(function, **known)
        return function

    return register


@functools.cache
def run(name: str, num_towers: int) -> dict:
    """What a program returns on so many towers; 0 for plain Keras."""
    one = PROGRAMS[name]

    def switch(model):
        if num_towers:
            towers.distribute(model, num_towers, microbatch_size=8)

    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    keras.config.set_floatx("float64" if one.policy == "float64" else "float32")
    keras.config.set_dtype_policy(one.policy)
    try:
        return one.run(switch)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def leaves(value) -> dict[str, np.ndarray]:
    """Every number and array in what a program returns, by its path."""
    result = keras.tree.flatten_with_path(value)
    return {"/".join(map(str, path)): np.asarray(leaf) for path, leaf in result}


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


def ready(switch, model=None, optimizer="adam", loss=None, **more):
    """A compiled model, on towers if so."""
    model = model or dense()
    loss = loss or CROSSENTROPY(from_logits=True)
    model.compile(optimizer, loss, **{"metrics": ["accuracy"]} | more)
    switch(model)
    return model


def trained(switch, *, x=X, y=Y, fit=None, evaluated=False, **more):
    """The shortest program, with something of its own."""
    model = ready(switch, **more)
    history = model.fit(x, y, **FIT | (fit or {}))
    return summary(model, history, *((x[:22], y[:22]) if evaluated else (None, None)))


def like_the_shortest(name, make, **known):
    """One that differs from it in what `make()` returns."""
    PROGRAMS[name] = Program(lambda switch: trained(switch, **make()), **known)


# Optimizers


def accumulated():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1)
    return {"optimizer": optimizer}


def averaged():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    sgd = keras.optimizers.SGD(schedule, clipnorm=0.05, use_ema=True, ema_momentum=0.5)
    return {"optimizer": sgd}


def sgd(rate=0.1):
    return {"optimizer": keras.optimizers.SGD(rate)}


like_the_shortest("accumulation", accumulated)
like_the_shortest("schedule_clipnorm_and_ema", averaged, long=True)
like_the_shortest("bfloat16", sgd, policy="mixed_bfloat16", tolerance=0.02)
like_the_shortest("float16", sgd, policy="mixed_float16", tolerance=3e-3, long=True)
like_the_shortest("float64", accumulated, policy="float64", tolerance=1e-10, long=True)


# What fit takes


def sample_weights():
    """The last batch, of 26, is shorter than the one before."""
    fit = {"sample_weight": WEIGHTS, "validation_data": (X[:30], Y[:30], OTHERS[:30])}
    return {"fit": fit | {"batch_size": 40}, "weighted_metrics": ["accuracy"]}


like_the_shortest("sample_weights", sample_weights)


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


def first(n, structure):
    return keras.tree.map_structure(lambda array: array[:n], structure)


@program(imprecise=("kind_loss", "size_loss"))
def dicts_with_a_weight_for_each_output(switch):
    model = two_by_two()
    switch(model)
    x, y, weights = PAIR
    history = model.fit(x, y, sample_weight=weights, validation_data=first(30, PAIR), **FIT)
    x, y, weights = first(22, PAIR)
    evaluation = model.evaluate(x, y, sample_weight=weights, verbose=0)
    predictions = model.predict(x, verbose=0)
    return summary(model, history, None, evaluation=evaluation, predictions=predictions)


@program(imprecise=("optimizer/0",))
def dataset_of_unknown_sizes(switch):
    def batches():
        for begin in (0, 40, 57):
            yield X[begin : begin + 40], Y[begin : begin + 40]

    specs = tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    model = ready(switch, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
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
    model = ready(switch)
    before = model.fit(X, Y, **FIT)
    second = model.fit(X, Y, initial_epoch=3, **FIT | {"epochs": 5})
    return summary(model, second, first=before.history, epochs=second.epoch)


@program()
def on_batches(switch):
    model = ready(switch)
    train = [
        model.train_on_batch(X[:40], Y[:40]),
        model.train_on_batch(X[40:], Y[40:], class_weight={0: 1.0, 1: 3.0, 2: 0.5}),
        model.train_on_batch(X[:1], Y[:1], sample_weight=WEIGHTS[:1], return_dict=True),
    ]
    test = model.test_on_batch(X[:40], Y[:40], sample_weight=WEIGHTS[:40])
    predicted = [model.predict_on_batch(X[:n]) for n in (1, 2, 40)]
    few = [model.predict(X[:5], batch_size=size, verbose=0) for size in (1, 2)]
    return summary(model, None, None, train=train, test=test, predicted=predicted, few=few)


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
    model = ready(switch)
    history = model.fit(Flow(), epochs=2, verbose=0, shuffle=False, validation_data=Flow())
    return summary(model, history, None, again=model.evaluate(Flow(), verbose=0))


# Compile, and callbacks


@program()
def distributed_before_compile(switch):
    model = dense()
    switch(model)
    model.compile(keras.optimizers.Adam(0.01), CROSSENTROPY(from_logits=True))
    return summary(model, model.fit(X, Y, **FIT), None)


like_the_shortest("jit_compile", lambda: {"jit_compile": True, "evaluated": True}, long=True)


@program()
def callbacks_that_decide(switch):
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=1.0),
        keras.callbacks.EarlyStopping("val_accuracy", patience=2, restore_best_weights=True),
    ]
    model = ready(switch, optimizer=keras.optimizers.Adam(0.3))
    fit = FIT | {"epochs": 12, "batch_size": 22, "validation_data": (X[:22], Y[:22])}
    history = model.fit(X[20:], -X[20:, :3].argmin(1) + 2, callbacks=callbacks, **fit)
    return summary(model, history, None)


# Losses


def regularizers():
    between = layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l1")
    return {"model": dense(between, bias_regularizer="l1l2"), "evaluated": True}


def squares():
    labels = np.rint(SIZE).astype("int64")
    loss = {"loss": lambda y_true, y_pred: ops.square(y_true - y_pred), "metrics": ["mae"]}
    return {"model": dense(units=1), "y": labels} | loss


def reading_a_kernel():
    model = dense()

    def loss(y_true, y_pred):
        of_examples = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return of_examples + 0.1 * ops.sum(model.layers[0].kernel ** 2)

    return {"model": model, "loss": loss}


def reduced(how):
    loss = CROSSENTROPY(from_logits=True, reduction=how)
    return {"loss": loss, "fit": {"sample_weight": WEIGHTS}} | sgd(0.002)


def masked():
    tagger = [layers.SimpleRNN(6, return_sequences=True), layers.Dense(3)]
    model = keras.Sequential([layers.Embedding(9, 6, mask_zero=True), *tagger])
    more = {"weighted_metrics": ["accuracy"], "fit": {"epochs": 1}}
    return {"model": model, "x": TOKENS, "y": TOKENS % 3} | more


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
        return (0.3 if training else 0.4) * hard + 0.7 * ops.mean(soft)


like_the_shortest("regularizers", regularizers)
like_the_shortest("a_loss_function_of_ones_own", squares, long=True)
like_the_shortest("a_loss_that_reads_a_kernel", reading_a_kernel)
like_the_shortest("summed_loss", lambda: reduced("sum"), long=True)
like_the_shortest("mean_over_weights", lambda: reduced("mean_with_sample_weight"))
like_the_shortest("an_output_with_a_mask", masked)
like_the_shortest("distillation", lambda: {"model": Distilled(), "evaluated": True})


class Waves(keras.Model):
    """A complex output, and one that is None."""

    def __init__(self):
        super().__init__()
        self.real, self.imaginary = layers.Dense(3), layers.Dense(3)

    def call(self, x):
        return {"wave": tf.complex(self.real(x), self.imaginary(x)), "attention": None}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(tf.abs(y_pred["wave"] - 1j) ** 2)


like_the_shortest("complex_outputs", lambda: {"model": Waves(), "metrics": None})


# Metrics


class Largest(keras.metrics.Sum):
    """A metric whose states are not added: the largest output."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(ops.maximum(self.total, ops.max(y_pred)))


def of_one_hot_labels():
    metrics = keras.metrics
    chosen = ["accuracy", metrics.AUC(), metrics.F1Score(), metrics.Precision(), metrics.Recall()]
    chosen += [metrics.TruePositives(), metrics.TopKCategoricalAccuracy(2), Largest()]
    weighted = [metrics.FalseNegatives(), metrics.CategoricalAccuracy(name="weighted")]
    more = {"metrics": chosen, "weighted_metrics": weighted, "evaluated": True}
    more |= {"fit": {"sample_weight": WEIGHTS, "validation_split": 0.3}, "y": ONE_HOT}
    return {"model": dense(activation="softmax"), "loss": "categorical_crossentropy"} | more


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


def counted():
    return {"model": Counted(), "fit": {"sample_weight": WEIGHTS}, "evaluated": True}


like_the_shortest("metrics_of_one_hot_labels", of_one_hot_labels, long=True)
like_the_shortest("metrics_of_ones_own", counted)


# Networks: they draw or normalize each microbatch, or have learned from the data


def drawing():
    between = layers.BatchNormalization(), layers.Dropout(0.5)
    return {"model": dense(*between), "fit": {"validation_split": 0.25}}


def looking_up():
    """After a lookup TensorFlow no longer knows how many examples there are."""
    words = np.array([["a b"], ["b c"], ["c c"], ["a a"]] * 8)
    vectors = layers.TextVectorization(output_sequence_length=2)
    vectors.adapt(words.ravel())
    between = [vectors, layers.Embedding(8, 3), layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((1,), dtype="string"), *between])
    return {"model": model, "x": ops.convert_to_tensor(words), "y": Y[:32]} | sgd(0.5)


def normalizing():
    """Normalization keeps what it learned as variables and as constants."""
    normalization = layers.Normalization()
    normalization.adapt(3 * X + 1)
    model = keras.Sequential([keras.Input((8,)), normalization, layers.Dense(3)])
    return {"model": model, "evaluated": True}


class Embedded(keras.Model):
    """Rows by what is in the examples, by places, and one with which each begins."""

    def __init__(self):
        super().__init__()
        self.words, self.begin = layers.Embedding(8, 4), layers.Embedding(8, 4)
        self.halves, self.places = (self.add_weight(shape=(n, 4)) for n in (2, 8))
        self.last = layers.Dense(3)

    def call(self, x):
        halves = tf.gather(ops.convert_to_tensor(self.halves), tf.where(x > 3, 1, 0))
        begin = self.begin(ops.zeros((ops.shape(x)[0], 1), "int32"))
        places = tf.gather(tf.identity(ops.cast(self.places, "float64")), [0, 1])
        words = self.words(x) + ops.cast(places, "float32") + halves
        return self.last(ops.mean(ops.concatenate([begin, words], axis=1), axis=1))


def embedded():
    """Every microbatch of 8 has the same words."""
    return {"model": Embedded(), "x": np.arange(2 * N).reshape(N, 2) % 8}


like_the_shortest("rows_of_embeddings", embedded)
like_the_shortest("batch_norm_and_dropout", drawing, tolerance=None)
like_the_shortest("words_become_numbers_within_the_model", looking_up)
like_the_shortest("a_layer_has_learned_from_the_data", normalizing)


# What holds for all of them


def named(names, also_long=()):
    long = {name for name in names if PROGRAMS[name].long}.union(also_long)
    return [pytest.param(name, marks=pytest.mark.long if name in long else ()) for name in names]


# One program for each way to add up; `make test-all` asks for the bits of all.
WAYS = {"a_loss_that_reads_a_kernel", "batch_norm_and_dropout", "bfloat16", "metrics_of_ones_own"}
WITH_ORACLE = [name for name, program in PROGRAMS.items() if program.tolerance is not None]


@pytest.mark.parametrize("name", named(WITH_ORACLE))
def test_equals_keras(name):
    program = PROGRAMS[name]
    theirs, ours = (leaves(run(name, k)) for k in (0, 3))
    assert theirs.keys() == ours.keys()
    wrong = {}
    for path, right in theirs.items():
        if any(name in path for name in program.imprecise):
            continue
        try:
            np.testing.assert_allclose(ours[path], right, program.tolerance, program.tolerance)
        except AssertionError as error:
            wrong[path] = str(error)
    assert not wrong, "\n".join(f"{path}: {error}" for path, error in wrong.items())


def test_losses_of_outputs_are_means_over_examples():
    """Keras's own are not, after a ragged batch."""
    x, y, _ = PAIR
    keras.utils.set_random_seed(1)
    model = two_by_two()
    of_keras = model.evaluate(x, y, batch_size=44, verbose=0, return_dict=True)
    towers.distribute(model, 3, microbatch_size=16)
    ours = model.evaluate(x, y, batch_size=44, verbose=0, return_dict=True)
    outputs = model.predict(x, verbose=0)
    kinds = outputs["kind"] - np.log(np.exp(outputs["kind"]).sum(-1, keepdims=True))
    kind = -np.mean(kinds[np.arange(len(kinds)), y["kind"]])
    size = np.mean((outputs["size"] - y["size"]) ** 2)
    result = [ours[name] for name in ("kind_loss", "size_loss", "loss")]
    np.testing.assert_allclose(result, [kind, size, kind + 0.25 * size], 1e-5)
    np.testing.assert_allclose(of_keras["loss"], kind + 0.25 * size, 1e-5)
    assert abs(of_keras["size_loss"] - size) > 1e-3  # else the table can go


@pytest.mark.parametrize("num_towers", [3, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", named(PROGRAMS, PROGRAMS.keys() - WAYS))
def test_bits_do_not_depend_on_towers(name, num_towers):
    one, several = (
        {path: (leaf.dtype, leaf.tobytes()) for path, leaf in leaves(run(name, k)).items()}
        for k in (1, num_towers)
    )
    assert one == several
