"""The activations of the coming step: those of any model that has a graph of layers."""

import keras
import numpy as np
import pytest
import toys

from towers import losses
from towers.runs import activations


@pytest.fixture(autouse=True)
def same_initial_weights_every_time():
    keras.utils.set_random_seed(0)


@pytest.mark.pitfall(8)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_activations_are_those_of_the_coming_step_s_first_microbatch(num_towers):
    run = toys.trainer(
        toys.dropout_classifier(), num_towers=num_towers, global_batch_size=8, num_microbatches=4
    )
    for step in range(3):
        images, labels = toys.batch(8, [3], seed=step)
        before = run.state.sha256()
        shown = activations.Activations(run)(images)
        assert run.state.sha256() == before
        assert {name: tuple(value.shape) for name, value in shown.items()} == {
            "hidden": (2, 16),
            "logits": (2, toys.CLASSES),
        }
        loss = np.mean(losses.cross_entropy(labels[:2], shown["logits"]))
        result = run.train_step(images, labels)
        assert result.losses["total"][0].numpy() == pytest.approx(loss, rel=1e-5)


def test_activations_of_a_model_built_layer_by_layer_draw_once():
    model = keras.Sequential()
    for layer in [keras.Input([3]), *toys.dropout_classifier().layers]:
        model.add(layer)
    run = toys.trainer(model, global_batch_size=4)
    images, labels = toys.batch(4, [3])
    loss = np.mean(losses.cross_entropy(labels, activations.Activations(run)(images)["logits"]))
    assert run.train_step(images, labels).losses["total"][0].numpy() == pytest.approx(
        loss, rel=1e-5
    )


def test_activations_of_the_networks_are_their_nonlinear_layers():
    for build, layers in [
        (toys.small_cifarnet, ["relu1", "relu2", "local3", "local4", "softmax_linear"]),
        (
            toys.small_resnet,
            [
                "conv1_relu",
                *(f"stage{stage}_block1_relu{relu}" for stage in (1, 2, 3) for relu in (1, 2)),
                "logits",
            ],
        ),
    ]:
        run = toys.trainer(build(), global_batch_size=2)
        shown = activations.Activations(run)(toys.batch(2)[0])
        assert sorted(shown) == sorted(layers)
        assert shown[layers[-1]].shape == [2, toys.CLASSES]
        assert min(np.min(shown[layer]) for layer in layers[:-1]) == 0.0


def test_a_layer_first_called_in_another_model_is_no_obstacle():
    relu = keras.layers.ReLU(name="relu")
    relu(keras.Input([5]))
    images = keras.Input([3])
    logits = keras.layers.Dense(2, name="logits")(relu(keras.layers.Dense(5)(images)))
    run = toys.trainer(toys.on_cpu(lambda: keras.Model(images, logits)), global_batch_size=2)
    assert list(activations.Activations(run)(toys.batch(2, [3])[0])) == ["logits"]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(toys.CLASSES)

    def call(self, images):
        return self.last(images)


def test_a_subclassed_model_has_none():
    images, _ = toys.batch(2, [3])
    model = toys.on_cpu(Subclassed)
    model(images)  # builds it
    assert activations.Activations(toys.trainer(model, global_batch_size=2))(images) == {}
