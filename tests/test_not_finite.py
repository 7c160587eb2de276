"""Losses and gradients that are not finite: nothing is applied, and the step fails."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from towers import updating

TOWERS, BATCH = 2, 8
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0),
    "averaged": lambda: keras.optimizers.Lion(0.1, use_ema=True, ema_overwrite_frequency=2),
}


def everything(model: keras.Model) -> list[np.ndarray]:
    variables = (*model.variables, *model.metrics_variables, *model.optimizer.variables)
    return [variable.numpy() for variable in variables]


def fails_and_changes_nothing(step: toys.Step, images, labels) -> None:
    before = everything(step.model)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        step(images, labels)
    assert updating.is_from_check(error.value)
    np.testing.assert_equal(everything(step.model), before)


@pytest.mark.parametrize(
    ("optimizer", "value", "jit_compile"),
    [
        *[(name, value, False) for name in OPTIMIZERS for value in (np.nan, np.inf)],
        ("averaged", np.nan, True),
    ],
)
def test_a_loss_stops_the_step(optimizer, value, jit_compile):
    model, options = toys.dropout_classifier(), {"microbatch": 4, "jit_compile": jit_compile}
    step = toys.Step(model, OPTIMIZERS[optimizer](), num_towers=TOWERS, **options)
    for seed in range(3):
        step(*toys.batch(BATCH, [3], seed=seed))
    images, labels = toys.batch(BATCH, [3])
    images[5] = value
    fails_and_changes_nothing(step, images, labels)
    step(*toys.batch(BATCH, [3]))  # it is as good as before


def root_of_output(labels, outputs):
    """A loss that is 0 at 0, where its gradient is infinite."""
    return tf.sqrt(tf.reshape(outputs, [-1]))


def test_a_gradient_is_found_where_the_loss_is_finite():
    step = toys.Step(toys.linear(1.0), num_towers=TOWERS, loss=root_of_output)
    step(toys.column(1.0, 1.0, 1.0, 1.0), np.zeros(4))
    fails_and_changes_nothing(step, toys.column(1.0, 1.0, 1.0, 0.0), np.zeros(4))


def test_a_loss_is_found_where_the_gradients_are_finite():
    step = toys.Step(toys.linear(1.0), num_towers=TOWERS, loss=lambda _, outputs: outputs + np.nan)
    fails_and_changes_nothing(step, toys.column(1.0, 1.0, 1.0, 1.0), np.zeros(4))


def test_a_norm_that_overflows_is_not_clipped_to_nothing():
    """Keras would scale by 1 / inf, and make NaN of it."""
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    step = toys.Step(toys.linear(0.0), optimizer, loss=toys.output_itself)
    fails_and_changes_nothing(step, toys.column(1e25), np.zeros(1))


def test_the_rows_of_an_embedding_are_looked_at():
    rows = keras.layers.Embedding(4, 2, embeddings_initializer="ones")
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input([], dtype="int32"), rows]))
    step = toys.Step(model, loss=lambda _, y: tf.sqrt(y[:, 0] - 1.0))
    fails_and_changes_nothing(step, np.array([1, 3]), np.zeros(2, np.int64))


class TestLossScaling:
    def test_an_overflow_of_the_scaled_gradient_is_the_optimizers_matter(self):
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        step = toys.Step(toys.small_cifarnet("float16"), optimizer)
        step(*toys.batch(4))
        weights = step.model.get_weights()
        optimizer.dynamic_scale.assign(2.0**40)
        step(*toys.batch(4))
        np.testing.assert_equal(step.model.get_weights(), weights)
        assert float(optimizer.dynamic_scale) == 2.0**39

    def test_a_gradient_that_no_scale_makes_finite_stops_the_run(self):
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 4.0)
        step = toys.Step(toys.linear(1.0), optimizer, loss=root_of_output)
        for _ in range(2):  # 4 and 2 are halved
            step(toys.column(0.0), np.zeros(1))
        fails_and_changes_nothing(step, toys.column(0.0), np.zeros(1))

    @pytest.mark.pitfall(29)
    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_gradients_are_shown_unscaled_also_where_the_scale_changes(self, jit_compile):
        inner = keras.optimizers.SGD(0.125)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, 4.0, dynamic_growth_steps=1)
        options = {"loss": toys.output_itself, "jit_compile": jit_compile}
        step = toys.Step(toys.linear(1.0), optimizer, **options)
        for scale in (8.0, 16.0):
            shown = step(toys.column(1.0, 3.0), [0, 0])
            assert shown.gradients[0].numpy() == 2.0
            assert float(optimizer.dynamic_scale) == scale
        assert step.model.get_weights()[0] == 1.0 - 2 * 0.125 * 2.0
