"""Which weights decay, and that towers neither add nor dilute the terms of the loss."""

import keras
import numpy as np
import pytest
import toys

from towers import networks, weight_decay


def paths(variables):
    return ["/".join(variable.path.split("/")[-2:]) for variable in variables]


@pytest.mark.pitfall(27)
def test_kernels_leave_out_biases_and_batch_norm():
    network = toys.small_resnet()
    decayed = weight_decay.kernels(network)
    kinds = [
        layer.name
        for layer in network.layers
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
    ]
    assert sorted(paths(decayed)) == sorted(f"{name}/kernel" for name in kinds)


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
    assert paths(weight_decay.kernels(model)) == [
        "separable/depthwise_kernel",
        "separable/pointwise_kernel",
    ]


@pytest.mark.pitfall(27)
def test_hidden_dense_kernels_are_those_of_the_tutorial():
    decayed = weight_decay.hidden_dense_kernels(toys.small_cifarnet())
    assert paths(decayed) == ["local3/kernel", "local4/kernel"]


def test_frozen_layers_do_not_decay():
    model = toys.small_cifarnet()
    model.get_layer("local3").trainable = False
    for decayed in (weight_decay.hidden_dense_kernels(model), weight_decay.kernels(model)):
        assert "local4/kernel" in paths(decayed)
        assert "local3/kernel" not in paths(decayed)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_default_filter_of_each_network_is_known(name):
    assert networks.NETWORKS[name].weight_filter in weight_decay.FILTERS


def no_loss(labels, outputs):
    return 0.0 * outputs[:, 0]


def decaying(model, coefficient):
    weight_decay.regularize(weight_decay.kernels(model), coefficient)
    return model


@pytest.mark.pitfall(20)
@pytest.mark.parametrize("num_towers, microbatch", [(1, 4), (1, 2), (1, 3), (2, 2), (4, 1)])
def test_weight_decay_is_counted_once_for_any_number_of_towers(num_towers, microbatch):
    model = decaying(toys.linear(3.0), 0.25)
    step = toys.Step(model, num_towers=num_towers, microbatch=microbatch, loss=no_loss)
    result = step(toys.column(1.0, 2.0, 3.0, 4.0), [0] * 4)
    assert result.gradients[0].numpy() == 0.25 * 3.0
    assert model.get_weights()[0] == 3.0 - 0.5 * 0.75
    assert set(result.losses.numpy()) == {0.25 * 9 / 2}


@pytest.mark.pitfall(27)
def test_only_the_filtered_weights_shrink():
    images = keras.Input([2])
    x = keras.layers.Dense(3, kernel_initializer="ones", bias_initializer="ones")(images)
    x = keras.layers.BatchNormalization()(x)
    model = decaying(toys.on_cpu(lambda: keras.Model(images, x)), 0.5)
    toys.Step(model, loss=no_loss)(*toys.batch(4, [2]))
    values = {variable.name: variable.numpy() for variable in model.trainable_variables}
    np.testing.assert_array_equal(values["kernel"], np.full([2, 3], 0.75))
    for name, unchanged in [("bias", 1.0), ("gamma", 1.0), ("beta", 0.0)]:
        np.testing.assert_array_equal(values[name], np.full([3], unchanged))


def test_it_is_keras_s_l2_beside_what_a_weight_has():
    kernel = toys.classifier().layers[0].kernel
    keras_s = keras.regularizers.L2(0.125)
    kernel.regularizer = keras.regularizers.L1(0.5)
    weight_decay.regularize([kernel], 0.25)
    expected = keras_s(kernel) + keras.regularizers.L1(0.5)(kernel)
    np.testing.assert_allclose(kernel.regularizer(kernel), expected, rtol=1e-6)
    copied = weight_decay.Decay.from_config(weight_decay.Decay(0.25).get_config())
    np.testing.assert_allclose(copied(kernel), keras_s(kernel), rtol=1e-6)


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
