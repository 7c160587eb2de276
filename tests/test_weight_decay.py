"""Which weights decay, and that towers neither add nor dilute the terms of the loss."""

import re

import keras
import numpy as np
import pytest
import toys

from towers import weight_decay


def paths(variables):
    return ["/".join(variable.path.split("/")[-2:]) for variable in variables]


@pytest.mark.pitfall(27)
def test_kernels_leave_out_biases_and_batch_norm():
    layers = [
        keras.layers.Embedding(3, 2, name="words"),
        keras.layers.SeparableConv1D(2, 3, name="separable"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3, name="dense"),
    ]
    decayed = weight_decay.kernels(keras.Sequential([keras.Input([4], dtype="int32"), *layers]))
    of_separable = ["separable/depthwise_kernel", "separable/pointwise_kernel"]
    assert paths(decayed) == [*of_separable, "dense/kernel"]


@pytest.mark.pitfall(27)
def test_hidden_dense_kernels_are_those_of_the_tutorial():
    model = toys.small_cifarnet()
    decayed = weight_decay.hidden_dense_kernels(model)
    assert paths(decayed) == ["local3/kernel", "local4/kernel"]
    model.get_layer("local3").trainable = False  # frozen layers do not decay
    assert paths(weight_decay.hidden_dense_kernels(model)) == ["local4/kernel"]
    assert "local3/kernel" not in paths(weight_decay.kernels(model))


def no_loss(labels, outputs):
    return 0.0 * outputs[:, 0]


@pytest.mark.pitfall(20)
@pytest.mark.parametrize("num_towers, microbatch", [(1, 4), (1, 2), (1, 3), (2, 2), (4, 1)])
def test_weight_decay_is_counted_once_for_any_number_of_towers(num_towers, microbatch):
    model = toys.linear(3.0)
    weight_decay.regularize(weight_decay.kernels(model), 0.25)
    step = toys.Step(model, num_towers=num_towers, microbatch=microbatch, loss=no_loss)
    result = step(toys.column(1.0, 2.0, 3.0, 4.0), [0] * 4)
    assert result.gradients[0].numpy() == 0.25 * 3.0
    assert model.get_weights()[0] == 3.0 - 0.5 * 0.75
    assert set(result.losses.numpy()) == {0.25 * 9 / 2}


def test_a_weight_with_a_regularizer_of_its_own_is_refused():
    kernel = toys.classifier().layers[0].kernel
    weight_decay.regularize([kernel], 0.0)
    assert kernel.regularizer is None
    kernel.regularizer = keras.regularizers.L1(0.5)
    with pytest.raises(ValueError, match=re.escape(f"weight_decay=0.25: {kernel.path}")):
        weight_decay.regularize([kernel], 0.25)


@pytest.mark.pitfall(19, 24)
@pytest.mark.parametrize("num_towers", [1, 2, 4])
def test_each_loss_is_of_its_own_microbatch(num_towers):
    images, labels = toys.batch(8, [3])
    model = toys.classifier()
    decay = 0.125 * np.sum(np.square(model.get_weights()[0])) / 2
    weight_decay.regularize(weight_decay.hidden_dense_kernels(model), 0.125)
    own = keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True)
    result = toys.Step(model, num_towers=num_towers, microbatch=2)(images, labels)
    expected = np.mean(np.reshape(own, [4, 2]), axis=1) + decay
    np.testing.assert_allclose(result.losses, expected, rtol=1e-6)
