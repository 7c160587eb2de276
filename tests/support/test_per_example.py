"""Every loss function gives one number per example, or is refused before the first step."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import losses
from towers.support import objective, per_example

LABELS = np.array([0, 1, 2, 3], np.float32)
IMAGES = toys.column(1.0, 3.0, 5.0, 7.0)  # squares of the errors: 1, 4, 9, 16


def run_with(loss_fn, model=None, **arguments):
    model = toys.linear(1.0) if model is None else model
    return toys.trainer(model, global_batch_size=4, loss=loss_fn, **arguments)


def squared(labels, outputs):
    return tf.square(labels - outputs[:, 0])


class TestKerasLosses:
    @pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", None])
    @pytest.mark.parametrize("num_towers", [1, 2])
    def test_heed_the_weights_of_examples(self, num_towers, reduction):
        run = run_with(keras.losses.MeanSquaredError(reduction), num_towers=num_towers)
        assert run.fit([(IMAGES, LABELS, [1.0, 0.0, 1.0, 2.0])]) == [(1 + 9 + 2 * 16) / 4]

    def test_train_as_the_function_does(self):
        images, labels = toys.batch(4, [3])
        weight, after = [1.0, 1.0, 0.0, 3.0], []
        for loss_fn in (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            losses.cross_entropy,
        ):
            run = run_with(loss_fn, toys.classifier(), num_towers=2)
            run.fit([(images, labels, weight)] * 3)
            after.append(run.state.model.get_weights())
        for mine, expected in zip(*after, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-7)

    def test_keep_their_own_reduction(self):
        loss = keras.losses.MeanSquaredError()
        run_with(loss).fit([(IMAGES, LABELS)])
        assert loss(LABELS[:, None], IMAGES).numpy() == 7.5

    def test_of_a_program_keep_what_they_hold(self):
        class Shifted(keras.losses.Loss):
            def __init__(self, function):
                super().__init__()
                self.function = function  # Keras could not save it

            def call(self, labels, outputs):
                return self.function(labels, outputs)

        run = run_with(Shifted(lambda labels, outputs: squared(labels, outputs) + 1.0))
        assert run.fit([(IMAGES, LABELS, [1, 0, 0, 1])]) == [(2 + 17) / 2]

    def test_that_sum_are_refused(self):
        with pytest.raises(ValueError, match="loss is a Keras loss with reduction='sum'"):
            run_with(keras.losses.MeanSquaredError(reduction="sum"))

    def test_do_not_overlook_a_mask(self):
        model = keras.Sequential(
            [
                keras.Input([3], dtype="int32"),
                keras.layers.Embedding(5, 2, mask_zero=True),
                keras.layers.Dense(toys.CLASSES),
            ]
        )
        words, labels = np.array([[1, 2, 0]] * 4), np.zeros([4, 3], np.int32)
        for loss_fn in (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            losses.cross_entropy,
        ):
            run = run_with(loss_fn, toys.on_cpu(lambda: keras.models.clone_model(model)))
            with pytest.raises(ValueError, match="outputs have a Keras mask, which loss would ig"):
                run.train_step(words, labels)

        def of_its_own_words(labels, outputs):
            return tf.reduce_mean(losses.cross_entropy(labels, outputs)[:, :2], axis=1)

        assert run_with(of_its_own_words, model).fit([(words, labels)])[0] > 0


def of_keras(loss, labels, outputs) -> float:
    """What `compile` makes of a loss, and `evaluate` of data."""
    model = keras.Sequential([keras.Input(outputs.shape[1:]), keras.layers.Activation("linear")])
    model.compile(loss=loss)
    return model.evaluate(outputs, labels, verbose=0, batch_size=len(labels))


class TestKerasFunctions:
    """By name or as they are, they are what `compile` makes of them."""

    @pytest.mark.parametrize("labels_have_an_axis_less", [False, True])
    @pytest.mark.parametrize(
        "loss",
        [
            "binary_crossentropy",
            "hinge",
            "kl_divergence",
            "mse",
            "poisson",
            keras.losses.mean_absolute_error,
            functools.partial(keras.losses.huber, delta=0.1),
        ],
    )
    def test_of_a_column_of_outputs(self, loss, labels_have_an_axis_less):
        outputs = np.linspace(0.1, 0.9, 6, dtype=np.float32)[:, None]
        labels = np.array([0, 1, 1, 0, 1, 1], np.float32)
        expected = of_keras(loss, labels[:, None], outputs)
        given = labels if labels_have_an_axis_less else labels[:, None]
        found = objective.Objective(loss)(
            toys.linear(1.0), tf.constant(given), tf.constant(outputs)
        )
        ((of_each, _),) = found.values()
        assert of_each.shape == [6]
        np.testing.assert_allclose(np.mean(of_each), expected, rtol=1e-6)

    @pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
    @pytest.mark.parametrize("loss", ["mse", "categorical_crossentropy"])
    def test_are_computed_in_float32(self, loss, narrow):
        outputs = tf.constant([[0.3, 0.7], [0.9, 0.1]], narrow)
        labels = np.array([[0, 1], [1, 0]], np.float32)
        found = per_example.PerExample(keras.losses.get(loss))(tf.constant(labels), outputs)
        expected = of_keras(loss, labels, tf.cast(outputs, tf.float32).numpy())
        np.testing.assert_allclose(np.mean(found), expected, rtol=1e-6)

    def test_that_do_not_fit_are_named(self):
        run = run_with("categorical_crossentropy", toys.classifier())
        images, labels = toys.batch(4, [3])
        with pytest.raises(ValueError, match=r"loss cannot be computed from labels \(.,\) and out"):
            run.train_step(images, labels)


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        functools.partial(keras.losses.sparse_categorical_crossentropy, ignore_class=0),
    ],
)
def test_places_left_out_are_not_averaged_over_silently(loss):
    """Keras divides by what is left of the whole batch, which no tower knows."""
    run = run_with(loss, toys.classifier())
    with pytest.raises(ValueError, match="loss leaves places out, as ignore_class does"):
        run.train_step(*toys.batch(4, [3]))


class TestSeveralLossesOfAnExample:
    OUTPUTS = np.array([[[0, 0], [0, 0.4]], [[100, 100], [100, 100]], [[1, 1], [2, 2]]], np.float32)

    @pytest.mark.parametrize("weight, expected", [([1, 0, 1], 0.8), (None, (0.1 + 100 + 1.5) / 3)])
    @pytest.mark.parametrize("num_towers, jit_compile", [(1, False), (3, False), (1, True)])
    def test_are_averaged_before_weights_come(self, num_towers, jit_compile, weight, expected):
        """Of shape [n, h, w]: the means of the three are 0.1, 100 and 1.5."""
        layers = [
            keras.Input([2, 2, 1]),
            keras.layers.Conv2D(1, 1, use_bias=False, kernel_initializer="ones"),
            keras.layers.Reshape([2, 2]),
        ]
        run = toys.trainer(
            toys.on_cpu(lambda: keras.Sequential(layers)),
            num_towers=num_towers,
            jit_compile=jit_compile,
            global_batch_size=3,
            loss=lambda labels, outputs: outputs,
        )
        (loss,) = run.fit([(self.OUTPUTS[..., None], np.zeros([3, 2, 2]), weight)])
        assert loss == pytest.approx(expected, rel=1e-6)
        (kernel,) = run.state.model.get_weights()
        assert kernel.item() == pytest.approx(1 - 0.5 * expected, rel=1e-6)

    def test_of_a_column_are_those_of_a_row(self):
        run = run_with(lambda labels, outputs: tf.square(labels - outputs))
        assert run.fit([(IMAGES, LABELS[:, None], [1, 0, 1, 2])]) == [(1 + 9 + 32) / 4]

    def test_of_narrow_types_are_weighed_in_float32(self):
        found = per_example.of(lambda labels, outputs: outputs)
        assert found(tf.zeros([2]), tf.ones([2], tf.float16)).dtype == "float32"

    def test_of_narrow_types_are_added_in_float32(self):
        ones = tf.ones([2, 3000], tf.bfloat16)
        found = per_example.PerExample(lambda labels, outputs: outputs)(tf.zeros([2]), ones)
        assert found.dtype == "float32"
        np.testing.assert_array_equal(found, [1.0, 1.0])


@pytest.mark.parametrize("num_microbatches", [1, 4])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "loss_fn, message",
    [
        (
            lambda labels, outputs: tf.square(labels - outputs),  # [n] and [n, 1]
            r"loss gives \((\d), \1\) for n=\1 and .*: it must give one loss per example.*"
            r"Labels are \(\1,\), outputs \(\1, 1\): do they broadcast\?",
        ),
        (
            lambda labels, outputs: tf.reduce_mean(squared(labels, outputs)),
            "loss gives one number for . examples: it must give one loss per example",
        ),
        (lambda labels, outputs: 0.0, "loss gives one number for"),
        (
            lambda labels, outputs: tf.reduce_mean(squared(labels, outputs))[None],
            r"loss gives \(1,\) for n=",
        ),
        (lambda labels, outputs: tf.cast(outputs[:, 0], tf.int32), "loss gives int32"),
        (
            lambda labels, outputs: tf.reduce_mean(tf.square(labels - outputs), axis=-1),
            r"loss gives an example another loss beside other examples: .*Labels are \((\d),\), "
            r"outputs \(\1, 1\): do they broadcast\?",
        ),
    ],
    ids=["broadcast", "mean", "constant", "mean of one axis", "integers", "hidden broadcast"],
)
def test_others_are_refused_before_the_first_step(loss_fn, message, jit_compile, num_microbatches):
    run = run_with(loss_fn, num_microbatches=num_microbatches, jit_compile=jit_compile)
    before = run.state.sha256()
    with pytest.raises(ValueError, match=message):
        run.train_step(IMAGES, LABELS)
    assert run.state.sha256() == before


def test_a_loss_that_knows_its_batch_is_named():
    run = run_with(lambda labels, outputs: tf.reshape(outputs, [4]))
    with pytest.raises(ValueError, match="loss takes 4 examples but fails for 8"):
        run.train_step(IMAGES, LABELS)


def test_an_evaluation_s_loss_is_seen_through_as_well():
    run = toys.trainer(
        toys.classifier(),
        global_batch_size=4,
        evaluation_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    images, labels = toys.batch(4, [3])
    expected = np.mean(losses.cross_entropy(labels[:3], run.state.model(images[:3])))
    assert run.evaluate([(images, labels, [1, 1, 1, 0])]).loss == pytest.approx(expected, rel=1e-6)
