"""Optimizers by name: their options, decoupled weight decay, clipping and loss scaling."""

import combinations
import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf
import toys

from towers import not_finite
from towers.networks import optimizers
from towers.support import weight_filters


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_each_optimizer_learns_at_the_rate_of_the_step(name):
    run = toys.trainer(
        toys.linear(1.0),
        optimizers.make(name),
        global_batch_size=1,
        loss=toys.output_itself,
        learning_rate=lambda examples_seen: 0.25 if examples_seen else 0.0,
    )
    run.train_step(toys.column(1.0), [0])
    assert run.state.model.get_weights()[0] == 1.0  # made with rate 0, and the schedule says 0
    run.train_step(toys.column(1.0), [0])
    assert run.state.model.get_weights()[0] < 0.9
    assert float(run.state.optimizer.learning_rate) == 0.25


def test_options_reach_the_optimizer():
    sgd = optimizers.make("sgd", momentum=0.5, nesterov=True, clip_norm=2.0)
    assert (sgd.momentum, sgd.nesterov, sgd.global_clipnorm) == (0.5, True, 2.0)
    assert optimizers.make("rmsprop", momentum=0.25).momentum == 0.25
    assert optimizers.make("sgd").global_clipnorm is None
    assert optimizers.make("lion", weight_decay=0.5).weight_decay == 0.5


def test_weight_decay_is_decoupled_only_where_it_is_said():
    decoupled = {
        name
        for name in optimizers.OPTIMIZERS
        if optimizers.make(name, weight_decay=0.5).weight_decay
    }
    assert decoupled == set(optimizers.DECOUPLED_WEIGHT_DECAY)


def test_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer='ftrl': must be one of sgd, adam, adamw, lion"):
        optimizers.make("ftrl")


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_numpy_s(nesterov):
    images = [toys.column(*np.arange(4) + step) for step in range(4)]  # gradients 1.5, 2.5, ...
    run = toys.trainer(
        toys.linear(1.0),
        optimizers.make("sgd", momentum=0.5, nesterov=nesterov),
        num_towers=2,
        global_batch_size=4,
        loss=toys.output_itself,
        learning_rate=lambda examples_seen: 0.125,
    )
    weight, velocity = 1.0, 0.0
    for step, step_images in enumerate(images):
        run.train_step(step_images, toys.labels_for(step_images))
        weight, velocity = oracle.sgd_momentum_update(
            weight, 1.5 + step, velocity, 0.125, 0.5, nesterov
        )
        assert run.state.model.get_weights()[0] == weight


@pytest.mark.pitfall(27)
def test_adamw_is_numpy_s_and_shrinks_only_the_filtered_weights():
    model = toys.classifier()
    weights = [weight.numpy().astype(np.float64) for weight in model.trainable_variables]
    decayed = weight_filters.kernels(model)
    decays = [any(weight is other for other in decayed) for weight in model.trainable_variables]
    assert decays == [True, False, True, False]
    run = toys.trainer(
        model,
        optimizers.make("adamw", weight_decay=0.5, model=model, decayed=decayed),
        num_towers=2,
        global_batch_size=8,
        learning_rate=lambda examples_seen: 0.0625,
    )
    moments = [(0.0, 0.0)] * len(weights)
    for iteration in range(5):
        result = run.train_step(*toys.batch(8, [3], seed=iteration))
        for index, gradient in enumerate(result.gradients):
            weights[index], *moments[index] = oracle.adamw_update(
                weights[index],
                gradient.numpy().astype(np.float64),
                *moments[index],
                iteration,
                learning_rate=0.0625,
                weight_decay=0.5 if decays[index] else 0.0,
            )
    for weight, expected in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", optimizers.DECOUPLED_WEIGHT_DECAY)
def test_decoupled_weight_decay_is_the_rate_times_the_coefficient(name):
    model = toys.classifier()
    model.set_weights([np.full_like(weight, 2.0) for weight in model.get_weights()])
    optimizer = optimizers.make(
        name, weight_decay=0.5, model=model, decayed=weight_filters.hidden_dense_kernels(model)
    )
    run = toys.trainer(
        model,
        optimizer,
        num_towers=2,
        global_batch_size=2,
        learning_rate=lambda examples_seen: 0.25,
        loss=lambda labels, outputs: 0.0 * outputs[:, 0],
    )
    run.train_step(*toys.batch(2, [3]))
    values = [set(np.ravel(weight)) for weight in model.get_weights()]
    assert values == [{2.0 * (1 - 0.25 * 0.5)}, {2.0}, {2.0}, {2.0}]


def orthogonalized(matrix):
    """Three Newton-Schulz iterations, as in kellerjordan.github.io/posts/muon."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_s_adam_has_its_weight_decay_too_and_what_is_excluded():
    muon = optimizers.make("muon", weight_decay=0.5)
    assert (muon.weight_decay, muon.adam_weight_decay) == (0.5, 0.5)
    model = toys.small_cifarnet()
    kernel = model.get_layer("conv1").kernel
    assert not optimizers.Muon()._should_use_adamw(kernel)
    assert optimizers.Muon(exclude_layers=["conv1/"])._should_use_adamw(kernel)
    assert not optimizers.Muon(exclude_layers=["conv2/"])._should_use_adamw(kernel)


def test_muon_turns_matrices_and_convolutions_and_leaves_the_rest_to_adam():
    """Two steps of a network with every kind of weight, against NumPy."""
    model = toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([4, 4, 2]),
                keras.layers.Conv2D(3, 2, name="convolution"),
                keras.layers.Flatten(),
                keras.layers.Dense(5, use_bias=False, name="hidden"),
                keras.layers.Dense(toys.CLASSES, use_bias=False, name="logits"),
            ]
        )
    )
    run = toys.trainer(
        model,
        optimizers.make("muon", momentum=0.5, nesterov=True, model=model),
        num_towers=2,
        global_batch_size=8,
        learning_rate=lambda examples_seen: 0.25,
    )
    weights = [weight.numpy().astype(np.float64) for weight in model.trainable_variables]
    velocities, moments = [0.0] * 4, [(0.0, 0.0)] * 4
    for iteration in range(2):
        result = run.train_step(*toys.batch(8, [4, 4, 2], seed=iteration))
        for index, weight in enumerate(model.trainable_variables):
            gradient = result.gradients[index].numpy().astype(np.float64)
            if weight.path.split("/")[-2:] in (["convolution", "kernel"], ["hidden", "kernel"]):
                velocities[index] = 0.5 * velocities[index] + gradient
                turned = gradient + 0.5 * velocities[index]
                matrix = turned.reshape(-1, turned.shape[-1]).T  # wide
                update = orthogonalized(matrix).T.reshape(turned.shape)
                weights[index] -= 0.25 * update
            else:
                weights[index], *moments[index] = oracle.adamw_update(
                    weights[index],
                    gradient,
                    *moments[index],
                    iteration,
                    learning_rate=0.25 * optimizers.MUON_ADAM_RATIO,
                    weight_decay=0.0,
                    beta_2=0.99,
                )
    for weight, expected in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-4)


# The gradients of two towers are (6, 0) and (0, 8); their mean (3, 4) has the norm 5.
FAR_APART = np.array([[6.0, 0.0], [0.0, 8.0]], np.float32)


@pytest.mark.pitfall(25)
@pytest.mark.parametrize("num_towers", [1, 2])
@pytest.mark.parametrize("loss_scaling", [False, True])
@pytest.mark.parametrize(
    "clip_norm, reduction, update",
    [
        (2.5, "mean", [1.5, 2.0]),
        (2.5, "sum", [1.5, 2.0]),
        (8.0, "mean", [3.0, 4.0]),
        (0.0, "sum", [6.0, 8.0]),
    ],
)
def test_clipping_comes_after_the_reduction(clip_norm, reduction, update, loss_scaling, num_towers):
    # Clipped before, each tower would bring 2.5, and their mean would be (1.25, 1.25).
    run = toys.trainer(
        toys.linear(0.0, 0.0),
        optimizers.make("sgd", clip_norm=clip_norm, loss_scaling=loss_scaling),
        num_towers=num_towers,
        global_batch_size=2,
        num_microbatches=2,
        gradient_reduction=reduction,
        loss=toys.output_itself,
        learning_rate=lambda examples_seen: 1.0,
    )
    result = run.train_step(FAR_APART, [0, 0])
    weights = run.state.model.get_weights()[0][:, 0]
    np.testing.assert_allclose(weights, np.negative(update), rtol=1e-6)
    before_clipping = [6.0, 8.0] if reduction == "sum" else [3.0, 4.0]
    np.testing.assert_array_equal(result.gradients[0][:, 0], before_clipping)


def float16_line(weight):
    """outputs = weight * images, computed in float16 from a float32 weight."""
    kernel = keras.initializers.Constant(weight)
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer=kernel, dtype="mixed_float16"
                ),
            ]
        )
    )


def scaled_run(num_towers=1, initial_scale=2.0**15, growth_steps=2000):
    sgd = optimizers.make("sgd")
    return toys.trainer(
        float16_line(1.0),
        keras.optimizers.LossScaleOptimizer(sgd, initial_scale, growth_steps),
        num_towers=num_towers,
        global_batch_size=2,
        loss=toys.output_itself,
        learning_rate=lambda examples_seen: 0.125,
    )


@pytest.mark.pitfall(29)
def test_loss_scaling_wraps_the_named_optimizer():
    scaled = optimizers.make("sgd", momentum=0.5, loss_scaling=True)
    assert isinstance(scaled, keras.optimizers.LossScaleOptimizer)
    assert scaled.inner_optimizer.momentum == 0.5


@pytest.mark.pitfall(29)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_gradients_too_small_for_float16_arrive(num_towers):
    tiny = 2.0**-26  # float16 ends at 2**-24; as a loss's gradient without scaling it is 0
    model = float16_line(1.0)
    arguments = {
        "num_towers": num_towers,
        "global_batch_size": 2,
        "loss": lambda labels, outputs: tiny * tf.cast(outputs[:, 0], tf.float32),
    }
    plain = toys.trainer(model, keras.optimizers.SGD(0.5, loss_scale_factor=1.0), **arguments)
    assert plain.train_step(toys.column(1.0, 1.0), [0, 0]).gradients[0].numpy() == 0.0
    scaled = toys.trainer(model, optimizers.make("sgd", loss_scaling=True), **arguments)
    assert scaled.train_step(toys.column(1.0, 1.0), [0, 0]).gradients[0].numpy() == tiny


@pytest.mark.pitfall(29)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_a_step_with_an_infinite_gradient_is_skipped(num_towers):
    run = scaled_run(num_towers)
    run.train_step(toys.column(1.0, 8.0), [0, 0])  # 8 * 2**15 / 2 is beyond float16
    assert run.state.model.get_weights()[0] == 1.0
    assert run.state.optimizer.dynamic_scale.numpy() == 2.0**14
    result = run.train_step(toys.column(1.0, 1.0), [0, 0])
    assert result.gradients[0].numpy() == 1.0
    assert run.state.model.get_weights()[0] == 1.0 - 0.125
    assert run.state.step.numpy() == 2


@pytest.mark.pitfall(29)
def test_a_loss_of_float16_takes_the_scale_too():
    run = toys.trainer(
        toys.linear(1.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.125), initial_scale=2.0**15),
        loss=lambda labels, outputs: tf.cast(toys.output_itself(labels, outputs), tf.float16),
        global_batch_size=2,
    )
    result = run.train_step(toys.column(1.0, 3.0), [0, 0])
    assert result.gradients[0].numpy() == 2.0


@pytest.mark.pitfall(29)
def test_gradients_are_shown_unscaled_also_where_the_scale_changes():
    run = scaled_run(initial_scale=4.0, growth_steps=1)
    for scale in (8.0, 16.0, 32.0):
        result = run.train_step(toys.column(1.0, 3.0), [0, 0])
        assert result.gradients[0].numpy() == 2.0
        assert run.state.optimizer.dynamic_scale.numpy() == scale
    assert run.state.model.get_weights()[0] == 1.0 - 3 * 0.125 * 2.0
    assert result.losses["total"].numpy() == 0.5 * 2.0  # nor is the loss


@pytest.mark.pitfall(17)
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_slots_are_the_same_for_any_number_of_towers(name):
    slots = {}
    for num_towers in (1, 4):
        run = toys.trainer(
            toys.linear(1.0, 2.0),
            optimizers.make(name),
            num_towers=num_towers,
            global_batch_size=4,
            loss=toys.output_itself,
        )
        at_start = len(run.state.optimizer.variables)
        run.train_step(np.ones([4, 2], np.float32), [0] * 4)
        slots[num_towers] = [tuple(variable.shape) for variable in run.state.optimizer.variables]
        assert len(slots[num_towers]) == at_start
    assert slots[1] == slots[4]
    assert slots[1][:2] == [(), ()]  # updates made, learning rate
    expected = {"sgd": 0, "adam": 2, "adamw": 2, "lion": 1, "rmsprop": 1, "muon": 1}[name]
    assert slots[1][2:] == [(2, 1)] * expected


class TestConstantLossScale:
    """`loss_scale_factor`, by which Keras's optimizers divide gradients."""

    def trained(self, factor, optimizer=keras.optimizers.SGD, **arguments):
        made = optimizer(0.1, loss_scale_factor=factor)
        run = toys.trainer(
            toys.classifier(), made, global_batch_size=8, num_microbatches=4, **arguments
        )
        results = [run.train_step(*toys.batch(8, [3], seed=step)) for step in range(3)]
        return run.state.model.get_weights(), results

    @pytest.mark.parametrize(
        ("num_towers", "optimizer", "jit_compile"),
        combinations.crossed(
            [1, 2],
            [keras.optimizers.SGD, keras.optimizers.Adam],
            [False, True],
            often=[(1, keras.optimizers.SGD, False), (2, keras.optimizers.Adam, False)],
        ),
    )
    def test_of_a_power_of_two_changes_no_bit(self, num_towers, optimizer, jit_compile):
        arguments = {"num_towers": num_towers, "jit_compile": jit_compile, "weight_decay": 0.01}
        weights, results = self.trained(None, optimizer, **arguments)
        scaled, scaled_results = self.trained(1024.0, optimizer, **arguments)
        for mine, expected in zip(scaled, weights, strict=True):
            np.testing.assert_array_equal(mine, expected)
        for mine, expected in zip(scaled_results, results, strict=True):
            np.testing.assert_array_equal(mine.losses["total"], expected.losses["total"])
            for gradient, of_plain in zip(mine.gradients, expected.gradients, strict=True):
                np.testing.assert_array_equal(gradient, of_plain)

    def test_of_another_number_changes_rounding_alone(self):
        for mine, expected in zip(self.trained(1000.0)[0], self.trained(None)[0], strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-7)

    def test_of_several_optimizers_is_theirs(self):
        def several(factor):
            one, other = keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.25)
            return keras.optimizers.MultiOptimizer(
                lambda weight: one if "hidden" in weight.path else other, loss_scale_factor=factor
            )

        after = []
        for factor in (None, 4.0):
            run = toys.trainer(toys.classifier(), several(factor), global_batch_size=4)
            run.fit([toys.batch(4, [3])] * 2)
            after.append(run.state.model.get_weights())
        for mine, expected in zip(*after, strict=True):
            np.testing.assert_array_equal(mine, expected)

    def test_brings_gradients_too_small_for_float16(self):
        run = toys.trainer(
            float16_line(1.0),
            keras.optimizers.SGD(2.0**10, loss_scale_factor=2.0**15),
            global_batch_size=2,
            loss=lambda labels, outputs: 2.0**-26 * tf.cast(outputs[:, 0], tf.float32),
        )
        run.train_step(toys.column(1.0, 1.0), [0, 0])
        assert run.state.model.get_weights()[0] == 1.0 - 2.0**-16

    def test_that_overflows_stops_the_run(self):
        """Nothing lowers it, as a LossScaleOptimizer would."""
        run = toys.trainer(
            float16_line(1.0),
            keras.optimizers.SGD(0.1, loss_scale_factor=2.0**15),
            global_batch_size=2,
            loss=toys.output_itself,
        )
        with pytest.raises(not_finite.NotFiniteError, match="step 1, tower 0: the gradient of"):
            run.train_step(toys.column(1.0, 8.0), [0, 0])
        assert run.state.model.get_weights()[0] == 1.0
