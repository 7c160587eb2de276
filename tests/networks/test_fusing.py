"""Any model with the batch norm that is one operation."""

import keras
import numpy as np
import pytest
import toys

from benchmarks.peers import tasks
from towers import networks
from towers.networks import layers

Norm, Fused = keras.layers.BatchNormalization, layers.FusedBatchNormalization


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


@pytest.mark.parametrize("build", [within, toys.small_resnet])
def test_it_is_the_same_function(build):
    """Our residual networks have it from the start; Keras's layers are the oracle."""
    made = toys.on_cpu(build)
    if build is within:
        model, made = made, networks.fused(made)
    else:
        assert set(kinds(made).values()) == {Fused}
        model = toys.on_cpu(lambda: tasks.with_keras_layers(made))
    assert [v.path for v in made.variables] == [v.path for v in model.variables]
    images, labels = toys.batch(16, model.input_shape[1:])
    ours, keras_s = (after_a_step(each, images, labels) for each in (made, model))
    toys.assert_close(ours, keras_s, rtol=1e-4, atol=1e-5)


def kinds(model):
    return {layer.name: type(layer) for layer in model._flatten_layers() if isinstance(layer, Norm)}


def test_every_batch_norm_that_can_is_one_operation():
    model = within()
    result = networks.fused(model)
    assert kinds(model)["inner_norm"] is Norm
    assert kinds(result) == {"inner_norm": Fused, "rows": Norm, "wide": Norm, "flat": Norm}
    assert result.get_layer("inner").layers[1].momentum == 0.7


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
    with pytest.raises(ValueError, match="mine"):
        networks.fused(model)


def test_what_a_normalization_layer_has_learned_is_copied():
    images, _ = toys.batch(16, (8, 8, 3))
    learned = keras.layers.Normalization()
    learned.adapt(3.0 * images + 5.0)
    model = keras.Sequential([keras.Input((8, 8, 3)), learned, Norm()])
    np.testing.assert_allclose(networks.fused(model)(images), model(images), rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_frozen_by_itself_stays_frozen():
    model = toys.classifier()
    model.layers[0].kernel.trainable = False
    made = networks.fused(model)
    assert [v.path for v in made.trainable_variables] == [v.path for v in model.trainable_variables]
