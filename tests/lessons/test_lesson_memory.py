"""The lesson on memory: the count, the gradient at the mean activations, and what is measured."""

import keras
import lesson_checks
import numpy as np
import pytest
import tensorflow as tf
import toys

from laboratory import data
from lessons import memory

POWERS = (256, 512, 1024)


LESSON = memory.LESSON


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(glance, tmp_path):
    lesson_checks.check_finding(glance, tmp_path)


class TestClaim:
    @pytest.mark.long
    def test_training_keeps_what_grows_with_the_batch_and_evaluation_nothing(self, glance):
        training = [glance.numbers["counted"]["training", batch] for batch in POWERS]
        evaluation = [glance.numbers["counted"]["evaluation", batch] for batch in POWERS]
        assert [count.kept for count in evaluation] == [0, 0, 0]
        per_image = training[0].kept / 256
        assert [count.kept / batch for count, batch in zip(training, POWERS, strict=True)] == (
            [per_image] * 3
        )
        assert [count.alive / 256 for count in evaluation] == [
            evaluation[0].alive / 256 * factor for factor in (1, 2, 4)
        ]
        assert training[0].alive > training[0].kept > 2 * evaluation[0].alive

    @pytest.mark.long
    def test_the_largest_activation_is_kept(self, glance):
        # conv1's output, which its pooling's gradient reads; evaluation has it and the pooled one.
        one_image = 24 * 24 * 64 * 4
        assert glance.numbers["counted"]["training", 256].kept > 256 * one_image
        assert glance.numbers["counted"]["evaluation", 256].alive == 256 * one_image * 5 / 4

    @pytest.mark.long
    def test_what_is_done_about_it_keeps_less(self, glance):
        counted = glance.numbers["counted"]
        float32 = counted["training", 1024]
        assert counted[memory.BFLOAT16, 1024].kept < float32.kept
        assert counted[memory.AGAIN, 1024].kept < float32.kept / 5
        assert counted[memory.AGAIN, 1024].alive < float32.alive

    @pytest.mark.long
    def test_the_mean_activation_learns_nothing(self, numbers):
        ends = {name: np.mean(curve[-10:]) for name, curve in numbers["curves"].items()}
        assert ends[memory.AT_MEAN] == pytest.approx(np.log(10), abs=0.05)
        assert ends[memory.GRADIENT] < np.log(10) - 0.2
        assert max(numbers["agreement"][2048].values()) < 0.9


class TestCount:
    """Two layers by hand: images [n, 3], hidden [n, 4], outputs [n, 2], all float32."""

    def passes(self, images: int, gradient: bool):
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

    @pytest.mark.parametrize("images", [1, 5, 7])
    def test_training_keeps_what_its_gradient_reads(self, images):
        # relu's output, for its own gradient and the second product's, and the outputs, reshaped
        # or not, for the square's; not relu's input.
        assert memory.count(self.passes(images, gradient=True)).kept == 4 * images * (4 + 2)

    @pytest.mark.parametrize("images", [1, 5, 7])
    def test_evaluation_has_two_neighbours_alive(self, images):
        count = memory.count(self.passes(images, gradient=False))
        assert count == (0, 4 * images * (4 + 4))  # before relu and behind it

    def test_a_block_that_is_computed_again_gives_the_same_gradient(self):
        images = tf.random.stateless_normal([4, 24, 24, 3], [0, 0])
        labels = tf.constant([0, 1, 2, 3], tf.int64)
        passes = (memory.make_pass(way, 4) for way in (memory.TRAINING, memory.AGAIN))
        (loss, gradients), (again, gradients_again) = (one(images, labels) for one in passes)
        assert loss == again
        for gradient, other in zip(gradients, gradients_again, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-7)


class TestMeanActivation:
    def dense(self, features: int, classes: int) -> keras.Model:
        """One layer of weights 0: every class has the same chance."""
        inputs = keras.Input([features])
        layer = keras.layers.Dense(classes, kernel_initializer="zeros")
        return keras.Model(inputs, toys.on_cpu(lambda: layer(inputs)))

    def test_two_images_of_two_classes_teach_it_nothing(self):
        # Errors are (-1/2, 1/2) and (1/2, -1/2): their products with the images (1, 0) and (0, 1)
        # have the mean below, and their own mean is 0.
        both = memory.both_gradients(self.dense(2, 2), tf.eye(2), tf.constant([0, 1], tf.int64))
        np.testing.assert_allclose(both.gradient[0], [[-0.25, 0.25], [0.25, -0.25]], rtol=1e-6)
        np.testing.assert_array_equal(both.at_mean[0], np.zeros([2, 2]))
        assert float(both.loss) == pytest.approx(np.log(2))

    def test_what_is_missing_is_the_covariance_of_activations_and_errors(self):
        draws = np.random.default_rng(0)
        images = draws.normal(size=[6, 3]).astype(np.float32)
        labels = draws.integers(4, size=6)
        both = memory.both_gradients(self.dense(3, 4), tf.constant(images), tf.constant(labels))
        errors = np.full([6, 4], 1 / 4) - np.eye(4)[labels]
        covariance = (images - images.mean(axis=0)).T @ (errors - errors.mean(axis=0)) / 6
        np.testing.assert_allclose(both.gradient[0] - both.at_mean[0], covariance, atol=1e-6)
        np.testing.assert_allclose(both.gradient[1], both.at_mean[1], atol=1e-6)  # the bias

    def test_of_equal_images_it_is_the_gradient(self):
        model = data.small_cifarnet()
        image = tf.random.stateless_normal([1, 24, 24, 3], [0, 0])
        labels = tf.constant([3, 3], tf.int64)
        both = memory.both_gradients(model, tf.repeat(image, 2, axis=0), labels)
        for gradient, at_mean in zip(both.gradient, both.at_mean, strict=True):
            np.testing.assert_allclose(gradient, at_mean, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.whole_program
def test_a_process_that_trains_grows_more_than_one_that_evaluates():
    points = [(memory.EVALUATION, 256), (memory.TRAINING, 256)]
    evaluation, training = memory.measure(points).values()
    if None in (*evaluation, *training):
        pytest.skip("neither the system nor TensorFlow's allocator tells everywhere")
    kept = memory.count(memory.make_pass(memory.TRAINING, 256)).kept
    assert training.handed_out > max(kept, evaluation.handed_out)
    assert training.resident > max(kept, evaluation.resident)
