"""The lessons' arithmetic, by hand or with NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import profiles
from laboratory import findings
from lessons import (
    batch_size,
    graph,
    learning_rate,
    memory,
    where_time_goes,
)
from lessons.where_time_goes import Step, Timed

SHAPES = findings.Setup(shapes=True)


def test_the_old_rule_is_the_tutorials():
    # cifar10.py: decay_steps = int(50,000 / 128 * 350) = 136,718, of steps of any size.
    assert learning_rate.rule_keyed_to_steps(136_717 * 128, 128) == 0.1
    assert learning_rate.rule_keyed_to_steps(136_718 * 128, 128) == pytest.approx(0.01)
    assert learning_rate.rule_keyed_to_steps(136_718 * 128, 256) == 0.1


class TestBatchSize:
    def test_a_prediction_doubles_the_examples_at_the_noise_scale(self):
        # A batch of 1 needs 100 * (1 + 1 / 64) examples, with 100 those of no noise.
        found = batch_size.predicted({1: 101.5625, 64: None}, {0: 32.0, 9: 128.0, 99: math.inf})
        assert found == pytest.approx({1: 101.5625, 64: 200.0})

    def test_the_noise_scale_is_that_of_gradients_whose_noise_is_known(self):
        # Gradients g + e, with |g|^2 = 4 and E|e|^2 = 100 / B over B examples: 100 / 4 = 25.
        assert batch_size.noise_scale(4 + 100 / 10, 4 + 100 / 50, 10, 50) == pytest.approx(25)


class TestGraph:
    # Tower 0 is busy from 0 to 3 and from 5 to 6, tower 1 from 2 to 5.5.
    EVENTS = [
        graph.Event(*event)
        for event in ((0, 2, 0), (1, 3, 0), (5, 6, 0), (2, 5.5, 1), (0, 9, None))
    ]

    def test_what_needs_another_tower_is_found_by_any_path(self):
        with tf.Graph().as_default() as built:
            with tf.name_scope("tower_0"):
                first = tf.constant(1.0, name="first")
            between = tf.identity(first, name="between")
            with tf.name_scope("tower_1"):
                tf.identity(between, name="by_input")
                with tf.control_dependencies([between]):
                    tf.constant(2.0, name="by_control")
                tf.constant(3.0, name="alone")
        of_towers = [graph.operations_of(built, index) for index in (0, 1)]
        assert [len(own) for own in of_towers] == [1, 3]
        assert graph.waiting(of_towers) == 2

    def test_an_overlap_is_a_share_of_the_less_busy_one(self):
        spans = graph.busy(event for event in self.EVENTS if event.tower == 0)
        assert spans == [(0.0, 3.0), (5.0, 6.0)]
        assert graph.overlap(self.EVENTS) == pytest.approx((1.0 + 0.5) / 3.5)


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

    def test_a_block_that_is_computed_again_gives_the_same_gradient(self):
        images = tf.random.stateless_normal([4, 24, 24, 3], [0, 0])
        labels = tf.constant([0, 1, 2, 3], tf.int64)
        passes = (memory.make_pass(way, 4) for way in (memory.TRAINING, memory.AGAIN))
        (loss, gradients), (again, others) = (one(images, labels) for one in passes)
        assert loss == again
        for gradient, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-7)


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

    def test_what_was_not_waiting_is_shared_out_as_in_the_profile(self):
        profile = {"copy": 0.0, "compute": 8.0, "reduce": 0.5, "update": 0.5, "rest": 1.0}
        step = where_time_goes.taken_apart(Timed(waited=10.0, step=50.0, cores=1.0), profile)
        assert step == Step(10.0, 0.0, 32.0, 2.0, 2.0, 4.0)
        assert step.busy == pytest.approx(32 / 50)

    @pytest.mark.long
    def test_every_operation_of_a_step_has_its_part(self):
        train_step, inputs = where_time_goes.workplace(2, SHAPES)
        batch = next(inputs[where_time_goes.FIXED])
        train_step(*batch)
        _, found = profiles.recorded(lambda: train_step(*batch))
        parts = where_time_goes.by_part(found, 1)
        assert min(parts.values()) > 0
        whole = sum(operation.milliseconds for operation in found)
        assert sum(parts.values()) == pytest.approx(whole, rel=0.02)
