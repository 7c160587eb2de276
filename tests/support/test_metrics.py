"""Keras metrics over microbatches, and those that are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import evaluation, worker


class Largest(keras.metrics.Metric):
    """The largest output: a state that is no sum."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

    def result(self):
        return self.value


class OfBatches(keras.metrics.Metric):
    """The mean over batches of each one's largest output: a sum, but not one over examples."""

    def __init__(self):
        super().__init__(name="of_batches")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_max(y_pred))

    def result(self):
        return self.total


class OfFilling(keras.metrics.Metric):
    """The mean of the outputs, weight or no weight."""

    def __init__(self):
        super().__init__(name="of_filling")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y_pred[:, 0]))
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def result(self):
        return self.total / self.count


class FromOne(Largest):
    def __init__(self):
        super().__init__("from_one")
        self.one = self.add_weight(name="one", initializer="ones")


class WithoutWeight(Largest):
    def update_state(self, y_true, y_pred):
        pass


def evaluated(metrics, batches, num_towers=2, loss="sparse_categorical_crossentropy"):
    run = toys.trainer(
        toys.classifier(),
        global_batch_size=4,
        num_towers=num_towers,
        metrics=metrics,
        loss=loss,
    )
    return run.evaluate(batches)


@pytest.mark.parametrize("num_towers", [1, 2, 4])
def test_what_has_weight_0_leaves_no_trace(num_towers):
    images, labels = toys.batch(7, [3])
    metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    images[5] = np.nan
    weight = np.array([1, 2, 0.5, 1, 1, 0, 0])
    found = evaluated(metrics, [(images, labels, weight)], num_towers).metrics
    logits = toys.classifier()(images[:5]).numpy()
    assert found["accuracy"] == pytest.approx(
        (weight[:5] * (logits.argmax(axis=1) == labels[:5])).sum() / weight.sum()
    )
    loss = keras.losses.sparse_categorical_crossentropy(labels[:5], logits, from_logits=True)
    expected = (weight[:5] * loss.numpy()).sum() / weight.sum()
    assert found["sparse_categorical_crossentropy"] == pytest.approx(expected, rel=1e-6)


def test_an_evaluation_starts_over():
    batches = [toys.batch(6, [3])]
    run = toys.trainer(toys.classifier(), global_batch_size=2, metrics=["accuracy"])
    assert run.evaluate(batches) == run.evaluate(batches)


def test_a_function_is_the_mean_of_its_values():
    def first_output(labels, outputs):
        return outputs[:, 0]

    images, labels = toys.batch(5, [3])
    result = evaluated([first_output], [(images, labels)])
    expected = toys.classifier()(images).numpy()[:, 0].mean()
    assert result.metrics == {"first_output": pytest.approx(expected, rel=1e-6)}
    assert result.confusion is None


def test_a_metric_of_many_values_is_a_list():
    result = evaluated(
        [keras.metrics.F1Score(name="f1")], [one_hot(8)], loss="categorical_crossentropy"
    )
    assert len(result.metrics["f1"]) == toys.CLASSES


class Half(worker.SingleWorker):
    """One of two workers; `theirs` is what the other one gathers, call by call."""

    count = 2

    def __init__(self, theirs=()):
        super().__init__()
        self.own, self._theirs = [], list(theirs)

    def all_gather(self, what, arrays):
        self.own.append(arrays)
        return [arrays, self._theirs.pop(0) if self._theirs else arrays]


def test_the_bits_do_not_depend_on_the_number_of_workers():
    images, labels = toys.batch(24, [3])
    batches = [(images[:16], labels[:16]), (images[16:], labels[16:])]
    metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]

    def of(workers, num_microbatches, own):
        made = evaluation.Evaluator(
            model := toys.classifier(),
            [weight.value for weight in model.trainable_variables],
            "sparse_categorical_crossentropy",
            toys.cpus(2),
            num_microbatches,
            workers=workers,
            metrics=metrics,
        )
        return made([(x[own(len(x))], y[own(len(x))]) for x, y in batches])

    alone = of(None, 4, lambda n: slice(None))
    second = Half()
    of(second, 2, lambda n: slice(n // 2, None))
    together = of(Half(second.own), 2, lambda n: slice(0, n // 2))
    assert together == alone
    assert together.count == 24


def one_hot(n):
    images, labels = toys.batch(n, [3])
    return images, np.eye(toys.CLASSES, dtype=np.float32)[labels]


@pytest.mark.parametrize(
    "metrics, message",
    [
        (0.5, "metrics is 0.5: must be a list of metrics"),
        ("accuracy", "metrics is 'accuracy': must be a list of metrics"),
        (["accurracy"], "metrics: Keras has no metric 'accurracy'"),
        ([keras.metrics.Mean], "metrics has the class Mean: must be"),
        ([None], "metrics has None: must be"),
        (["accuracy", "accuracy"], "metrics: the name 'accuracy' is already taken"),
        (
            lambda: [keras.metrics.SparseCategoricalAccuracy(name="loss")],
            "metrics: the name 'loss' is already taken",
        ),
        (
            lambda: [keras.metrics.SparseCategoricalAccuracy(name="step")],
            "metrics: the name 'step' is already taken",
        ),
        ({"b": ["accuracy"]}, "metrics has 'b': must be one of the model's outputs"),
        (lambda: [Largest()], "metrics: the state of 'largest' is not a sum over examples"),
        (lambda: [OfBatches()], "metrics: the state of 'of_batches' is not a sum over examples"),
        (
            lambda: [OfFilling()],
            "metrics: 'of_filling' counts examples of sample_weight 0, and with them",
        ),
        (
            # The number of examples is in its formula.
            lambda: [keras.metrics.R2Score(num_regressors=2)],
            "metrics: 'r2_score' counts examples of sample_weight 0",
        ),
        ([["accuracy"], ["accuracy"]], "metrics is a list of 2, and the model has 1 output, 'l"),
        (lambda: [FromOne()], "metrics: the state of 'from_one' is not a sum over examples"),
        (lambda: [WithoutWeight()], "metrics: 'largest' must take sample_weight in update_state"),
        (
            lambda: [keras.metrics.MeanIoU(1)],
            "metrics: 'mean_io_u.*' cannot be computed from labels int6",
        ),
    ],
)
def test_others_are_refused(metrics, message):
    metrics = metrics() if callable(metrics) else metrics
    batch = one_hot(4) if "r2" in message else toys.batch(4, [3])
    loss = "categorical_crossentropy" if "r2" in message else "sparse_categorical_crossentropy"
    with pytest.raises((ValueError, TypeError), match=message):
        evaluated(metrics, [batch], loss=loss)


def test_a_mask_is_not_skipped():
    """Keras leaves masked places out of its metrics."""
    tokens = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(5, 4, mask_zero=True)(tokens)
    run = toys.trainer(
        toys.on_cpu(lambda: keras.Model(tokens, keras.layers.Dense(5)(x))),
        global_batch_size=2,
        loss=lambda labels, outputs: tf.reduce_mean(outputs, axis=[1, 2]),
        metrics=["accuracy"],
    )
    with pytest.raises(ValueError, match="has a Keras mask, which metrics would ignore"):
        run.evaluate([(np.zeros([2, 3], np.int32), np.zeros([2, 3], int))])


def test_none_asked_for_are_none():
    assert evaluated([], [toys.batch(4, [3])]).as_metrics().keys() == {"count", "loss"}


@pytest.mark.parametrize("num_towers", [1, 2])
@pytest.mark.parametrize("n", [3, 5])
def test_filling_is_not_divided_by(n, num_towers):
    """An error relative to a label of 0 would be NaN, and 0 times NaN is NaN."""

    def relative(labels, outputs):
        return keras.ops.abs(labels - outputs)[:, 0] / keras.ops.abs(labels)[:, 0]

    run = toys.trainer(
        toys.linear(1.0),
        global_batch_size=4,
        num_microbatches=4,
        num_towers=num_towers,
        loss="mse",
        metrics=[relative, keras.metrics.CosineSimilarity(name="cosine")],
    )
    inputs = toys.column(*range(2, n + 2))
    labels = 2 * inputs
    labels[0] = 0
    weight = np.array([0] + [1] * (n - 1))  # the first example, which filling repeats, counts not
    found = run.evaluate([(inputs, labels, weight)]).metrics
    assert found == {"relative": 0.5, "cosine": pytest.approx(1)}


class Values(keras.metrics.Metric):
    """The sum of the outputs, under two names."""

    def __init__(self, name, names=("sum", "twice")):
        super().__init__(name=name)
        self.names, self.total = names, self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y_pred[:, 0] * sample_weight))

    def result(self):
        return {self.names[0]: self.total, self.names[1]: 2 * self.total}


def of_two_outputs(metrics):
    inputs = keras.Input((1,))
    ones = [keras.layers.Dense(1, name=n, kernel_initializer="ones")(inputs) for n in "ba"]
    model = keras.Model(inputs, dict(zip("ba", ones, strict=True)))
    run = toys.trainer(model, global_batch_size=2, loss={"a": "mse", "b": "mse"}, metrics=metrics)
    inputs = toys.column(1.0, 2.0)
    return run.evaluate([(inputs, {"a": inputs, "b": inputs + 1})]).metrics


def test_values_of_several_outputs_have_names_of_their_own():
    found = of_two_outputs({"b": [Values("x"), "mae"], "a": ["mae", Values("y")]})
    of_values = {"b_sum": 3, "b_twice": 6, "a_sum": 3, "a_twice": 6}
    assert found == of_values | {"b_mae": 1, "a_mae": 0}
    assert of_two_outputs({"b": None, "a": "mae"}) == {"a_mae": 0}


def test_values_of_one_name_are_refused():
    with pytest.raises(ValueError, match="the name 'a_sum' is already taken"):
        of_two_outputs({"a": [Values("x"), Values("y", ["sum", "other"])]})
    run = toys.trainer(toys.linear(1.0), global_batch_size=2, loss="mse", metrics=[Values("x")])
    run.evaluate([(toys.column(1.0, 2.0),) * 2])
    named = [Values("x", ["loss", "other"])]
    run = toys.trainer(toys.linear(1.0), global_batch_size=2, loss="mse", metrics=named)
    with pytest.raises(ValueError, match="the name 'loss' is already taken"):
        run.evaluate([(toys.column(1.0, 2.0),) * 2])


@pytest.mark.filterwarnings("error::UserWarning")  # Keras's, of weights that it rounds
def test_a_metric_that_counts_in_whole_numbers_takes_no_fractions():
    model = keras.Sequential([keras.Input((2, 2)), keras.layers.Activation("linear")])
    run = toys.trainer(
        toys.on_cpu(lambda: model),
        global_batch_size=2,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False, name="iou")],
    )
    logits = np.array([[[1, 0], [0, 1]], [[1, 0], [1, 0]]], np.float32)
    labels = np.array([[0, 1], [0, 1]])  # 3 of 4 right: of class 0 2 of 3, of class 1 1 of 2
    assert run.evaluate([(logits, labels, [1, 1])]).metrics["iou"] == pytest.approx(7 / 12)
    assert run.evaluate([(logits, labels, [2, 0])]).metrics["iou"] == 1
    with pytest.raises(ValueError, match="sample_weight has 0.5, but the metric 'iou' counts in w"):
        run.evaluate([(logits, labels, [0.5, 0.5])])


@pytest.mark.parametrize(
    "name, metric",
    [
        ("accuracy", "accuracy"),
        pytest.param("binary_accuracy", "binary_accuracy", marks=pytest.mark.long),
        pytest.param("mae", "mae", marks=pytest.mark.long),
        ("auc", lambda: keras.metrics.AUC(name="auc")),
        pytest.param(
            "precision", lambda: keras.metrics.Precision(name="precision"), marks=pytest.mark.long
        ),
        ("per_image", lambda: per_image),
    ],
)
@pytest.mark.parametrize("axis_less", [pytest.param(False, marks=pytest.mark.long), True])
def test_of_images_agree_with_keras(name, metric, axis_less):
    """Labels [n, 2, 2, 1] and [n, 2, 2], with 7 examples in batches that are filled up."""
    made = (lambda: metric) if isinstance(metric, str) else metric
    rng = np.random.default_rng(0)
    outputs = rng.uniform(size=(7, 2, 2, 1)).astype(np.float32)
    labels = rng.integers(2, size=(7, 2, 2) if axis_less else (7, 2, 2, 1)).astype(np.float32)
    layers = [keras.Input((2, 2, 1)), keras.layers.Activation("linear")]
    model = toys.on_cpu(lambda: keras.Sequential(layers))
    loss = "binary_crossentropy"
    run = toys.trainer(
        model, global_batch_size=4, num_towers=2, num_microbatches=4, loss=loss, metrics=[made()]
    )
    found = run.evaluate([(outputs[:4], labels[:4]), (outputs[4:], labels[4:])])
    again = keras.models.clone_model(model)
    again.compile(loss=loss, metrics=[made()])
    expected = again.evaluate(outputs, labels, verbose=0, return_dict=True, batch_size=7)
    (value,) = found.metrics.values()
    (other,) = (value for key, value in expected.items() if key != "loss")
    assert value == pytest.approx(other, rel=1e-5)
    assert found.loss == pytest.approx(expected["loss"], rel=1e-5)


def per_image(labels, outputs):
    labels = keras.ops.reshape(labels, [-1, 4])
    return keras.ops.mean(keras.ops.abs(labels - keras.ops.reshape(outputs, [-1, 4])), axis=1)


def test_the_short_name_of_the_accuracy_is_one():
    found = toys.trainer(toys.classifier(), global_batch_size=4, metrics=["acc"])
    assert set(found.evaluate([toys.batch(4, [3])]).metrics) == {"acc"}
