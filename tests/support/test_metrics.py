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


def test_an_evaluation_begins_anew():
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

    def all_gather(self, arrays):
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
        (["accuracy", "accuracy"], "metrics: the name 'accuracy' is taken already"),
        (
            [keras.metrics.SparseCategoricalAccuracy(name="loss")],
            "metrics: the name 'loss' is taken",
        ),
        ({"b": ["accuracy"]}, "metrics has 'b', and the model the outputs"),
        ([Largest()], "metrics: the state of 'largest' is no sum over examples"),
        ([OfBatches()], "metrics: the state of 'of_batches' is no sum over examples"),
        ([FromOne()], "metrics: the state of 'from_one' is no sum over examples"),
        ([WithoutWeight()], "metrics: 'largest' takes no sample_weight in update_state"),
        ([keras.metrics.MeanIoU(1)], "metrics: 'mean_io_u.*' cannot be computed of labels int64"),
    ],
)
def test_others_are_refused(metrics, message):
    with pytest.raises((ValueError, TypeError), match=message):
        evaluated(metrics, [toys.batch(4, [3])])


def test_a_mask_is_not_passed_over():
    """Keras leaves masked places out of its metrics."""
    tokens = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(5, 4, mask_zero=True)(tokens)
    run = toys.trainer(
        toys.on_cpu(lambda: keras.Model(tokens, keras.layers.Dense(5)(x))),
        global_batch_size=2,
        loss=lambda labels, outputs: tf.reduce_mean(outputs, axis=[1, 2]),
        metrics=["accuracy"],
    )
    with pytest.raises(ValueError, match="has a Keras mask, which metrics would not heed"):
        run.evaluate([(np.zeros([2, 3], np.int32), np.zeros([2, 3], int))])


def test_none_asked_for_are_none():
    assert evaluated([], [toys.batch(4, [3])]).as_metrics().keys() == {"count", "loss"}
