"""Moving averages of the weights, their warm start, and that they follow the update."""

import keras
import numpy as np
import numpy_oracle as oracle
import pytest
import tensorflow as tf
import toys

import towers
from input_pipeline import arrays
from towers import moving_averages
from towers.runs import callbacks


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


@pytest.mark.pitfall(7)
@pytest.mark.parametrize("num_towers", [1, 4])
def test_averages_take_in_the_weight_after_its_update(num_towers, tmp_path):
    """w falls by 0.5 a step: the gradient of w * x is 1."""
    model = toys.linear(1.0)
    model.compile(keras.optimizers.SGD(0.5), toys.output_itself)
    towers.distribute(model, num_towers, microbatch_size=1, joined_loss=False)
    averages = callbacks.MovingAverages(model, 0.25)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(averages.averages[0].numpy().item())
    )
    images = toys.column(1, 1, 1, 1)
    run = towers.Run(tmp_path / "run", model)
    run.fit(
        arrays.batches(images, toys.labels_for(images)), batch_size=4, epochs=20, verbose=0,
        callbacks=[averages, note],
    )  # fmt: skip
    average = weight = 1.0
    expected = []
    for step in range(20):
        weight -= 0.5
        average = oracle.moving_average(average, weight, 0.25, step)
        expected.append(average)
    assert seen == pytest.approx(expected, rel=1e-5)
    with averages.averaged():
        assert model.get_weights()[0].item() == seen[-1]
    assert model.get_weights()[0].item() == weight
