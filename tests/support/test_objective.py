"""Losses as Keras's `compile` takes them, and every other use refused with a sentence."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import losses
from towers.support import objective

N = 4


def two_outputs(named: bool = True):
    inputs = keras.Input((3,))
    of_a = keras.layers.Dense(2, name="a", kernel_initializer="ones")(inputs)
    of_b = keras.layers.Dense(1, name="b", kernel_initializer="ones")(inputs)
    return keras.Model(inputs, {"a": of_a, "b": of_b} if named else [of_a, of_b])


def run_of(model, loss, **arguments):
    with_cpu = toys.on_cpu(lambda: model)
    return toys.trainer(
        with_cpu, keras.optimizers.SGD(0.0), global_batch_size=N, loss=loss, **arguments
    )


class OfMyOwn(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


INPUTS = np.arange(12, dtype=np.float32).reshape(N, 3)
SUMS = INPUTS.sum(axis=1)  # what each output is
LABELS = {"a": np.zeros([N, 2], np.float32), "b": np.ones([N, 1], np.float32)}
OF_A, OF_B = np.mean(SUMS**2), np.mean(np.abs(SUMS - 1))


@pytest.mark.parametrize(
    "loss, name",
    [
        ("mse", "mean_squared_error"),
        ("mean_squared_error", "mean_squared_error"),
        (keras.losses.mean_squared_error, "mean_squared_error"),
        (keras.losses.MeanSquaredError(), "mean_squared_error"),
        (keras.losses.MeanSquaredError(name="mine"), "mine"),
        (lambda y, x: keras.ops.mean((y - x) ** 2, axis=-1), "loss"),
        (functools.partial(keras.losses.mean_squared_error), "mean_squared_error"),
    ],
)
def test_a_loss_has_its_name_in_every_form(loss, name):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    result = run_of(model, loss).train_step(INPUTS, np.zeros([N, 1], np.float32))
    assert list(result.losses) == [name, "total"]
    np.testing.assert_allclose(result.losses["total"], [OF_A], rtol=1e-6)
    assert result.correct is None


@pytest.mark.parametrize("named, by_name", [(True, True), (False, True), (False, False)])
def test_several_outputs_are_weighted_and_named(named, by_name):
    loss = {"b": "mae", "a": "mse"} if by_name else ["mse", "mae"]
    weights = {"b": 0.5} if by_name else [1.0, 0.5]
    labels = LABELS if by_name else [LABELS["a"], LABELS["b"]]
    run = run_of(two_outputs(named), loss, loss_weights=weights)
    result = run.train_step(INPUTS, labels)
    found = {name: float(values[0]) for name, values in result.losses.items()}
    assert found == pytest.approx({"a": OF_A, "b": OF_B, "total": OF_A + 0.5 * OF_B}, rel=1e-6)
    evaluated = run.evaluate([(INPUTS, labels)])
    assert evaluated.loss == pytest.approx(OF_A + 0.5 * OF_B, rel=1e-6)
    assert evaluated.loss_terms == pytest.approx({"a": OF_A, "b": OF_B}, rel=1e-6)


def test_an_output_without_a_loss_is_not_trained():
    run = run_of(two_outputs(), {"a": "mse", "b": None})
    result = run.train_step(INPUTS, {"a": LABELS["a"]})
    assert list(result.losses) == ["a", "total"]
    of_b = [g is None for w, g in zip(run.state.model.trainable_variables, result.gradients,
                                      strict=True) if w.path.startswith("b/")]  # fmt: skip
    assert of_b == [True, True]


def test_weights_of_examples_weigh_every_output():
    run = run_of(two_outputs(), {"a": "mse", "b": "mae"})
    result = run.train_step(INPUTS, LABELS, np.array([0, 1, 0, 3.0]))
    expected = (SUMS[1] ** 2 + 3 * SUMS[3] ** 2) / 4
    np.testing.assert_allclose(result.losses["a"], [expected], rtol=1e-6)


def test_terms_of_narrow_types_do_not_narrow_the_sum():
    inputs = keras.Input((3,))
    narrow = keras.layers.Dense(1, name="a", dtype="bfloat16", kernel_initializer="ones")(inputs)
    wide = keras.layers.Dense(1, name="b", kernel_initializer="zeros")(inputs)
    loss = {"a": lambda y, x: x[:, 0] / x[:, 0], "b": "mse"}  # 1, and 90,000
    labels = {"a": LABELS["b"], "b": np.full([N, 1], 300, np.float32)}
    result = run_of(keras.Model(inputs, {"a": narrow, "b": wide}), loss).train_step(INPUTS, labels)
    np.testing.assert_array_equal(result.losses["total"], [90_001])  # bfloat16 has 90,112
    total = losses.total_loss([tf.constant(1, tf.float16), tf.constant(90_000.0)])
    assert (total.dtype, total.numpy()) == (tf.float32, 90_001)


@pytest.mark.parametrize(
    "loss, of_classes",
    [
        (losses.cross_entropy, True),
        (functools.partial(losses.cross_entropy, label_smoothing=0.1), True),
        ("sparse_categorical_crossentropy", True),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), True),
        ("mse", False),
        (keras.losses.CategoricalCrossentropy(), False),
        ({"a": losses.cross_entropy}, False),
        (toys.output_itself, None),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="mine"), True),
        (OfMyOwn(), None),
        (keras.losses.MeanSquaredError(name="mine"), False),
    ],
)
def test_argmax_is_for_classes_alone(loss, of_classes):
    assert objective.Objective(loss).of_classes is of_classes


@pytest.mark.parametrize(
    "loss, weights, message",
    [
        ("msee", None, "loss='msee': Keras has no loss of that name"),
        ({}, None, "loss names no loss"),
        ({"a": None}, None, "loss names no loss"),
        ({"a": 3}, None, r"loss\['a'\] is 3: must be a function"),
        ("mse", {"a": 1}, "loss_weights is a dict with the keys 'a', but loss a single loss"),
        ({"a": "mse"}, 2.0, "loss_weights is 2.0: must be a dict or a list, like loss"),
        (["mse", "mae"], [1.0], "loss_weights is a list of 1, and loss a list of 2: they must m"),
        (["mse"], {"a": 1}, "loss_weights is a dict with the keys 'a', and loss a list of 1: th"),
        ({"a": "mse"}, [1], "loss_weights is a list of 1, and loss a dict with the keys 'a': th"),
        ({"a": "mse"}, {"b": 1}, "loss_weights has 'b', but loss only 'a'"),
        ({"a": "mse"}, {"a": "1"}, r"loss_weights\['a'\] is '1': must be a number"),
        ({"a": "mse"}, {"a": -1}, r"loss_weights\['a'\]=-1: must be finite and at least 0"),
        ({"a": keras.losses.MeanSquaredError(reduction="sum")}, None, r"loss\['a'\] is a Keras l"),
    ],
)
def test_others_are_refused_at_once(loss, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        objective.Objective(loss, weights)


@pytest.mark.parametrize(
    "loss, labels, message",
    [
        ("mse", LABELS, "loss is one loss, mean_squared_error, but the model has the out"),
        (losses.cross_entropy, LABELS, "loss is one loss, cross_entropy, but the model has the ou"),
        ({"a": "mse"}, LABELS, "loss is for 'a', but the model has the outputs 'a', 'b'"),
        ({"a": "mse", "c": "mse"}, LABELS, "loss is for 'a', 'c', but the model has the outputs"),
        # Whoever made the dict may have thought of its order, and Keras sorts its keys.
        (["mse"] * 2, LABELS, "loss is a list of 2, and the model's outputs a dict with the keys"),
        (
            {"a": "mse", "b": "mse"},
            list(LABELS.values()),
            "labels is a list of 2, and the model's outputs a dict with the keys 'a', 'b'",
        ),
        ({"a": "mse", "b": "mse"}, {"a": LABELS["a"]}, "there are none for the model's output 'b'"),
        ({"a": "mse", "b": "mse"}, LABELS["a"], "there are none for the model's output 'a'"),
    ],
)
def test_what_does_not_fit_the_outputs_is_refused_before_the_first_step(loss, labels, message):
    run = run_of(two_outputs(), loss)
    with pytest.raises(ValueError, match=message):
        run.train_step(INPUTS, labels)
    assert run.state.step == 0


@pytest.mark.parametrize(
    "loss, labels, message",
    [
        (["mse"] * 3, list(LABELS.values()), "loss is a list of 3, and the model has 2 outputs, "),
        (["mse"] * 2, [LABELS["a"]], "labels is a list of 1, and the model has 2 outputs, 'a', 'b"),
        (["mse"] * 2, [LABELS["a"]] * 3, "labels is a list of 3, and the model has 2 outputs, '"),
    ],
)
def test_lists_are_as_long_as_the_outputs_are_many(loss, labels, message):
    run = run_of(two_outputs(named=False), loss)
    with pytest.raises(ValueError, match=message):
        run.train_step(INPUTS, labels)


def of_one(inputs_in=lambda x: x, outputs_in=lambda x: x):
    inputs = keras.Input((3,), name="x")
    outputs = keras.layers.Dense(1, name="y", kernel_initializer="ones")(inputs)
    return keras.Model(inputs_in(inputs), outputs_in(outputs))


def sequential():
    layer = keras.layers.Dense(1, name="y", kernel_initializer="ones")
    return keras.Sequential([keras.Input((3,)), layer])


@pytest.mark.parametrize(
    "model, loss, of_labels",
    [
        (lambda: of_one(lambda x: [x]), "mse", lambda y: y),
        (lambda: of_one(lambda x: {"x": x}), "mse", lambda y: y),
        (lambda: of_one(outputs_in=lambda x: [x]), "mse", lambda y: y),
        (lambda: of_one(outputs_in=lambda x: {"y": x}), "mse", lambda y: {"y": y}),
        (of_one, "mse", lambda y: [y]),
        (of_one, {"y": "mse"}, lambda y: y),
        (lambda: of_one(outputs_in=lambda x: {"y": x}), ["mse"], lambda y: [y]),
        (sequential, {"y": "mse"}, lambda y: {"y": y}),
    ],
)
def test_one_output_may_be_written_as_one_of_several(model, loss, of_labels):
    result = run_of(model(), loss).train_step(INPUTS, of_labels(LABELS["b"]))
    np.testing.assert_allclose(result.losses["total"], [np.mean((SUMS - 1) ** 2)], rtol=1e-6)


def test_an_output_named_as_another_term_is_refused():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, {"total": keras.layers.Dense(1)(inputs)})
    with pytest.raises(ValueError, match="the model has an output 'total', which is the name of"):
        run_of(model, {"total": "mse"}).train_step(INPUTS, {"total": LABELS["b"]})


def test_a_loss_of_integers_says_which_one_takes_shares():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    for loss in (keras.losses.SparseCategoricalCrossentropy(), "sparse_categorical_crossentropy"):
        with pytest.raises(ValueError, match="as mixup makes them: give towers.losses.cross_entro"):
            objective.of(loss)(model, tf.constant([[0.5, 0.5]]), tf.constant([[1.0, 2.0]]))


@pytest.mark.parametrize(
    ("loss", "labels", "expected"),
    [
        (losses.cross_entropy, [[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], 2),
        (losses.cross_entropy, [[0.0], [1.0], [0.0]], None),  # not a class in floats
        (
            lambda labels, outputs: tf.reduce_sum(labels * outputs, axis=-1),
            [[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]],
            None,
        ),
    ],
)
def test_of_shares_of_classes_the_largest_is_the_label(loss, labels, expected):
    outputs = tf.constant([[3.0, 1.0], [1.0, 2.0], [0.0, 1.0]])
    found = objective.of(loss).count_correct(tf.constant(labels), outputs, None)
    assert found == expected
