"""Optimizers by name: their options, decoupled weight decay, clipping and loss scaling."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import weight_decay
from towers.networks import optimizers


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_each_optimizer_learns_at_the_rate_of_the_step(name):
    step = toys.Step(toys.linear(1.0), optimizers.make(name), loss=toys.output_itself)
    step(toys.column(1.0), [0])
    assert step.model.get_weights()[0] == 1.0  # made with rate 0
    step(toys.column(1.0), [0], rate=0.25)
    assert step.model.get_weights()[0] < 0.9


def test_options_reach_the_optimizer():
    sgd = optimizers.make("sgd", momentum=0.5, nesterov=True, clip_norm=2.0)
    assert (sgd.momentum, sgd.nesterov, sgd.global_clipnorm) == (0.5, True, 2.0)
    assert optimizers.make("rmsprop", momentum=0.25).momentum == 0.25
    plain = optimizers.make("sgd")
    assert (plain.momentum, plain.nesterov, plain.global_clipnorm) == (0.0, False, None)
    there = optimizers.make("sgd", parameter_device="/CPU:1").iterations.value.device
    assert there.endswith("CPU:1")


def test_weight_decay_is_decoupled_only_where_it_is_said():
    for name in optimizers.OPTIMIZERS:
        decays = optimizers.make(name, weight_decay=0.5).weight_decay
        assert decays == (0.5 if name in optimizers.DECOUPLED_WEIGHT_DECAY else None)


@pytest.mark.pitfall(27)
@pytest.mark.parametrize("name", optimizers.DECOUPLED_WEIGHT_DECAY)
def test_decoupled_weight_decay_is_the_rate_times_the_coefficient(name):
    model = toys.classifier()
    model.set_weights([np.full_like(weight, 2.0) for weight in model.get_weights()])
    optimizer = optimizers.make(
        name, weight_decay=0.5, model=model, decayed=weight_decay.hidden_dense_kernels(model)
    )
    step = toys.Step(model, optimizer, num_towers=2, loss=lambda labels, outputs: 0.0 * outputs)
    step(*toys.batch(2, [3]), rate=0.25)
    values = [set(np.ravel(weight)) for weight in model.get_weights()]
    assert values == [{2.0 * (1 - 0.25 * 0.5)}, {2.0}, {2.0}, {2.0}]


def orthogonalized(matrix):
    """Three Newton-Schulz iterations, as in kellerjordan.github.io/posts/muon."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_turns_matrices_and_convolutions_and_leaves_the_rest_to_adam():
    """Two steps of a network with every kind of weight, against NumPy."""
    layers = [
        keras.layers.Conv2D(3, 1, use_bias=False, name="left_to_adam"),
        keras.layers.Conv2D(3, 2, name="convolution"),
        keras.layers.Flatten(),
        keras.layers.Dense(5, use_bias=False, name="hidden"),
        keras.layers.Dense(toys.CLASSES, use_bias=False, name="logits"),
    ]
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input([4, 4, 2]), *layers]))
    optimizer = optimizers.make("muon", momentum=0.5, nesterov=True, model=model)
    optimizer.exclude_layers.append("left_to_adam")
    step = toys.Step(model, optimizer, num_towers=2)
    weights = [weight.numpy().astype(np.float64) for weight in model.trainable_variables]
    adam = keras.optimizers.Adam(0.25 * 0.08, beta_2=0.99)
    by_adam = [keras.Variable(weight, dtype="float64") for weight in weights]
    adam.build(by_adam)
    velocities = [0.0] * 5
    for iteration in range(2):
        result = step(*toys.batch(8, [4, 4, 2], seed=iteration), rate=0.25)
        adam.apply([tf.cast(gradient, "float64") for gradient in result.gradients], by_adam)
        for index, weight in enumerate(model.trainable_variables):
            gradient = result.gradients[index].numpy().astype(np.float64)
            if weight.path.split("/")[-2:] in (["convolution", "kernel"], ["hidden", "kernel"]):
                velocities[index] = 0.5 * velocities[index] + gradient
                turned = gradient + 0.5 * velocities[index]
                matrix = turned.reshape(-1, turned.shape[-1]).T  # wide
                update = orthogonalized(matrix).T.reshape(turned.shape)
                weights[index] -= 0.25 * update
            else:
                weights[index] = by_adam[index].numpy()
    toys.assert_close(model.trainable_variables, weights, rtol=1e-3, atol=1e-4)


# The gradients of two towers are (6, 0) and (0, 8); their mean (3, 4) has the norm 5.
FAR_APART = np.array([[6.0, 0.0], [0.0, 8.0]], np.float32)


@pytest.mark.pitfall(25)
@pytest.mark.parametrize("num_towers", [1, 2])
@pytest.mark.parametrize("loss_scaling", [False, True])
@pytest.mark.parametrize("clip_norm, update", [(2.5, [1.5, 2.0]), (8.0, [3.0, 4.0])])
def test_clipping_comes_after_the_reduction(clip_norm, update, loss_scaling, num_towers):
    # Clipped before, each tower would bring 2.5, and their mean would be (1.25, 1.25).
    optimizer = optimizers.make("sgd", clip_norm=clip_norm, loss_scaling=loss_scaling)
    model = toys.linear(0.0, 0.0)
    step = toys.Step(model, optimizer, num_towers=num_towers, microbatch=1, loss=toys.output_itself)
    result = step(FAR_APART, [0, 0], rate=1.0)
    np.testing.assert_allclose(model.get_weights()[0][:, 0], np.negative(update), rtol=1e-6)
    np.testing.assert_array_equal(result.gradients[0][:, 0], [3.0, 4.0])


def float16_line():
    """outputs = weight * images, computed in float16 from a float32 weight."""
    dense = keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")
    return toys.on_cpu(lambda: keras.Sequential([keras.Input([1]), dense]))


def tiny_loss(labels, outputs):
    """Its gradient for a float16 output is 0 without a scale: float16 ends at 2**-24."""
    return 2.0**-26 * tf.cast(tf.reshape(outputs, [-1]), tf.float32)


@pytest.mark.pitfall(29)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_gradients_too_small_for_float16_arrive(num_towers):
    outcome = []
    for optimizer in (keras.optimizers.SGD(0.5), optimizers.make("sgd", loss_scaling=True)):
        step = toys.Step(float16_line(), optimizer, num_towers=num_towers, loss=tiny_loss)
        outcome.append(step(toys.column(1.0, 1.0), [0, 0]).gradients[0].numpy())
    assert outcome == [0.0, 2.0**-26]
