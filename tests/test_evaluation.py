"""Evaluation against NumPy: each example once, on any number of towers."""

import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf
import toys

from towers import evaluation, losses, worker
from towers.runs import picture

CLASSES = 7
EXAMPLES = 22
PER_BATCH = 8


def identity(classes=CLASSES):
    """A model whose images are its logits."""
    images = keras.Input([classes])
    return keras.Model(images, keras.layers.Identity()(images))


def evaluator(num_towers, classes=CLASSES):
    return evaluation.Evaluator(identity(classes), [], losses.cross_entropy, toys.cpus(num_towers))


@pytest.fixture
def split():
    """Logits and labels; class 3 does not occur."""
    logits, labels = toys.batch(EXAMPLES, [CLASSES], classes=CLASSES - 1, seed=1)
    return logits * 2, np.where(labels >= 3, labels + 1, labels)


def batches(logits, labels, masked):
    for first in range(0, len(labels), PER_BATCH):
        part = slice(first, first + PER_BATCH)
        missing = PER_BATCH - len(labels[part])
        if not masked:
            yield logits[part], labels[part]
            continue
        # What fills the batch up would change every figure if it counted.
        filling = np.full([missing, CLASSES], 50.0, np.float32)
        yield (
            np.concatenate([logits[part], filling]),
            np.concatenate([labels[part], np.full(missing, 5)]),
            np.arange(PER_BATCH) < len(labels[part]),
        )


@pytest.mark.pitfall(12, 13, 26)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_towers", [1, 2, 3, 4])
def test_every_figure_is_numpy_s_over_the_whole_split(split, num_towers, masked):
    logits, labels = split
    result = evaluator(num_towers)(batches(logits, labels, masked))

    ranks = (logits > logits[np.arange(EXAMPLES), labels][:, None]).sum(axis=1)
    confusion = np.zeros([CLASSES, CLASSES])
    for label, row in zip(labels, logits, strict=True):
        confusion[label, row.argmax()] += 1
    assert result.count == EXAMPLES
    assert result.accuracy == (ranks == 0).mean()
    assert result.top5_accuracy == (ranks < 5).mean()
    assert result.loss == pytest.approx(oracle.cross_entropy(logits, labels), rel=1e-6)
    np.testing.assert_array_equal(result.confusion, confusion)
    per_class = [(logits[labels == c].argmax(axis=1) == c).mean() for c in sorted(set(labels))]
    np.testing.assert_array_equal(np.delete(result.per_class_accuracy(), 3), per_class)
    assert np.isnan(result.per_class_accuracy()[3])


@pytest.mark.pitfall(26)
def test_uneven_batches_are_not_a_mean_of_means():
    # Three examples of loss log 2, then one of log 4.
    logits = np.array([[0, 0], [0, 0], [0, 0], [np.log(3), 0]], np.float32)
    labels = np.array([0, 0, 0, 1])
    result = evaluator(2, classes=2)([(logits[:3], labels[:3]), (logits[3:], labels[3:])])
    assert result.loss == pytest.approx((3 * np.log(2) + np.log(4)) / 4, rel=1e-6)
    assert result.accuracy == 0.75
    np.testing.assert_array_equal(result.confusion, [[3, 0], [1, 0]])


@pytest.mark.pitfall(12)
def test_mask_may_leave_out_any_example():
    logits = np.array([[9, 0], [0, 9], [9, 0], [9, 0]], np.float32)
    mask = np.array([True, False, False, True])
    result = evaluator(4, classes=2)([(logits, np.array([0, 0, 1, 1]), mask)])
    assert (result.count, result.accuracy) == (2, 0.5)


class TestWeights:
    """The third element of a batch is a weight, as in training."""

    LOGITS = np.array([[9, 0], [0, 9], [9, 0], [9, 0]], np.float32)  # right, right, wrong, wrong
    LABELS = np.array([0, 1, 1, 1])

    def evaluated(self, weight, labels=LABELS, workers=None):
        made = evaluation.Evaluator(
            identity(2), [], losses.cross_entropy, toys.cpus(2), 2, workers=workers
        )
        return made([(self.LOGITS, labels, weight)])

    @pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.float64, list])
    def test_of_0_and_1_are_a_mask(self, dtype):
        mask = np.array([True, False, True, True])
        expected = self.evaluated(mask)
        assert (expected.count, expected.accuracy, expected.top5_accuracy) == (3, 1 / 3, 1.0)
        found = self.evaluated(mask.tolist() if dtype is list else mask.astype(dtype))
        assert found.confusion.dtype == expected.confusion.dtype == np.int64
        np.testing.assert_array_equal(found.confusion, [[1, 0], [2, 0]])
        for name in ("count", "loss", "accuracy", "top5_accuracy", "of_workers"):
            assert getattr(found, name) == getattr(expected, name)

    def test_by_hand(self):
        found = self.evaluated([0.5, 0.0, 2.0, 1.5])
        right, wrong = np.log1p(np.exp(-9)), np.log1p(np.exp(9))
        assert found.count == 3
        assert found.accuracy == 0.5 / 4
        assert found.loss == pytest.approx((0.5 * right + 3.5 * wrong) / 4, rel=1e-6)
        assert found.confusion.dtype == np.float64
        np.testing.assert_array_equal(found.confusion, [[0.5, 0], [3.5, 0]])
        np.testing.assert_array_equal(found.per_class_accuracy(), [1.0, 0.0])
        assert found.of_workers == ((3, 0.5 / 4),)

    def test_top_five_by_hand(self):
        logits = np.tile(np.arange(7, dtype=np.float32), [2, 1])
        found = evaluator(1)([(logits, np.array([2, 1]), [3.0, 1.0])])
        assert (found.accuracy, found.top5_accuracy) == (0.0, 0.75)

    def test_a_weight_of_3_is_the_example_three_times(self):
        repeated = np.repeat(np.arange(4), [3, 1, 2, 2])
        expected = evaluator(1, 2)([(self.LOGITS[repeated], self.LABELS[repeated])])
        found = self.evaluated([3, 1, 2, 2])
        assert (found.accuracy, found.count) == (expected.accuracy, 4)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        np.testing.assert_array_equal(found.confusion, expected.confusion)

    def test_travel_between_workers(self):
        class Two(worker.SingleWorker):
            count = 2

            def all_gather(self, what, arrays):
                sizes, _, *others = arrays
                return [arrays, [sizes, np.array([0, 0, 1.0, 0]), *others]]

        found = self.evaluated([0.5, 0, 2.0, 1.5], workers=Two())
        assert found.of_workers == ((3, 0.5 / 4), (1, 0.0))
        assert (found.count, found.accuracy) == (4, 0.5 / 5)

    @pytest.mark.parametrize(
        "weight, message",
        [
            ([1, 1, 1], r"sample_weight of shape \[3\]: must be one weight per example, \[4\]"),
            ([[1], [1], [1], [1]], r"sample_weight of shape \[4, 1\]"),
            ([1, 1, -1, 1], "every weight must be finite and at least 0"),
            ([1, 1, np.nan, 1], "every weight must be finite and at least 0"),
            (np.zeros(4), "there is no example to evaluate"),
        ],
    )
    def test_that_are_none_are_refused(self, weight, message):
        with pytest.raises(ValueError, match=message):
            self.evaluated(weight)


def test_fewer_classes_than_five_are_all_in_the_top_five():
    result = evaluator(1, classes=2)([(np.array([[9, 0]], np.float32), np.array([1]))])
    assert (result.accuracy, result.top5_accuracy) == (0.0, 1.0)


@pytest.mark.parametrize(
    "empty", [[], [(np.zeros([2, 7], np.float32), np.zeros(2, int), [False] * 2)]]
)
def test_no_example_is_refused(empty):
    with pytest.raises(ValueError, match="there is no example to evaluate"):
        evaluator(2)(empty)


@pytest.mark.pitfall(13)
def test_metrics_have_the_names_of_what_they_are():
    result = evaluator(1, classes=2)([(np.zeros([1, 2], np.float32), np.zeros(1, int))])
    assert result.as_metrics() == {
        "count": 1,
        "accuracy": 1.0,
        "top5_accuracy": 1.0,
        "loss": pytest.approx(np.log(2)),
    }


def test_given_weights_are_evaluated_and_not_the_model_s_own():
    model = toys.beside_zero(toys.linear(5.0))
    given = [tf.Variable([[2.0]])]
    result = evaluation.Evaluator(model, given, toys.output_itself, toys.cpus(2))(
        [(toys.column(1.0, 4.0), np.zeros(2, int))]
    )
    assert result.loss == 5.0
    assert model.get_weights()[0] == 5.0


def test_dropout_is_off_and_keras_gives_the_same_figures():
    model = toys.on_cpu(
        lambda: keras.Sequential(
            [toys.classifier(), keras.layers.Dropout(0.9), keras.layers.BatchNormalization()]
        )
    )
    images, labels = toys.batch(6, [3])
    uncompiled = toys.on_cpu(lambda: keras.models.clone_model(model))
    uncompiled.set_weights(model.get_weights())
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    loss, accuracy = model.evaluate(images, labels, verbose=0)
    run = toys.trainer(uncompiled, num_towers=2, global_batch_size=2)
    before = run.state.sha256()
    result = run.evaluate([(images[:4], labels[:4]), (images[4:], labels[4:])])
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.accuracy == pytest.approx(accuracy, rel=1e-6)
    assert run.state.sha256() == before


class ShapesSeen(keras.layers.Layer):
    """Passes its input on, and keeps its shape each time it is traced."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        self.seen.append(tuple(x.shape))
        return x


@pytest.mark.parametrize("num_towers", [1, 2, 3, 4])
@pytest.mark.parametrize("num_microbatches, n, expected", [(4, 8, 2), (4, 6, 2), (1, 8, 8)])
def test_what_an_operation_sees_does_not_depend_on_towers(
    num_towers, num_microbatches, n, expected
):
    layer = ShapesSeen()
    images = keras.Input([CLASSES])
    model = keras.Model(images, layer(images))
    layer.seen.clear()
    logits, labels = toys.batch(n, [CLASSES], classes=CLASSES)
    result = evaluation.Evaluator(
        model, [], losses.cross_entropy, toys.cpus(num_towers), num_microbatches
    )([(logits, labels)])
    assert layer.seen == [(expected, CLASSES)]  # traced once, for all microbatches
    assert result.count == n
    assert result.loss == pytest.approx(oracle.cross_entropy(logits, labels), rel=1e-6)


def test_a_trainer_evaluates_in_its_microbatches():
    layer = ShapesSeen()
    images = keras.Input([CLASSES])
    run = toys.trainer(
        keras.Model(images, layer(images)), global_batch_size=8, num_microbatches=4, num_towers=2
    )
    layer.seen.clear()
    run.evaluate([toys.batch(8, [CLASSES], classes=CLASSES)])
    assert layer.seen == [(2, CLASSES)]


@pytest.mark.parametrize(
    "num_towers, num_microbatches, parts_of_each",
    [(2, 4, [2, 2]), (3, 4, [2, 1, 1]), (4, 2, [1, 0, 1, 0]), (2, 1, [1, 0])],
)
def test_microbatches_are_spread_over_the_towers(num_towers, num_microbatches, parts_of_each):
    made = evaluation.Evaluator(
        identity(), [], losses.cross_entropy, toys.cpus(num_towers), num_microbatches
    )
    graph = made._batch_outputs.get_concrete_function(
        tf.zeros([8, CLASSES]), tf.zeros([8], tf.int64)
    ).graph
    operations = picture.of_graph(graph).node
    counts = [
        sum(op.op == "ArgMax" and op.name.startswith(f"tower_{tower}/") for op in operations)
        for tower in range(num_towers)
    ]
    assert counts == parts_of_each


def test_the_loss_is_the_same_to_the_last_bit_on_any_number_of_towers():
    results = set()
    for num_towers in (1, 2, 3, 4):
        run = evaluation.Evaluator(
            model := toys.small_cifarnet(),
            [weight.value for weight in model.trainable_variables],
            losses.cross_entropy,
            toys.cpus(num_towers),
            num_microbatches=4,
        )
        result = run([toys.batch(32, seed=0), toys.batch(30, seed=1)])
        results.add((result.count, result.loss, result.accuracy, result.confusion.tobytes()))
    assert len(results) == 1


def test_towers_evaluate_on_their_own_devices():
    graph = (
        evaluation.Evaluator(identity(), [], losses.cross_entropy, toys.cpus(2), num_microbatches=2)
        ._batch_outputs.get_concrete_function(tf.zeros([4, CLASSES]), tf.zeros([4], tf.int64))
        .graph
    )
    for tower in range(2):
        operations = picture.of_graph(graph).node
        placed = {op.device for op in operations if op.name.startswith(f"tower_{tower}/")}
        assert placed == {f"/device:CPU:{tower}"}


def test_a_flip_at_test_time_takes_the_mean_of_two_logits():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, 2, 5, 1)).astype(np.float32)
    kernel = rng.normal(size=(10, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 0, 1, 2])
    model = keras.Sequential([keras.Input((2, 5, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3, use_bias=False))
    model.set_weights([kernel])
    weights = [weight.value for weight in model.trainable_variables]
    flips = evaluation.Evaluator(
        model, weights, losses.cross_entropy, toys.cpus(2), 2, test_time_flip=True
    )
    plain, mirrored = (x.reshape(6, 10) @ kernel for x in (images, images[:, :, ::-1]))
    result = flips([(images, labels)])
    logits = (plain + mirrored) / 2
    assert result.loss == pytest.approx(oracle.cross_entropy(logits, labels), rel=1e-5)
    assert result.accuracy == (logits.argmax(axis=1) == labels).mean()
    assert result.loss != pytest.approx(oracle.cross_entropy(plain, labels), rel=1e-3)
