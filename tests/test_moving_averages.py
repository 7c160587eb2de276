"""Moving averages of the weights, their warm start, and that they follow the update."""

import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf
import toys

from towers import moving_averages


@pytest.mark.parametrize(
    "step, decay, expected",
    [(0, 0.99, 0.1), (8, 0.99, 0.5), (90, 0.99, 0.91), (10_000, 0.99, 0.99), (8, 0.25, 0.25)],
)
def test_decay_is_held_lower_in_the_first_steps(step, decay, expected):
    warm = moving_averages.warm_decay(decay, tf.constant(step, tf.int64))
    assert warm.dtype == tf.float32
    assert warm.numpy() == pytest.approx(expected, rel=1e-6)


def test_one_update_by_hand():
    average = tf.Variable([1.0, -4.0])
    moving_averages.update([average], [tf.constant([3.0, 0.0])], 0.99, tf.constant(8, tf.int64))
    np.testing.assert_array_equal(average, [2.0, -2.0])  # d = 9 / 18


def test_weights_without_an_average_are_refused():
    with pytest.raises(ValueError, match="zip"):
        moving_averages.update([], [tf.constant(1.0)], 0.5, tf.constant(0, tf.int64))


@pytest.mark.parametrize("decay", [0.3, 0.9999])
def test_averages_are_those_of_tensorflow_s_own_class(decay):
    rng = np.random.default_rng(0)
    weight, average = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    step = tf.Variable(0, dtype=tf.int64)
    tensorflow_s = tf.train.ExponentialMovingAverage(decay, num_updates=step)
    tensorflow_s.apply([weight])  # creates its average
    for _ in range(30):
        weight.assign(rng.normal(size=2).astype(np.float32))
        tensorflow_s.apply([weight])
        moving_averages.update([average], [weight], decay, step)
        step.assign_add(1)
        np.testing.assert_allclose(average, tensorflow_s.average(weight), rtol=1e-5, atol=1e-6)


def run_with_averages(decay, num_towers=1):
    """w falls by 0.5 a step: the gradient of w * x is 1."""
    return toys.trainer(
        toys.beside_zero(toys.linear(1.0)),
        num_towers=num_towers,
        global_batch_size=4,
        loss=toys.output_itself,
        moving_average_decay=decay,
    )


@pytest.mark.pitfall(7)
@pytest.mark.parametrize("num_towers", [1, 4])
def test_average_takes_in_the_weight_after_its_update(num_towers):
    run = run_with_averages(0.0625, num_towers)
    run.train_step(toys.column(1, 1, 1, 1), [0] * 4)
    # w goes from 1 to 0.5. With the weight before the update the average would stay 1.
    assert run.state.averages[0].numpy() == 0.0625 * 1 + 0.9375 * 0.5


@pytest.mark.pitfall(7)
def test_averages_of_many_steps_in_one_graph():
    run, average, weight = run_with_averages(0.25), 1.0, 1.0
    for step in range(20):
        run.train_step(toys.column(1, 1, 1, 1), [0] * 4)
        weight -= 0.5
        average = oracle.moving_average(average, weight, 0.25, step)
        assert run.state.averages[0].numpy() == pytest.approx(average, rel=1e-6)


def test_averages_are_evaluated_where_they_are_kept():
    for decay in (0.0, 0.0625):
        run = run_with_averages(decay)
        run.train_step(toys.column(1, 1, 1, 1), [0] * 4)
        (evaluated,) = run.state.evaluated_weights()
        assert evaluated.numpy() == (0.53125 if decay else 0.5)
        loss = run.evaluate([(toys.column(2.0), np.zeros(1, np.int64))]).loss
        assert loss == 2 * (0.53125 if decay else 0.5)


def test_averages_start_at_the_weights_and_follow_their_type():
    model = toys.on_cpu(
        lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(3, dtype="float64")])
    )
    run = toys.trainer(model, global_batch_size=1, moving_average_decay=0.5)
    for average, weight in zip(run.state.averages, model.trainable_variables, strict=True):
        assert average.dtype == tf.float64
        np.testing.assert_array_equal(average, weight)
