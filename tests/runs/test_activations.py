"""The model that gives activations for histograms: that of any model with a graph of layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import towers
from input_pipeline import arrays
from towers.runs import activations, callbacks


@pytest.mark.pitfall(8)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_activations_are_those_of_the_step_s_first_microbatch(tmp_path, num_towers):
    """With the same draws: the loss of its logits is that which the step shows."""
    x, y = toys.batch(8, [3])
    keras.utils.set_random_seed(0)
    model = toys.dropout_classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    towers.distribute(model, num_towers, microbatch_size=2)
    histograms, expected, shown = callbacks.Histograms(1), [], []

    class Note(callbacks.RunCallback):
        def on_train_batch_begin(self, batch, logs=None):
            logits = histograms._shown["logits"]
            expected.append(float(loss(self.run.batch[1][:2], logits)))

        def on_train_batch_end(self, batch, logs=None):
            shown.append(float(self.run.watched.losses[0]))

    run = towers.Run(tmp_path / "run", model)
    run.fit(arrays.batches(x, y), batch_size=8, epochs=3, verbose=0, callbacks=[histograms, Note()])
    assert shown == pytest.approx(expected, rel=1e-5)
    assert len(shown) == 3


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
        shown = activations.with_activations(build())(toys.batch(2)[0])
        assert sorted(shown) == sorted(layers)
        assert shown[layers[-1]].shape == [2, toys.CLASSES]
        assert min(np.min(shown[layer]) for layer in layers[:-1]) == 0.0


def test_a_layer_first_called_in_another_model_is_no_obstacle():
    relu = keras.layers.ReLU(name="relu")
    relu(keras.Input([5]))
    images = keras.Input([3])
    logits = keras.layers.Dense(2, name="logits")(relu(keras.layers.Dense(5)(images)))
    model = activations.with_activations(toys.on_cpu(lambda: keras.Model(images, logits)))
    assert list(model(toys.batch(2, [3])[0])) == ["logits"]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(toys.CLASSES)

    def call(self, images):
        return self.last(images)


def test_a_subclassed_model_has_none():
    model = toys.on_cpu(Subclassed)
    model(tf.zeros([2, 3]))  # builds it
    assert activations.with_activations(model) is None
