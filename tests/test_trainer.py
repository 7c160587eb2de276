"""The Trainer: its update beside Keras's, fit, and errors by message."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import devices, losses


@pytest.fixture(autouse=True)
def same_initial_weights_every_time():
    keras.utils.set_random_seed(0)


class Subclassed(keras.Model):
    """A model without a graph of layers, with a residual connection and a regularizer."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3, activation="relu", kernel_regularizer="l2")
        self.norm = keras.layers.BatchNormalization()
        self.last = keras.layers.Dense(toys.CLASSES)

    def call(self, images, training=None):
        return self.last(self.norm(images + self.first(images), training=training))


class WithoutTraining(Subclassed):
    """Its layers learn from its call whether they train, as is usual in Keras."""

    def call(self, images, training=None):
        return self.last(self.norm(images + self.first(images)))


class WithOwnWeight(keras.Model):
    """A weight and an input that Keras converts to the type that the model computes in."""

    def __init__(self):
        super().__init__(dtype="mixed_bfloat16")
        # Without a bias, whose gradient in bfloat16 is more precise than Keras's.
        self.first = keras.layers.Dense(3, dtype="mixed_bfloat16", use_bias=False)
        self.scale = self.add_weight(shape=(3,), initializer="ones", name="scale")
        self.last = keras.layers.Dense(toys.CLASSES, dtype="float32")

    def call(self, images):
        return self.last(tf.multiply(images + self.first(images), self.scale))


def regularized_layer_called_twice():
    images = keras.Input([3])
    shared = keras.layers.Dense(3, activation="tanh", activity_regularizer="l2")
    return keras.Model(images, keras.layers.Dense(toys.CLASSES)(shared(shared(images))))


def shared_layer_model():
    images = keras.Input([3])
    shared = keras.layers.Dense(3, activation="tanh")
    return keras.Model(images, keras.layers.Dense(toys.CLASSES)(shared(shared(images))))


def nested_model():
    return keras.Sequential([toys.classifier(hidden=6), keras.layers.Dense(toys.CLASSES)])


@pytest.mark.pitfall(33)
@pytest.mark.parametrize(
    "build",
    [
        Subclassed,
        WithoutTraining,
        WithOwnWeight,
        regularized_layer_called_twice,
        shared_layer_model,
        nested_model,
    ],
)
def test_any_keras_model_trains_as_keras_trains_it(build):
    batches = [toys.batch(8, [3], seed=step) for step in range(5)]
    model, keras_s = toys.on_cpu(build), toys.on_cpu(build)
    for copy in (model, keras_s):
        copy(batches[0][0])  # builds a subclassed model
    keras_s.set_weights(model.get_weights())
    keras_s.compile(
        keras.optimizers.SGD(0.5, momentum=0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    # One microbatch: Keras's batch norm sees the whole batch.
    run = toys.trainer(model, keras.optimizers.SGD(0.5, momentum=0.5), global_batch_size=8)
    losses_of_run = run.fit(batches)
    keras_s_losses = [keras_s.train_on_batch(*batch) for batch in batches]
    assert losses_of_run[0] == pytest.approx(keras_s_losses[0], rel=1e-5)
    for mine, theirs in zip(model.get_weights(), keras_s.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.pitfall(33)
def test_a_shared_layer_has_one_gradient_the_sum_of_its_uses():
    images = keras.Input([1])
    shared = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    run = toys.trainer(
        toys.on_cpu(lambda: keras.Model(images, shared(shared(images)))),
        num_towers=2,
        global_batch_size=2,
        loss=toys.output_itself,
    )
    (gradient,) = run.train_step(toys.column(1.0, 3.0), [0, 0]).gradients
    assert gradient.numpy() == 2 * 2.0  # of w * w * x at w = 1


@pytest.mark.pitfall(20)
@pytest.mark.parametrize("num_towers", [1, 2, 4])
def test_a_model_s_own_regularizer_is_a_term_and_counts_once(num_towers):
    model = toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.Dense(
                    1,
                    use_bias=False,
                    kernel_initializer="ones",
                    kernel_regularizer=keras.regularizers.L2(0.25),
                ),
            ]
        )
    )
    run = toys.trainer(model, num_towers=num_towers, global_batch_size=4, loss=toys.output_itself)
    result = run.train_step(toys.column(2, 2, 2, 2), [0] * 4)
    assert list(result.losses) == ["output_itself", "model", "total"]
    assert set(result.losses["model"].numpy()) == {0.25}
    assert set(result.losses["total"].numpy()) == {2.25}
    assert result.gradients[0].numpy() == 2.0 + 2 * 0.25


def line_run(**arguments):
    return toys.trainer(toys.linear(1.0), global_batch_size=2, loss=toys.output_itself, **arguments)


LINE_BATCH = (toys.column(1.0, 1.0), np.zeros(2, np.int64))  # the gradient is 1


def test_rate_is_the_optimizer_s_own_where_none_is_given():
    run = line_run()
    run.train_step(*LINE_BATCH)
    assert run.state.model.get_weights()[0] == 1.0 - 0.5
    run.state.optimizer.learning_rate = 0.25
    run.train_step(*LINE_BATCH)
    assert run.state.model.get_weights()[0] == 1.0 - 0.5 - 0.25


def test_rate_is_asked_for_with_the_examples_seen_before_the_update():
    asked = []

    def rate(examples_seen):
        asked.append(examples_seen)
        return {0: 0.125, 2: 0.25}[examples_seen]

    run = line_run(learning_rate=rate)
    run.fit([LINE_BATCH] * 2)
    assert asked == [0, 2]
    assert run.state.model.get_weights()[0] == 1.0 - 0.125 - 0.25


FALLING = [1.0, 0.5, 0.0]  # w before each update, which is the loss at x = 1


@pytest.mark.parametrize(
    "steps, expected", [(None, FALLING), (2, FALLING[:2]), (9, FALLING), (0, [])]
)
@pytest.mark.parametrize("kind", ["list", "dataset", "generator"])
def test_fit_stops_after_its_steps_or_with_the_last_batch(kind, steps, expected):
    batches = [LINE_BATCH] * 3
    if kind == "dataset":
        batches = tf.data.Dataset.from_tensors(LINE_BATCH).repeat(3)
    if kind == "generator":
        batches = iter(batches)
    run = line_run()
    assert run.fit(batches, steps) == expected
    assert run.state.step.numpy() == len(expected)


def test_fit_takes_no_batch_too_many_from_an_endless_source():
    taken = []
    run = line_run()
    run.fit((taken.append(n) or LINE_BATCH for n in itertools.count()), steps=2)
    run.fit((taken.append(n) or LINE_BATCH for n in itertools.count(2)), steps=1)
    assert taken == [0, 1, 2]


def test_step_is_traced_once_for_all_rates():
    traced = []

    def loss_fn(labels, outputs):
        traced.append(1)
        return outputs[:, 0]

    run = toys.trainer(
        toys.linear(1.0),
        num_towers=2,
        global_batch_size=2,
        loss=loss_fn,
        learning_rate=lambda examples_seen: 1 / (1 + examples_seen),
    )
    run.fit([LINE_BATCH] * 4)
    assert len(traced) == 1


@pytest.mark.pitfall(26)
@pytest.mark.parametrize("examples", [1, 3, 0])
def test_a_batch_that_is_not_full_is_refused(examples):
    message = f"a batch of {examples} examples: every training batch must have global_batch_size=2"
    run = line_run(num_towers=2)
    with pytest.raises(ValueError, match=message):
        run.train_step(np.ones([examples, 1], np.float32), np.zeros(examples, np.int64))
    assert run.state.step.numpy() == 0


def weighted_run(num_towers, global_batch_size, num_microbatches, reduction="mean"):
    return toys.trainer(
        toys.small_cifarnet("float64"),
        keras.optimizers.SGD(0.5),
        num_towers=num_towers,
        global_batch_size=global_batch_size,
        num_microbatches=num_microbatches,
        weight_decay=0.25,
        gradient_reduction=reduction,
    )


def gradients_of(result):
    return [gradient.numpy() for gradient in result.gradients]


@pytest.mark.pitfall(26)
@pytest.mark.parametrize("num_towers", [1, pytest.param(2, marks=pytest.mark.long), 4])
def test_examples_of_weight_0_leave_no_trace(num_towers):
    # Five of eight examples; on four towers the last one has none that counts.
    images, labels = toys.batch(8)
    weight = np.array([1, 1, 0, 1, 1, 1, 0, 0], np.float32)
    kept = weight > 0
    result = weighted_run(num_towers, 8, 4).train_step(images, labels, weight)
    alone = weighted_run(1, 5, 1).train_step(images[kept], labels[kept])
    for gradient, expected in zip(gradients_of(result), gradients_of(alone), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(result.weights, [2, 1, 2, 0])
    assert int(sum(result.correct)) == int(sum(alone.correct))
    loss = losses.mean(result.losses["cross_entropy"], result.weights)
    assert loss.numpy() == pytest.approx(alone.losses["cross_entropy"].numpy()[0], rel=1e-6)


@pytest.mark.parametrize("num_towers", [pytest.param(1, marks=pytest.mark.long), 4])
def test_a_weight_of_3_is_the_example_three_times(num_towers):
    images, labels = toys.batch(4)
    weighted = weighted_run(num_towers, 4, 4).train_step(images, labels, [3, 1, 2, 2])
    repeated = np.repeat(np.arange(4), [3, 1, 2, 2])
    expected = weighted_run(1, 8, 1).train_step(images[repeated], labels[repeated])
    for mine, other in zip(gradients_of(weighted), gradients_of(expected), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-12)


@pytest.mark.pitfall(22)
def test_weights_of_1_change_nothing_and_sum_stays_microbatches_times_mean():
    images, labels = toys.batch(8)
    for reduction in ("mean", "sum"):
        plain = weighted_run(2, 8, 4, reduction).train_step(images, labels)
        weighted = weighted_run(2, 8, 4, reduction).train_step(images, labels, np.ones(8))
        assert plain.weights is None
        for mine, other in zip(gradients_of(weighted), gradients_of(plain), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-15)


def test_a_batch_of_no_weight_changes_nothing_under_sgd():
    run = weighted_run(2, 4, 2)
    before = run.state.model.get_weights()
    assert run.fit([(*toys.batch(4), np.zeros(4))]) == [0.0]
    for now, then in zip(run.state.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    "weight, message",
    [
        (
            np.ones([4, 1]),
            r"sample_weight of shape \[4, 1\]: must be .*\[4\], for global_batch_size=4",
        ),
        (np.ones(2), r"sample_weight of shape \[2\]"),
        (1.0, r"sample_weight of shape \[\]"),
        ([1, 1, -1, 1], "every weight must be finite and at least 0"),
        ([1, 1, np.nan, 1], "every weight must be finite and at least 0"),
    ],
)
def test_wrong_weights_are_refused(weight, message):
    run = weighted_run(2, 4, 2)
    with pytest.raises(ValueError, match=message):
        run.train_step(*toys.batch(4), weight)
    assert run.state.step.numpy() == 0


def test_the_hash_covers_all_that_a_checkpoint_holds():
    run = weighted_run(1, 4, 2)
    hashes = {run.state.sha256()}
    variables = [*run.state.model.variables, *run.state.optimizer.variables]
    values = [variable.value for variable in variables]
    for variable in [*values, run.state.step, run.state.examples_seen]:
        variable.assign_add(tf.ones_like(variable))
        hashes.add(run.state.sha256())
    assert len(hashes) == len(values) + 3


def test_fit_s_loss_is_weighted_over_the_microbatches():
    run = line_run(num_towers=2, num_microbatches=2)
    # Outputs 1 of weight 1 and 5 of weight 3: (1 + 15) / 4.
    assert run.fit([(toys.column(1.0, 5.0), [0, 0], [1.0, 3.0])]) == [4.0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"global_batch_size": 0}, "global_batch_size=0: must be at least 1"),
        ({"num_microbatches": 3}, "global_batch_size=8: must be divisible by num_microbatches=3"),
        ({"num_microbatches": 1}, "num_towers=2: must be at most num_microbatches=1, because"),
        ({"num_microbatches": -2}, "num_microbatches=-2: must be at least 1"),
        (
            {"num_microbatches": 16},
            "global_batch_size=8: must be divisible by num_microbatches=16",
        ),
        ({"global_batch_size": 9}, "global_batch_size=9: must be divisible by num_microbatches=2"),
        ({"weight_filter": "biases"}, "weight_filter='biases': must be one of kernels, hidden"),
        ({"gradient_reduction": "max"}, "gradient_reduction='max': must be one of mean, sum"),
        (
            {"batch_norm_statistics": "both"},
            "batch_norm_statistics='both': must be one of mean, first, last, each",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        toys.trainer(toys.linear(1.0), num_towers=2, **{"global_batch_size": 8} | arguments)


@pytest.mark.parametrize("num_towers", [1, 3])
def test_microbatches_default_to_a_rule_without_towers(num_towers):
    run = toys.trainer(
        toys.linear(1.0), num_towers=num_towers, global_batch_size=24, num_microbatches=0
    )
    assert run.num_microbatches == 8


def test_more_towers_than_microbatches_are_refused():
    with pytest.raises(ValueError, match="num_towers=3: must be at most num_microbatches=2, bec"):
        toys.trainer(toys.linear(1.0), num_towers=3, global_batch_size=4, num_microbatches=2)


def test_variables_that_lie_elsewhere_are_told_of(caplog):
    with tf.device("/CPU:2"):  # as the first GPU would be, where nothing else is said
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    given = {"global_batch_size": 4, "num_microbatches": 2}
    toys.trainer(model, optimizer, **given)
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("towers")]
    # Two weights, a slot for each, which lies beside it, and the optimizer's counter and rate.
    assert line.startswith("6 variables (optimizer, weights) are on CPU:2, and each step copies")
    caplog.clear()
    with tf.device(devices.HOST):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    toys.trainer(model, optimizer, **given)
    assert not [record for record in caplog.records if record.name.startswith("towers")]


class AddsLossOfEach(keras.layers.Layer):
    def call(self, images):
        self.add_loss(keras.ops.mean(keras.ops.square(images), axis=-1))
        return images


class AssignsRaw(keras.layers.Layer):
    """Counts in a variable of TensorFlow's, which Keras does not know."""

    def build(self, shape):
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, images):
        self.calls.assign_add(1.0)
        return images


def recurrent(stateful):
    return keras.Sequential(
        [
            keras.Input(batch_shape=(8, 1)),
            keras.layers.Reshape((1, 1)),
            keras.layers.GRU(2, stateful=stateful),
            keras.layers.Dense(1),
        ]
    )


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (AddsLossOfEach, r"adds a loss of shape \(8,\).*must be one number, such as the mean"),
        (AssignsRaw, "assigns a tf.Variable when it is called"),
        (
            lambda: keras.layers.SpectralNormalization(keras.layers.Dense(1)),
            "assigns its trainable weight .*kernel when it is called, as SpectralNormalization",
        ),
    ],
)
def test_what_a_call_changes_and_no_step_would_keep_is_refused(layer, message):
    model = toys.on_cpu(
        lambda: keras.Sequential([keras.Input([1]), layer(), keras.layers.Dense(1)])
    )
    run = toys.trainer(model, global_batch_size=8, loss=toys.output_itself)
    with pytest.raises(ValueError, match=message):
        run.train_step(np.ones([8, 1], np.float32), np.ones([8, 1], np.float32))


def test_a_stateful_layer_is_refused_and_others_are_not():
    for stateful in (False, True):
        run = toys.trainer(
            toys.on_cpu(lambda s=stateful: recurrent(s)),
            global_batch_size=8,
            loss=toys.output_itself,
        )
        batch = np.ones([8, 1], np.float32), np.ones([8, 1], np.float32)
        if stateful:
            with pytest.raises(
                ValueError, match="not among model.variables, .*the layer gru.* is stateful"
            ):
                run.train_step(*batch)
        else:
            run.train_step(*batch)


@pytest.mark.parametrize(
    ("scope", "is_refused"),
    [
        ({"mode": "full"}, True),
        ({"mode": "activations"}, False),
        ({"mode": "list_of_layers", "layer_names": ["first"]}, True),
        ({"mode": "list_of_layers", "layer_names": ["other"]}, False),
    ],
)
def test_layers_without_a_gradient_are_refused(scope, is_refused):
    def build():
        with keras.RematScope(**scope):
            first = keras.layers.Dense(3, activation="relu", name="first")
        return keras.Sequential([keras.Input([1]), first, keras.layers.Dense(1)])

    model = toys.on_cpu(build)
    if is_refused:
        with pytest.raises(ValueError, match="was made in a keras.RematScope .*accumulate_grad"):
            toys.trainer(model, global_batch_size=8, loss=toys.output_itself)
    else:
        toys.trainer(model, global_batch_size=8, loss=toys.output_itself)


def test_a_loss_of_one_number_may_have_an_axis_or_be_python_s():
    class Adds(keras.layers.Layer):
        def call(self, images):
            self.add_loss(keras.ops.reshape(keras.ops.sum(images), (1,)))
            return images

    dense = keras.layers.Dense(1, kernel_initializer="zeros", kernel_regularizer=lambda w: 0.5)
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input([1]), Adds(), dense]))
    run = toys.trainer(model, global_batch_size=2, loss=toys.output_itself)
    result = run.train_step(toys.column(1.0, 2.0), [0, 0])
    assert float(result.losses["model"][0]) == 3.5
