"""The terms of the loss, which weights decay, and that towers neither add nor dilute them."""

import dataclasses

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf
import toys

from towers import losses, networks
from towers.support import weight_filters
from towers_cli import build, resolve


def paths(variables):
    return ["/".join(variable.path.split("/")[-2:]) for variable in variables]


def test_equal_logits_cost_the_logarithm_of_the_number_of_classes():
    loss = losses.cross_entropy(tf.constant([0, 3]), tf.zeros([2, 4]))
    np.testing.assert_allclose(loss, [np.log(4), np.log(4)], rtol=1e-6)


def test_cross_entropy_of_three_to_one_odds():
    logits = tf.constant([[np.log(3.0), 0.0], [np.log(3.0), 0.0]], tf.float32)
    loss = losses.cross_entropy(tf.constant([0, 1]), logits)
    np.testing.assert_allclose(loss, [np.log(4 / 3), np.log(4)], rtol=1e-6)


def test_cross_entropy_is_keras_s_per_example():
    logits, labels = toys.batch(7, [5], classes=5)
    keras_s = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    np.testing.assert_allclose(losses.cross_entropy(labels, tf.constant(logits)), keras_s, 1e-6)


@pytest.mark.parametrize(
    "given, computed",
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float32"), ("float64",) * 2],
)
def test_narrow_logits_are_widened_before_the_softmax(given, computed):
    logits = tf.cast(tf.constant([[10.0, 0.0]]), given)
    loss = losses.cross_entropy(tf.constant([0]), logits)
    assert loss.dtype == computed
    np.testing.assert_allclose(loss.numpy(), np.log1p(np.exp(-10.0)), rtol=1e-2)


def test_weight_decay_term_is_half_the_coefficient_times_the_sum_of_squares():
    weights = {"a": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "b": tf.constant([2.0], tf.float64)}
    terms = losses.weight_decay_terms(weights, 0.5)
    assert {term: float(value) for term, value in terms.items()} == {
        "weight_decay/a": 0.25 * 30,
        "weight_decay/b": 0.25 * 4,
    }
    assert terms["weight_decay/b"].dtype == tf.float64


def test_total_is_added_in_the_order_of_the_terms():
    values = {"a": tf.constant(1.0), "b": tf.constant(1e8), "c": tf.constant(-1e8)}
    assert losses.total_loss(list(values.values())).numpy() == 0.0  # (1 + 1e8) - 1e8 in float32
    assert losses.total_loss([values["a"]]).numpy() == 1.0


def test_total_has_the_type_of_its_first_term():
    total = losses.total_loss([tf.constant(1.0), tf.constant(0.5, tf.bfloat16)])
    assert total.dtype == tf.float32 and total.numpy() == 1.5


def test_smoothed_labels_by_hand():
    # p = (3/4, 1/4); half of the label 0 is spread over both classes: (3/4, 1/4).
    logits = tf.math.log([[3.0, 1.0]])
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    found = losses.cross_entropy(tf.constant([0]), logits, label_smoothing=0.5)
    np.testing.assert_allclose(found, [expected], rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_smoothed_labels_are_keras_s(label_smoothing, dtype):
    logits, labels = toys.batch(20, [7], classes=7)
    logits = tf.cast(logits * 3, dtype)
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction="none", dtype="float64"
    )(np.eye(7)[labels], tf.cast(logits, "float64"))
    found = losses.cross_entropy(tf.constant(labels), logits, label_smoothing)
    assert found.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(found, reference, rtol=1e-5)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_shares_of_classes_are_keras_s(label_smoothing, dtype):
    """As images have that were mixed."""
    logits, labels = toys.batch(20, [7], classes=7)
    logits = tf.cast(logits * 3, dtype)
    shares = np.eye(7)[labels] * 0.7 + np.eye(7)[labels[::-1]] * 0.3
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction="none", dtype="float64"
    )(shares, tf.cast(logits, "float64"))
    shares = tf.constant(shares, tf.float32)
    found = losses.cross_entropy(shares, logits, label_smoothing)
    assert found.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(found, reference, rtol=1e-5)


def test_labels_are_smoothed_in_training_alone():
    """Through the flag, with logits that are far apart, and a step that moves nothing."""
    chosen = scripts.settings_of(
        "--label_smoothing=0.5", "--learning_rate=1e-30", "--weight_decay=0",
        "--moving_average_decay=0", "--global_batch_size=8", "--num_microbatches=2",
    )  # fmt: skip
    chosen = resolve.resolved(chosen, None, num_gpus=0, cores=2)
    model = build.build_network(dataclasses.asdict(chosen), (8, 8, 3), 10)
    rate = resolve.learning_rate(chosen, 8)
    run = build.build_trainer(chosen, toys.cpus(2), model, rate, None)
    rng = np.random.default_rng(0)
    run.state.model.set_weights(
        [rng.normal(scale=0.2, size=weight.shape) for weight in run.state.model.weights]
    )
    images, labels = toys.batch(8, classes=10)
    logits = run.state.model(images)
    plain, smoothed = (
        np.mean(losses.cross_entropy(tf.constant(labels), logits, share)) for share in (0.0, 0.5)
    )
    assert abs(smoothed - plain) > 0.05 * plain
    in_training = run.train_step(images, labels).losses["cross_entropy"]
    assert np.mean(in_training) == pytest.approx(smoothed, rel=1e-4)
    assert run.evaluate([(images, labels)]).loss == pytest.approx(plain, rel=1e-4)


@pytest.mark.pitfall(27)
def test_kernels_leave_out_biases_and_batch_norm():
    network = toys.small_resnet()
    decayed = weight_filters.kernels(network)
    kinds = [
        layer.name
        for layer in network.layers
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
    ]
    assert sorted(paths(decayed)) == sorted(f"{name}/kernel" for name in kinds)
    kept = {path.split("/")[1] for path in paths(network.trainable_variables)} - {"kernel"}
    assert kept == {"gamma", "beta", "bias"}


@pytest.mark.pitfall(27)
def test_kernels_of_any_layer_count_and_embeddings_do_not():
    model = keras.Sequential(
        [
            keras.Input([4], dtype="int32"),
            keras.layers.Embedding(3, 2, name="words"),
            keras.layers.SeparableConv1D(2, 3, name="separable"),
            keras.layers.LayerNormalization(),
        ]
    )
    assert paths(weight_filters.kernels(model)) == [
        "separable/depthwise_kernel",
        "separable/pointwise_kernel",
    ]


@pytest.mark.pitfall(27)
def test_hidden_dense_kernels_are_those_of_the_tutorial():
    decayed = weight_filters.hidden_dense_kernels(toys.small_cifarnet())
    assert paths(decayed) == ["local3/kernel", "local4/kernel"]
    assert weight_filters.layer_name(decayed[0]) == "local3"


def test_frozen_layers_do_not_decay():
    model = toys.small_cifarnet()
    model.get_layer("local3").trainable = False
    for decayed in (weight_filters.hidden_dense_kernels(model), weight_filters.kernels(model)):
        assert "local4/kernel" in paths(decayed)
        assert "local3/kernel" not in paths(decayed)
        assert set(weight_filters.places(model, decayed)) <= {
            "conv1",
            "conv2",
            "local4",
            "softmax_linear",
        }


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_default_filter_of_each_network_is_known(name):
    assert networks.NETWORKS[name].weight_filter in weight_filters.FILTERS


def no_loss(labels, outputs):
    return 0.0 * outputs[:, 0]


@pytest.mark.pitfall(20)
@pytest.mark.parametrize(
    "num_towers, num_microbatches", [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4)]
)
def test_weight_decay_is_counted_once_for_any_number_of_towers(num_towers, num_microbatches):
    run = toys.trainer(
        toys.linear(3.0),
        num_towers=num_towers,
        global_batch_size=4,
        num_microbatches=num_microbatches,
        loss=no_loss,
        weight_decay=0.25,
    )
    result = run.train_step(toys.column(1.0, 2.0, 3.0, 4.0), [0] * 4)
    assert result.gradients[0].numpy() == 0.25 * 3.0
    assert run.state.model.get_weights()[0] == 3.0 - 0.5 * 0.75
    assert set(result.losses["weight_decay/line"].numpy()) == {0.25 * 9 / 2}


@pytest.mark.pitfall(27)
def test_only_the_filtered_weights_shrink():
    images = keras.Input([2])
    x = keras.layers.Dense(3, kernel_initializer="ones", bias_initializer="ones")(images)
    x = keras.layers.BatchNormalization()(x)
    model = toys.on_cpu(lambda: keras.Model(images, x))
    run = toys.trainer(model, global_batch_size=4, loss=no_loss, weight_decay=0.5)
    run.train_step(*toys.batch(4, [2]))
    values = {variable.name: variable.numpy() for variable in model.trainable_variables}
    np.testing.assert_array_equal(values["kernel"], np.full([2, 3], 0.75))
    for name, unchanged in [("bias", 1.0), ("gamma", 1.0), ("beta", 0.0)]:
        np.testing.assert_array_equal(values[name], np.full([3], unchanged))


def test_layers_of_the_same_name_in_two_submodels_both_decay():
    def submodel(name):
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense")
        return keras.Sequential([keras.Input([1]), dense], name=name)

    images = keras.Input([1])
    model = toys.on_cpu(lambda: keras.Model(images, submodel("b")(submodel("a")(images))))
    run = toys.trainer(model, global_batch_size=1, loss=no_loss, weight_decay=0.5)
    result = run.train_step(toys.column(1.0), [0])
    assert [weight.item() for weight in model.get_weights()] == [0.75, 0.75]
    terms = [term for term in result.losses if term.startswith("weight_decay/")]
    assert terms == ["weight_decay/dense/0", "weight_decay/dense/1"]
    assert result.losses["total"].numpy() == 2 * 0.25


@pytest.mark.pitfall(19, 24)
@pytest.mark.parametrize("num_towers", [1, 2, 4])
def test_each_loss_is_of_its_own_microbatch(num_towers):
    images, labels = toys.batch(8, [3])
    model = toys.classifier()
    kernel = model.get_weights()[0]
    logits = model(images).numpy()
    run = toys.trainer(
        model,
        num_towers=num_towers,
        global_batch_size=8,
        num_microbatches=4,
        weight_decay=0.125,
        weight_filter="hidden_dense_kernels",
    )
    result = run.train_step(images, labels)
    own = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    own = np.mean(np.reshape(own, [4, 2]), axis=1)
    decay = 0.125 * np.sum(kernel**2) / 2
    np.testing.assert_allclose(result.losses["cross_entropy"], own, rtol=1e-6)
    np.testing.assert_allclose(result.losses["total"], own + decay, rtol=1e-6)


@pytest.mark.pitfall(6, 24)
@pytest.mark.parametrize("num_towers", [1, 2, 4])
def test_loss_shown_is_the_mean_over_the_global_batch_and_not_the_last_towers(num_towers):
    images, labels = toys.batch(8, [3])
    model = toys.classifier()
    keras_s = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    of_batch = float(keras_s(labels, model(images)))
    of_last_tower = float(keras_s(labels[-2:], model(images[-2:])))
    run = toys.trainer(model, num_towers=num_towers, global_batch_size=8, num_microbatches=4)
    (shown,) = run.fit([(images, labels)])
    assert shown == pytest.approx(of_batch, rel=1e-6)
    assert abs(of_batch - of_last_tower) > 1e-3


def test_weighted_mean_by_hand():
    assert losses.mean(tf.constant([2.0, 4.0, 9.0])).numpy() == 5.0
    # (1 * 2 + 3 * 4 + 0 * 9) / 4; what weighs nothing may be infinite.
    assert losses.mean(tf.constant([2.0, 4.0, np.inf]), tf.constant([1.0, 3.0, 0.0])) == 3.5
    assert losses.mean(tf.constant([2.0, 4.0]), tf.zeros(2)).numpy() == 0.0
