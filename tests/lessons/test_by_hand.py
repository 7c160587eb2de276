"""The lessons' arithmetic, by hand or with NumPy."""

import math

import pytest
import tensorflow as tf

from lessons import batch_size, memory, where_time_goes
from lessons.where_time_goes import Step


class TestBatchSize:
    def test_a_prediction_doubles_the_examples_at_the_noise_scale(self):
        # A batch of 1 needs 100 * (1 + 1 / 64) examples, with 100 those of no noise.
        found = batch_size.predicted({1: 101.5625, 64: None}, {0: 32.0, 9: 128.0, 99: math.inf})
        assert found == pytest.approx({1: 101.5625, 64: 200.0})

    def test_the_noise_scale_is_that_of_gradients_whose_noise_is_known(self):
        # Gradients g + e, with |g|^2 = 4 and E|e|^2 = 100 / B over B examples: 100 / 4 = 25.
        assert batch_size.noise_scale(4 + 100 / 10, 4 + 100 / 50, 10, 50) == pytest.approx(25)


class TestMemory:
    def passes(self, images: int, gradient: bool):
        """Two layers: images [n, 3], hidden [n, 4], outputs [n, 2], all float32."""
        weights = tf.ones([3, 4]), tf.ones([4, 2])

        @tf.function(autograph=False)
        def one_pass(x):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                hidden = tf.nn.relu(x @ weights[0])
                outputs = tf.reshape(hidden @ weights[1], [-1])
                loss = tf.reduce_sum(outputs * outputs)
            return loss, tape.gradient(loss, weights) if gradient else []

        return one_pass.get_concrete_function(tf.TensorSpec([images, 3]))

    @pytest.mark.parametrize("images", [1, 7])
    def test_a_pass_keeps_what_its_gradient_reads(self, images):
        # relu's output, for its own gradient and the second product's, and the outputs, reshaped
        # or not, for the square's; not relu's input.
        assert memory.count(self.passes(images, gradient=True)).kept == 4 * images * (4 + 2)
        # Without a gradient, two neighbours are alive: before relu and behind it.
        assert memory.count(self.passes(images, gradient=False)) == (0, 4 * images * (4 + 4))


class TestWhereTimeGoes:
    ONE = Step(copy=1.0, compute=60.0, reduce=2.0, update=3.0, rest=4.0)

    @pytest.mark.parametrize(
        ("num_towers", "cores", "changes"),
        [
            (1, 4, {}),
            (2, 4, {"compute": 30.0}),
            (2, 2, {"compute": 30.0, "input": 0.8}),  # no core is free for the input
            (2, 1, {"compute": 60.0, "input": 1.6}),
        ],
    )
    def test_a_prediction_divides_compute_and_leaves_the_rest(self, num_towers, cores, changes):
        step = where_time_goes.predicted(self.ONE, num_towers, cores, of_batch=1.6)
        assert step == self.ONE._replace(**changes)
