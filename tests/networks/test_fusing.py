"""Any model with the batch norm that is one operation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from benchmarks.peers import tasks
from towers import networks
from towers.networks import layers

Norm, Fused = keras.layers.BatchNormalization, layers.FusedBatchNormalization


def mobilenet():
    keras.utils.set_random_seed(0)  # some draws have a ReLU6 that rounding takes across its bend
    made = keras.applications.MobileNetV2(
        (32, 32, 3), alpha=0.35, weights=None, classes=toys.CLASSES, classifier_activation=None
    )
    rng = np.random.default_rng(0)
    for variable in made.variables:  # no scale is 1, no offset 0
        variable.assign(variable + rng.uniform(0.0, 0.1, variable.shape))
    return made


def residual():
    """A residual network with Keras's batch norm."""
    return tasks.with_keras_layers(toys.small_resnet())


def within(*more):
    """A model within a model, with batch norms of other kinds."""
    inputs = keras.Input((8, 8, 3))
    inner = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), Norm(name="inner_norm", momentum=0.7)],
        name="inner",
    )
    x = Norm(axis=1, name="rows")(inner(inputs))
    x = Norm(dtype="float64", name="wide")(x)
    x = keras.layers.Flatten()(x)
    for layer in (Norm(name="flat"), *more, keras.layers.Dense(toys.CLASSES)):
        x = layer(x)
    return keras.Model(inputs, x, name="outer")


def after_a_step(model, images, labels):
    """What training and evaluating a model gives."""
    before = model(images).numpy()
    loss = float(toys.Step(model, keras.optimizers.SGD(0.1))(images, labels).losses[0])
    return [before, loss, *(variable.numpy() for variable in model.variables)]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(mobilenet, marks=pytest.mark.long),
        pytest.param(residual, marks=pytest.mark.long),
        within,
    ],
)
def test_it_is_the_same_function(build):
    model = toys.on_cpu(build)
    made = networks.fused(model)
    assert [v.path for v in made.variables] == [v.path for v in model.variables]
    images, labels = toys.batch(16, model.input_shape[1:])
    for mine, theirs in zip(
        after_a_step(made, images, labels), after_a_step(model, images, labels), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def kinds(model):
    return {layer.name: type(layer) for layer in model._flatten_layers() if isinstance(layer, Norm)}


def test_every_batch_norm_that_can_is_one_operation():
    assert set(kinds(residual()).values()) == {Norm}
    assert set(kinds(networks.fused(residual())).values()) == {Fused}
    found = networks.fused(within())
    assert kinds(found) == {"inner_norm": Fused, "rows": Norm, "wide": Norm, "flat": Norm}
    assert found.get_layer("inner").layers[1].momentum == 0.7


def test_the_model_itself_stays_as_it_is():
    model = within()
    before = [variable.numpy() for variable in model.variables]
    made = networks.fused(model)
    made.variables[0].assign(made.variables[0] + 1)
    after = [variable.numpy() for variable in model.variables]
    tf.nest.map_structure(np.testing.assert_array_equal, before, after)
    assert kinds(model)["inner_norm"] is Norm


def test_what_is_frozen_stays_frozen():
    model = within()
    model.get_layer("inner").trainable = False
    made = networks.fused(model)
    paths = [[v.path for v in one.trainable_variables] for one in (model, made)]
    assert paths[0] == paths[1]


class OfMyOwn(keras.Model):
    def __init__(self):
        super().__init__(name="mine")
        self.norm = Norm()

    def call(self, inputs, training=None):
        return self.norm(inputs, training=training)


@pytest.mark.parametrize("outer", [False, True])
def test_a_model_with_a_call_of_its_own_is_refused(outer):
    model = OfMyOwn()
    model(np.zeros((2, 8, 8, 3)))
    if outer:
        model = keras.Sequential([keras.Input((8, 8, 3)), model])
    with pytest.raises(ValueError, match="the model mine is a OfMyOwn: must be a keras.Sequential"):
        networks.fused(model)


def test_what_a_normalization_layer_has_learned_is_copied():
    images, _ = toys.batch(16, (8, 8, 3))
    learned = keras.layers.Normalization()
    learned.adapt(3.0 * images + 5.0)
    model = keras.Sequential([keras.Input((8, 8, 3)), learned, Norm()])
    np.testing.assert_allclose(networks.fused(model)(images), model(images), rtol=1e-5, atol=1e-5)


def test_a_model_that_is_not_built_is_refused():
    with pytest.raises(ValueError, match="the model late is not built yet: call it on some inputs"):
        networks.fused(keras.Sequential([Norm()], name="late"))


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="model is of type BatchNormalization: must be a Keras mod"):
        networks.fused(Norm())


@pytest.mark.parametrize(
    "build", [toys.small_resnet, pytest.param(toys.small_resnet50, marks=pytest.mark.long)]
)
def test_the_residual_networks_have_it_and_are_the_function_of_keras_s(build):
    model = build()
    assert set(kinds(model).values()) == {Fused}
    plain = toys.on_cpu(lambda: tasks.with_keras_layers(model))
    assert [variable.path for variable in plain.variables] == [v.path for v in model.variables]
    images, labels = toys.batch(16, model.input_shape[1:])
    for mine, theirs in zip(
        after_a_step(model, images, labels), after_a_step(plain, images, labels), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_peer_of_the_benchmarks_has_keras_s_layers():
    model = toys.on_cpu(lambda: tasks.build("fastnet", "bfloat16"))
    plain = toys.on_cpu(lambda: tasks.with_keras_layers(model))
    assert Fused in {type(layer) for layer in model.layers}
    assert {type(layer) for layer in plain.layers if "norm" in layer.name} == {Norm}


def test_a_weight_that_is_frozen_by_itself_stays_frozen():
    model = toys.classifier()
    model.layers[0].kernel.trainable = False
    made = networks.fused(model)
    assert [v.path for v in made.trainable_variables] == [v.path for v in model.trainable_variables]


def test_words_that_a_layer_has_learned_are_kept():
    lookup = keras.layers.StringLookup()
    lookup.adapt(["b", "a", "b"])
    model = keras.Sequential([keras.Input((2,), dtype="string"), lookup])
    words = tf.constant([["a", "b"], ["c", "a"]])
    np.testing.assert_array_equal(networks.fused(model)(words), model(words))
