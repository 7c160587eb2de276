"""The lessons' arithmetic, by hand or with NumPy."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

from benchmarks import profiles
from laboratory import data, findings, race
from lessons import (
    batch_size,
    elastic_averaging,
    graph,
    learning_rate,
    memory,
    synchronous_or_not,
    where_time_goes,
)
from lessons.where_time_goes import Step, Timed
from towers import devices, microbatch

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
        assert batch_size.predicted({1: None, 64: 100.0}, {0: 32.0}) == {}

    def test_a_mean_needs_every_seed(self):
        assert race.mean_needed([10, 20]) == 15
        assert race.mean_needed([10, None]) is race.mean_needed([]) is None

    def test_the_noise_scale_is_that_of_gradients_whose_noise_is_known(self):
        # Gradients g + e, with |g|^2 = 4 and E|e|^2 = 100 / B over B examples: 100 / 4 = 25.
        assert batch_size.noise_scale(4 + 100 / 10, 4 + 100 / 50, 10, 50) == pytest.approx(25)

    def test_norms_are_those_of_the_microbatches(self):
        model = race.model(race.Entry(64, 0.1))
        one_pass = microbatch.Microbatch(model, training=True, jit_compile=False)
        images = np.random.default_rng(0).normal(size=(1024, 24, 24, 3)).astype(np.float32)
        labels = np.arange(1024) % 10
        small, large = batch_size.squared_norms(one_pass, images, labels)
        gradients = []
        for part in np.split(np.arange(1024), batch_size.MICROBATCHES):
            with tf.GradientTape() as tape:
                logits = model(images[part])
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[part], logits)
                loss = tf.reduce_mean(losses)
            of_part = tape.gradient(loss, [v.value for v in model.trainable_variables])
            gradients.append(np.concatenate([np.ravel(g) for g in of_part]))
        assert float(small) == pytest.approx(np.mean(np.square(gradients).sum(axis=1)), rel=1e-4)
        assert float(large) == pytest.approx(np.square(np.mean(gradients, axis=0)).sum(), rel=1e-4)


class TestGraph:
    # Tower 0 is busy from 0 to 3 and from 5 to 6, tower 1 from 2 to 5.5.
    EVENTS = [
        graph.Event(*event)
        for event in ((0, 2, 0), (1, 3, 0), (5, 6, 0), (2, 5.5, 1), (0, 9, None))
    ]

    def test_the_two_ways_give_the_same_gradients(self):
        images, labels = next(iter(data.load(SHAPES).training_batches(8, 1)))
        ways = graph.two_ways(data.small_cifarnet(), devices.choose(2))
        in_graph, one_by_one = (tf.nest.flatten(way(images, labels)) for way in ways)
        for gradient, other in zip(in_graph, one_by_one, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-7)

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

    @pytest.mark.parametrize(
        "name, tower",
        [
            ("tower_11/microbatch/gradient_tape/local3/MatMul", 11),
            ("loop/tower_11/microbatch/add", 11),
            ("average_gradients/add", None),
            ("my_tower_1/add", None),
        ],
    )
    def test_an_operation_s_tower_is_its_scope(self, name, tower):
        assert graph.tower_of(name) == tower

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

    def test_what_a_mean_activation_misses_is_the_covariance_with_the_errors(self):
        draws = np.random.default_rng(0)
        images = draws.normal(size=[6, 3]).astype(np.float32)
        labels = draws.integers(4, size=6)
        inputs = keras.Input([3])
        layer = keras.layers.Dense(4, kernel_initializer="zeros")
        model = keras.Model(inputs, toys.on_cpu(lambda: layer(inputs)))
        both = memory.both_gradients(model, tf.constant(images), tf.constant(labels))
        errors = np.full([6, 4], 1 / 4) - np.eye(4)[labels]
        covariance = (images - images.mean(axis=0)).T @ (errors - errors.mean(axis=0)) / 6
        np.testing.assert_allclose(both.gradient[0] - both.at_mean[0], covariance, atol=1e-6)
        np.testing.assert_allclose(both.gradient[1], both.at_mean[1], atol=1e-6)  # the bias

    @pytest.mark.long
    @pytest.mark.whole_program
    def test_a_process_that_trains_grows_more_than_one_that_evaluates(self):
        points = [(memory.EVALUATION, 256), (memory.TRAINING, 256)]
        evaluation, training = memory.measure(points).values()
        if None in (*evaluation, *training):
            pytest.skip("neither the system nor TensorFlow's allocator tells everywhere")
        kept = memory.count(memory.make_pass(memory.TRAINING, 256)).kept
        assert training.handed_out > max(kept, evaluation.handed_out)
        assert training.resident > max(kept, evaluation.resident)


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

    def test_a_device_is_as_busy_as_its_input_is_quick(self):
        busy = where_time_goes.expected_busy
        assert busy(100.0, input_rate=60.0, ahead=True) == pytest.approx(0.6)
        assert busy(100.0, input_rate=600.0, ahead=True) == 1.0
        assert busy(100.0, input_rate=300.0, ahead=False) == pytest.approx(0.75)

    @pytest.mark.parametrize(
        "name, kind, part",
        [
            ("cut_batch/Slice", "StridedSlice", "copy"),
            ("tower_1/Identity_3", "Identity", "copy"),
            ("weights/ReadVariableOp/_1", "_Send", "copy"),
            ("tower_10/microbatch_1/gradient_tape/local3/MatMul", "MatMul", "compute"),
            ("average_gradients/truediv_4", "RealDiv", "reduce"),
            ("moving_averages/sub_5", "Sub", "update"),
            ("map/while", "While", None),
        ],
    )
    def test_an_operation_belongs_to_the_part_of_its_scope(self, name, kind, part):
        assert where_time_goes.part_of(name, kind) == part

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

    def test_all_inputs_are_full_batches_of_distorted_images(self):
        for batches in where_time_goes.pipelines(data.load(SHAPES), 8).values():
            images, labels = next(iter(batches))
            assert (images.shape, labels.shape) == ((8, 24, 24, 3), (8,))
            np.testing.assert_allclose(np.mean(images, axis=(1, 2, 3)), 0, atol=1e-4)
            np.testing.assert_allclose(np.std(images, axis=(1, 2, 3)), 1, atol=1e-2)


def test_the_time_lines_show_who_waits():
    lines = {rule: synchronous_or_not.time_line(rule) for rule in synchronous_or_not.DRAWN}
    last = synchronous_or_not.LANES - 1  # the straggler

    def busy(rule, worker):
        return sum(one.end - one.begin for one in lines[rule] if one.worker == worker)

    assert busy("synchronous", 0) < 0.3 * busy("synchronous", last)  # waits three quarters
    for rule in ("backup_workers", "asynchronous"):
        assert busy(rule, 0) > 0.7 * busy(rule, last)


class TestElasticAveraging:
    @pytest.mark.parametrize(
        ("centres", "means", "sign"),
        [((0.5, 0.6), (0.4, 0.5), 1), ((0.4, 0.5), (0.5, 0.6), -1), ((0.4, 0.6), (0.5, 0.5), 0)],
    )
    def test_a_model_is_better_where_every_seed_says_so(self, centres, means, sign):
        of_seeds = [
            elastic_averaging.Sprung(centre, [0.3, 0.3], mean, 1.0)
            for centre, mean in zip(centres, means, strict=True)
        ]
        assert elastic_averaging.centre_against_mean(of_seeds) == sign

    @pytest.mark.parametrize("workers", [1, 3, 5])
    def test_the_formula_is_exact_for_odd_numbers_of_workers(self, workers):
        """By the eigenvalues of a round, in which one worker after the other takes its turn."""

        def largest(alpha, rate=0.6):
            a_round = np.eye(workers + 1)
            for worker in range(workers):
                turn = np.eye(workers + 1)
                turn[worker, worker] = 1 - rate - alpha
                turn[worker, -1] = turn[-1, worker] = alpha
                turn[-1, -1] = 1 - alpha
                a_round = turn @ a_round
            return max(abs(np.linalg.eigvals(a_round)))

        limit = elastic_averaging.stable_up_to(0.6)
        assert largest(0.999 * limit) < 1 < largest(1.001 * limit)
