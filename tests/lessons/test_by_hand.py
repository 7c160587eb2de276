"""The lessons' arithmetic, by hand, with NumPy or Keras; and which numbers change their answers."""

import functools
import itertools
import math

import numpy as np
import pytest
import toys

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import profiles
from laboratory import data, findings, network, paired, problems, race, rules, simulation, speeds
from lessons import (
    averaging,
    batch_norm,
    batch_size,
    elastic_averaging,
    final_model,
    graph,
    learning_rate,
    losses,
    memory,
    scaling,
    synchronous_or_not,
    train_and_test_loss,
    where_time_goes,
)
from lessons.elastic_averaging import Sprung
from lessons.final_model import Share
from lessons.where_time_goes import AHEAD, AT_ONCE, SINGLE, STEP_BY_STEP, Step, Timed
from towers import microbatch

import keras  # isort: skip
import tensorflow as tf  # isort: skip

SHAPES = findings.Setup(shapes=True)
BETTER, WORSE = (paired.Difference(x, x, x, (x,)) for x in (0.1, -0.1))
UNSURE = paired.Difference(0.1, 0.0, 0.2, (0.1,))
GAPS = {f"{averaging.WHOLE}, float{bits}": [1.0, off] for bits, off in ((64, 1e-13), (32, 1e-6))}
FEWER, FAULTY = "2 GPUs, the same rate", "2 GPUs, twice the rate"  # updates, and a fault
BUILT = graph.Built(building=4, running=0, operations=[9], waiting=0, needed=4)
EQUAL, LAGGING, JITTER = "equal workers", "one straggler", "jitter"


def sprung(centre, worker, mean):
    return {1: Sprung(centre, [worker], mean, 0.0)}


def carried(fixed, linear, root=9, of_adam=9):
    """The examples that each rule needs with two towers; with one they all need 9."""
    needed = {"fixed": fixed, "linear": linear, "sqrt": root, "Adam, fixed": 19}
    return ({rule: {1: 9, 2: of} for rule, of in (needed | {"Adam, sqrt": of_adam}).items()},)


def reached(**seeds):
    """The synchronous rule's seeds take from 10 to 12; `seeds` are other rules' extremes."""
    keys = {"equal": (EQUAL, "asynchronous"), "jitter": (JITTER, "asynchronous")}
    keys["backup"] = LAGGING, "backup_workers"
    times = {(setting, "synchronous"): (10, 12) for setting in (EQUAL, LAGGING, JITTER)}
    times |= {keys[name]: of for name, of in seeds.items()}
    return ({key: synchronous_or_not.Reached(0, 0, *of) for key, of in times.items()},)


def waits(busy, milliseconds):
    """Of a device that is busy so long of 100 where another is for 80; of a loop, for 1."""
    behind = {SINGLE: busy, AHEAD: 80.0}
    steps = {name: {1: None, 2: (Step(20, compute=x), 1)} for name, x in behind.items()}
    of_launches = {STEP_BY_STEP: milliseconds, AT_ONCE: 1.0}
    return steps, {n: where_time_goes.Launches(9, 1.0, ms) for n, ms in of_launches.items()}


def kept(training, cosine):
    ways = {memory.TRAINING: training, memory.EVALUATION: 5}
    counted = {(way, memory.BATCHES[-1]): memory.Count(n, 0) for way, n in ways.items()}
    return counted, {128: {"a": 1.0, "b": cosine}}


ANSWERS = {
    averaging: [
        [(True, GAPS, {FEWER: BETTER}), (True, GAPS, {FAULTY: WORSE})],
        [(True, GAPS, {FEWER: WORSE, FAULTY: BETTER})],
        [(False, GAPS, {})] + [(True, GAPS | {way: [0.0, 1e-9]}, {}) for way in GAPS],
    ],
    batch_size: [
        [({8: [100, 120], 64: [120, 130]}, {8: 1.0, 64: 1.0})],
        [({8: [100, 120], 64: [130, of]}, {8: 1.0, 64: 1.0}) for of in (500, None)],
        [({8: [100, 120], 64: [400, 500]}, {8: 1.0, 64: 9.0})],
        [({8: [None], 64: []}, {8: 1.0, 64: 1.0})],
    ],
    elastic_averaging: [
        *([(sprung(0.5, 0.4, 0.6), {1: sign})] for sign in (1, 0, -1)),
        [(sprung(0.5, 0.5, 0.6), {1: 1}), (sprung(0.6, 0.5, 0.5), {1: 1})],
    ],
    final_model: [[(0.19, 0.1)], [(0.2, 0.1)]],
    graph: [[(BUILT,)], [(BUILT._replace(running=1),), (BUILT._replace(waiting=1),)]],
    learning_rate: [
        [({1: (350.0, 350.0), 2: (700.0, 350.1)},)],
        [({1: (350.0, 350.0), 2: (350.0, 350.1)},)],
        [({1: (350.0, 350.0), 2: (350.0, 700.0)},)],
    ],
    losses: [[(np.full(2, 0.5), np.array([1.5, 2.5]))], [(np.arange(2), np.array([1.5, 2.5]))]],
    memory: [[kept(6, 0.8)], [kept(6, 0.9)], [kept(5, 0.8)]],
    scaling: [
        [carried(None, 9)],
        [carried(19, 18, 19)],
        [carried(18, 9, 19), carried(19, 19, 19)],
        *([carried(*of, of_adam=19)] for of in ((None, 9), (19, 19, 19))),
    ],
    synchronous_or_not: [
        [reached(equal=(5, 10)), reached()],
        [reached(equal=(5, 9))],
        [reached(jitter=(5, 9))],
        [reached(backup=(5, 9))],
    ],
    train_and_test_loss: [[(BETTER,)], [(WORSE,), (UNSURE,)]],
    where_time_goes: [[waits(x, ms)] for x in (20.0, 60.0) for ms in (3.0, 3.1)],
}


@pytest.mark.parametrize("lesson", ANSWERS, ids=lambda lesson: lesson.LESSON.name)
def test_an_answer_follows_its_numbers(lesson):
    """Cases in one list have one answer; other lists have others."""
    answers = [{lesson.answer(*case) for case in cases} for cases in ANSWERS[lesson]]
    assert [len(of_cases) for of_cases in answers] == [1] * len(answers)
    assert len(set.union(*answers)) == len(answers)


class Near(problems.Parabola):
    """Which is the more accurate, the nearer a model is to the minimum."""

    def evaluate(self, weights):
        return super().evaluate(weights)._replace(accuracy=float(1 - abs(weights[0])))


def linear(inputs: int = 3) -> keras.Model:
    """Two logits, each a weight for each input."""
    return keras.Sequential([keras.Input([inputs]), keras.layers.Dense(2, use_bias=False)])


def gradient(weights, images, labels, decay=0.0):
    """Of the mean cross entropy of `linear`, and of a decay of its weights."""
    scores = np.exp(images @ weights)
    errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    return images.T @ errors / len(images) + decay * weights


def drawn(count: int):
    draws = np.random.default_rng(0)
    return draws.normal(size=[count, 3]).astype("float32"), draws.integers(0, 2, count)


class TestAveraging:
    def clipped(self, of):
        return of * min(1, averaging.CLIP_NORM / np.linalg.norm(of))

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, lambda a, b, clip: [(a + b) / 2]),
            ({"reduce": averaging.total}, lambda a, b, clip: [a + b]),
            ({"reduce": None}, lambda a, b, clip: [a, b]),
            ({"clip_before": True}, lambda a, b, clip: [(clip(a) + clip(b)) / 2]),
            ({"clip_after": True}, lambda a, b, clip: [clip((a + b) / 2)]),
        ],
    )
    def test_a_way_cuts_a_batch_and_reduces_the_gradients_of_its_parts(self, options, expected):
        model, (images, labels) = linear(), drawn(128)
        weights = model.get_weights()[0]
        defaults = {"reduce": averaging.mean, "cuts": (96, 32), "decays": (1, 0)}
        cut = averaging.halves(**defaults | options)
        result = cut(model, [tf.constant(weights)], tf.constant(images), tf.constant(labels))
        decays = averaging.WEIGHT_DECAY, 0.0
        parts = zip((slice(96), slice(96, None)), decays, strict=True)
        of_parts = [gradient(weights, images[at], labels[at], decay) for at, decay in parts]
        np.testing.assert_allclose(
            [of for (of,) in result], expected(*of_parts, self.clipped), rtol=1e-4, atol=1e-6
        )

    @pytest.mark.parametrize("adam", [False, True])
    def test_training_is_keras_s(self, adam):
        optimizer = keras.optimizers.Adam(0.001) if adam else keras.optimizers.SGD(averaging.RATE)
        model, batches = linear(), [(x, 0) for x in np.linspace(1, 2, 3, dtype="float32")]
        gradients = lambda model, weights, x, _: [[x * weights[0]]]  # noqa: E731
        path = averaging.train(averaging.Way(lambda: model, gradients, adam=adam), batches)
        assert len(path) == 4
        for (x, _), before, after in zip(batches, path, path[1:], strict=False):
            np.testing.assert_allclose(model.get_weights()[0].ravel(), before, rtol=1e-5)
            optimizer.apply([x * model.weights[0].value], model.weights)
            np.testing.assert_allclose(model.get_weights()[0].ravel(), after, rtol=1e-5)

    def test_a_gap_is_a_share_of_the_way(self):
        path, right = ([np.array(w) for w in of] for of in ([(0, 0), (3, 3)], [(0, 0), (3, 4)]))
        assert averaging.gap(path, right) == [1 / 5]

    def test_towers_are_the_mean_of_the_parts_and_epochs_are_those_of_fit(self):
        images = data.load(SHAPES).first(192, 1_000)
        batches = list(images.training_batches(averaging.BATCH, 2))
        path = averaging.train(averaging.ways()[averaging.RIGHT], batches)
        np.testing.assert_allclose(averaging.train_on_towers(2, batches), path[1:], atol=1e-5)
        model = race.model(race.Entry(64, 4 * averaging.RATE_OF_ONE, seed=1))
        model.fit(images.training_batches(64, 6, seed=1, distorted=False), shuffle=False, verbose=0)
        result = averaging.train_epochs(images, epochs=2, gpus=2, times=4, seed=1)
        assert np.mean(result == race.right(model, images)) > 0.99


class TestBatchNorm:
    def test_distances_of_statistics(self):
        here, true = ([np.array(x) for x in of] for of in ([[1, 3], [2, 8]], [[0, 0], [1, 9]]))
        assert batch_norm.distance(here, true) == pytest.approx(1.0)
        assert batch_norm.variances(here, true) == pytest.approx(math.sqrt(2 * 8 / 9))

    def test_statistics_are_those_of_each_tower_s_part_or_of_many_images(self):
        """The first layer's: a step moves them a tenth of the way to those of its inputs."""
        images = data.load(SHAPES)
        model, sets = batch_norm.trained(images, 1)

        def of_inputs(network, pixels):
            inputs = keras.Model(network.input, network.get_layer("conv1").output)(pixels).numpy()
            return inputs.mean(axis=(0, 1, 2)), inputs.var(axis=(0, 1, 2))

        ((pixels, labels),) = images.training_batches(batch_norm.BATCH, 1)
        for part, of_tower in zip(np.split(pixels, batch_norm.TOWERS), sets, strict=True):
            mean, variance = of_inputs(data.small_resnet(), part)
            np.testing.assert_allclose(of_tower[0], 0.1 * mean, atol=1e-5)
            np.testing.assert_allclose(of_tower[1], 0.9 + 0.1 * variance, rtol=1e-3)
        assert batch_norm.same_gradients(model, sets, (pixels, labels))
        many = [of_inputs(model, x) for x, _ in images.training_batches(500, 2, seed=1)]
        result = batch_norm.estimated(model, images, 1_000)
        for values, expected in zip(result, zip(*many, strict=True), strict=False):
            np.testing.assert_allclose(values, np.mean(expected, axis=0), rtol=1e-3, atol=1e-5)


class TestBatchSize:
    def test_the_noise_scale_is_that_of_gradients_whose_noise_is_known(self):
        # Gradients g + e, with |g|^2 = 4 and E|e|^2 = 100 / B over B examples: 100 / 4 = 25.
        assert batch_size.noise_scale(4 + 100 / 10, 4 + 100 / 50, 10, 50) == pytest.approx(25)
        assert batch_size.noise_scale(100 / 10, 100 / 50, 10, 50) == math.inf

    def test_norms_are_those_of_the_microbatches_gradients(self):
        model, (images, labels) = linear(), drawn(batch_size.MICROBATCHES * 4)
        data.compile_classifier(model, keras.optimizers.SGD())
        one_pass = microbatch.Microbatch(model, training=True, jit_compile=False)
        result = batch_size.squared_norms(one_pass, tf.constant(images), tf.constant(labels))
        weights, cut = model.get_weights()[0], batch_size.MICROBATCHES
        parts = zip(np.split(images, cut), np.split(labels, cut), strict=True)
        of_parts = [np.sum(gradient(weights, *part) ** 2) for part in parts]
        whole = np.sum(gradient(weights, images, labels) ** 2)
        np.testing.assert_allclose(result, [np.mean(of_parts), whole], rtol=1e-4)

    def test_a_run_by_hand(self):
        """Every accuracy is enough: the second of three evaluations counts, each 2,000 later."""
        sizes = {"rates": {64: (0.1, 0.2)}, "accuracy": 0.0, "at_most": 6_200}
        gap = {"examples": 64, "loss": 9.0, "at_most": 1_500}
        sizes |= {"gap": gap, "steps_before_noise": 3, "seeds": (1,), "turns": 1}
        numbers = batch_size.run(SHAPES, **sizes).numbers
        assert numbers["of_seeds"] == {64: [4_096]}
        assert [*numbers["noise_scale"]] == [0, 64, 192]
        seen = {batch: [run.examples for run in runs] for batch, runs in numbers["stopped"].items()}
        assert seen == {32: [64], 1024: [1_024]}

    def test_a_run_that_is_stopped_has_been_trained(self):
        """Of two epochs the first does not come to the loss; a third would be too many."""
        images, entry = data.load(SHAPES).first(128, 500), race.Entry(64, 0.2, seed=1)
        model = race.model(entry)
        model.fit(images.training_batches(64, 4, seed=1, distorted=False), shuffle=False, verbose=0)
        expected = race.evaluated(model, images.test_batches("train")).loss
        for limits in ({"loss": expected + 1e-4, "at_most": 999}, {"loss": 0, "at_most": 383}):
            result = batch_size.stopped_at(entry, images, **limits)
            assert result[:2] == (256, pytest.approx(expected, rel=1e-4))


class TestElasticAveraging:
    @pytest.mark.parametrize("rate", [0.2, 1.0, 1.8])
    def test_the_limit_is_where_an_eigenvalue_is_minus_one(self, rate):
        alpha = elastic_averaging.stable_up_to(rate)
        turn = [[1 - rate - alpha, alpha], [alpha, 1 - alpha]]
        assert min(np.linalg.eigvalsh(turn)) == pytest.approx(-1)

    def test_means_and_signs_of_seeds(self):
        seeds = [Sprung(0.5, [1, 2], 0.4, 1), Sprung(0.7, [3, 6], 0.6, 3)]
        mean = elastic_averaging.mean_of(seeds)
        assert mean == (pytest.approx(0.6), [2, 4], pytest.approx(0.5), 2)
        signs = [(seeds, 1), ([seeds[0], seeds[1]._replace(mean=0.7)], 0)]
        signs += [([seeds[0]._replace(mean=0.6)], -1), ([seeds[0]._replace(mean=0.5)], 0)]
        for of_seeds, sign in signs:
            assert elastic_averaging.centre_against_mean(of_seeds) == sign

    def test_a_run_by_hand(self):
        """A parabola, whose accuracy is how near its minimum a model is."""
        result = elastic_averaging.of_spring(Near(), 2, 0.1, 4.0, 0.5, 1)
        rule = rules.EASGD(0.1, 0.5, 1)
        equal, message = speeds.Speeds("constant", 2), elastic_averaging.MESSAGE
        end = simulation.run("a", rule, Near(), equal, until=4.0, message=message).end
        held = [1 - rule.cluster.holds[worker][0] for worker in range(2)]
        assert result == (end.accuracy, held, pytest.approx(np.mean(held)), end.distance)
        # Two steps of the mean gradient, each of which takes as long as three messages.
        assert elastic_averaging.of_synchronous(Near(), 2, 0.1, 6.0) == pytest.approx(1 - 0.9**2)
        limit = elastic_averaging.stable_up_to(1.0)
        assert elastic_averaging.unstable_from(1.0, 3) == pytest.approx(limit, rel=1e-3)

    def test_each_spring_has_its_strength_and_its_period(self):
        sizes = {"workers": 2, "time": 12.0, "pulls": (0, 1), "periods": (1, 8), "etas": (1.0,)}
        numbers = elastic_averaging.run(SHAPES, **sizes, rate=0.1, seeds=(1,)).numbers
        build, batch = functools.partial(race.network, 1), elastic_averaging.BATCH
        problem = network.Network(build, data.load(SHAPES), batch, seed=1, test_batches=10)
        of = functools.partial(elastic_averaging.of_spring, problem, 2, 0.1, 12.0)
        for pull in (0, 1):
            expected = of(0.45 * pull, elastic_averaging.PERIOD)
            assert numbers["sprung"][pull] == expected
        assert numbers["periods"] == {1: of(0.45, 1), 8: expected}
        rates = [elastic_averaging.of_synchronous(problem, 2, rate, 12.0) for rate in (0.1, 0.2)]
        assert numbers["synchronous"] == max(rates)


class TestFinalModel:
    @pytest.mark.parametrize(("count", "accuracy"), [(10, 0.0), (10, 1.0), (40, 0.3)])
    def test_an_interval_ends_where_the_accuracy_is_1_96_deviations_off(self, count, accuracy):
        for end in final_model.interval(Share(count, accuracy)):
            variance = end * (1 - end) / count
            assert (end - accuracy) ** 2 == pytest.approx(1.96**2 * variance, abs=1e-12)

    def test_chance_is_that_of_all_ways_to_deal_out(self):
        right = [1, 1, 0, 0, 0]
        dealt = [np.mean(of) for of in itertools.combinations(right, 2)]
        result = final_model.spread_by_chance([Share(2, 0.0)], Share(5, 0.4))
        assert result == pytest.approx(np.std(dealt))


class TestGraph:
    def test_the_overlap_is_of_the_less_busy_tower(self):
        spans = {0: [(3, 6), (0, 4)], 1: [(5, 7), (8, 9)], None: [(0, 100)]}
        events = [graph.Event(*span, tower) for tower, of in spans.items() for span in of]
        assert graph.busy(events[:2]) == [(0, 6)]
        assert graph.overlap(events) == pytest.approx(1 / 3)
        calls = [[graph.Event(0, end, 0)] for end in (4, 5, 1, 2, 3)]
        assert graph.median_call(calls) == calls[4]

    def test_what_waits_reads_another_tower_s(self):
        with tf.Graph().as_default() as drawn:
            with tf.name_scope("tower_0"):
                first = tf.constant(1.0) + 1.0
            with tf.name_scope("step/tower_1"):
                between = first + 1.0
                _ = between + 1.0
        of_towers = [graph.operations_of(drawn, index) for index in (0, 1)]
        assert [len(of) for of in of_towers] == [3, 4]
        assert graph.waiting(of_towers) == 2


class TestMemory:
    @pytest.mark.parametrize("images", [1, 7])
    def test_a_pass_keeps_what_its_gradient_reads(self, images):
        """Two layers: images [n, 3], hidden [n, 4], outputs [n, 2], all float32."""
        weights, of_images = (tf.ones([3, 4]), tf.ones([4, 2])), tf.TensorSpec([images, 3])

        @tf.function(autograph=False)
        def one_pass(x, gradient):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                hidden = tf.nn.relu(x @ weights[0])
                outputs = tf.reshape(hidden @ weights[1], [-1])
                loss = tf.reduce_sum(outputs * outputs)
            return loss, tape.gradient(loss, weights) if gradient else []

        with_gradient, without = map(one_pass.get_concrete_function, [of_images] * 2, (True, False))
        # relu's output, for its own gradient and the second product's, and the outputs, reshaped
        # or not, for the square's; not relu's input.
        assert memory.count(with_gradient).kept == 4 * images * (4 + 2)
        # Without a gradient, two neighbours are alive: before relu and behind it.
        assert memory.count(without) == (0, 4 * images * (4 + 4))

    def test_the_gradient_at_the_mean_is_the_gradient_where_all_images_are_the_same(self):
        pixels, labels = tf.ones([5, *data.SHAPE]), tf.ones([5], tf.int64)
        both = memory.both_gradients(data.small_cifarnet(), pixels, labels)
        toys.assert_close(both.gradient, both.at_mean, rtol=1e-3, atol=1e-6)

    def test_losses_are_keras_s_and_gradients_of_equal_images_have_a_cosine_of_1(self):
        batches = list(data.load(SHAPES).training_batches(memory.BATCH, 2, distorted=False))
        model = data.small_cifarnet()
        data.compile_classifier(model, keras.optimizers.Adam(memory.RATE))
        losses = [model.train_on_batch(*batch, return_dict=True)["loss"] for batch in batches]
        result = memory.train(lambda both: both.gradient, batches)
        assert result == pytest.approx(losses, rel=1e-4)
        one = tf.repeat(batches[0][0][:1], 3, axis=0), tf.ones([3], tf.int64)
        kernels = [v.path for v in model.trainable_variables if "kernel" in v.path]
        assert memory.cosines([one, one]) == pytest.approx(dict.fromkeys(kernels, 1.0))

    @pytest.mark.long
    def test_a_process_of_its_own_measures_a_pass(self):
        points = [(way, memory.BATCHES[-1]) for way in (memory.EVALUATION, memory.TRAINING)]
        evaluation, training = memory.measure(points).values()
        assert training.resident is None or training.resident > evaluation.resident > 0
        counted = memory.count(memory.make_pass(*points[1])).kept
        assert training.handed_out is None or training.handed_out > 0.9 * counted


class TestScaling:
    def test_rates_of_rules(self):
        entry = scaling.entry
        assert entry("linear with warm-up", 4, 2) == race.Entry(128, 0.2, 3_000, 0.25, seed=2)
        assert entry("linear with warm-up", 1, 0) == race.Entry(32, 0.05)
        assert entry("Adam, sqrt", 4, 0) == race.Entry(128, 2e-3, optimizer="adam")

    def test_how_far_a_rule_holds_and_what_is_shown(self):
        cases = [({1: None, 2: 9}, 0), ({1: 9, 2: 18, 4: 19}, 2), ({1: 9, 2: 19, 4: 9}, 1)]
        assert [scaling.holds_up_to(of_k) for of_k, _ in cases] == [k for _, k in cases]
        seeds = [[100.0, 300.0], [100.0, None], [None]]
        assert [*map(scaling.shown, seeds)] == ["200 (100–300)", "1 of 2 reached it", "not reached"]


class TestSynchronousOrNot:
    def test_a_run_by_hand(self):
        """Every accuracy is enough, so the second of three evaluations counts: 1,200 examples on.

        A round of two workers is 32 examples: 1,200 need 37.5 rounds, so 38.
        """
        rates, settings = (
            {"synchronous": (0.1, 0.2), "asynchronous": (0.1,)},
            ("slow messages",),
        )
        sizes = {"workers": 2, "accuracy": 0.0, "at_most": 400.0, "seeds": (0, 1)}
        finding = synchronous_or_not.run(SHAPES, rates=rates, settings=settings, **sizes)
        times = {settings[0]: 38 * 5}
        expected = {(of, rule): time for of, time in times.items() for rule in rates}
        assert finding.numbers["time"] == pytest.approx(expected)
        needed = {"synchronous": 1_216, "asynchronous": 1_200}
        assert finding.numbers["examples"] == {key: needed[key[1]] for key in expected}


class TestTrainAndTestLoss:
    def test_a_run_shows_what_fit_does_and_evaluates_the_averages(self):
        images = data.load(SHAPES).first(128, 500)
        batches = images.training_batches(train_and_test_loss.BATCH, 4, distorted=False)
        result = train_and_test_loss.train(images, [1, 2], 0, False, 0.0)
        model = race.model(race.Entry(64, train_and_test_loss.RATE))
        history = model.fit(batches, epochs=2, steps_per_epoch=2, shuffle=False, verbose=0).history
        shown = [point.shown for point in result.points]
        np.testing.assert_allclose(shown, history["loss"], rtol=1e-5)
        assert [point.epoch for point in result.points] == [1, 2]
        assert result.points[-1].test == pytest.approx(race.evaluated(model, images.test_batches()))
        assert result.train == pytest.approx(race.evaluated(model, images.test_batches("train")))


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

    def test_parts_of_a_step(self):
        step = Step(2.0, 0, 4.0, rest=4.0)
        assert where_time_goes.of_device(Timed(2.0, 10.0, 1.5), 128_000) == (step, 1.5)
        taken = where_time_goes.taken_apart(Timed(1.0, 11.0, 1.0), {"compute": 3.0, "rest": 2.0})
        assert taken == Step(1.0, compute=6.0, rest=4.0)
        row = ["a", "1.0", "3.0", "16.0", "20.0", "15%", "150%"]
        assert where_time_goes.as_row("a", Step(1, 2, 3, 4, 5, 5), 1.5) == row
        names = {"tower_1/conv": 6.0, "tower_0/conv": 2.0, "apply/x": 1.0}
        names |= {"average_gradients/x": 3.0, "x/y": 9.0}
        ran = [profiles.Operation(name, "Mul", 0.0, ms) for name, ms in names.items()]
        ran.append(profiles.Operation("tower_0/x", "_Send", 0.0, 5.0))
        parts = {"compute": 4.0, "update": 1.0, "reduce": 3.0, "copy": 5.0}
        assert where_time_goes.by_part(ran, 2) == parts

    @pytest.mark.parametrize(
        ("device", "ahead", "busy"), [(200, True, 0.5), (50, True, 1.0), (300, False, 0.25)]
    )
    def test_how_busy_a_device_is_behind_an_input_of_100(self, device, ahead, busy):
        assert where_time_goes.expected_busy(device, 100.0, ahead) == busy

    def test_what_is_profiled(self):
        profile = where_time_goes.profiled(2, SHAPES, 1)
        assert set(profile) == {*where_time_goes.PART_OF_SCOPE.values(), "rest"}
        assert min(profile["compute"], profile["update"], profile["reduce"], profile["copy"]) > 0
        timed = where_time_goes.turn(2, SHAPES, AHEAD)
        assert 0 < timed.waited < timed.step and timed.cores > 0
        loop, at_once = where_time_goes.of_launches(1).values()
        assert loop.operations > 10 * where_time_goes.TIME_STEPS > 100 > at_once.operations
        assert min(loop.typical, loop.milliseconds, at_once.typical, at_once.milliseconds) > 0

    def test_an_image_is_distorted_as_the_tutorial_does(self):
        """Brightness is lost again as the image is standardized."""
        image, mirrored = np.random.default_rng(1).normal(size=[32, 32, 3]) * 255, set()
        for seed in range(4):
            draws, result = np.random.default_rng(seed), np.random.default_rng(seed)
            top, left = draws.integers(0, [9, 9])
            pixels = image[top : top + 24, left : left + 24]
            mirrored.add(flips := draws.random() < 0.5)
            contrast = [draws.uniform(-63, 63), draws.uniform(0.2, 1.8)][1]
            shown = contrast * pixels + (1 - contrast) * pixels.mean(axis=(0, 1))
            shown = (shown - shown.mean()) / shown.std()
            result = where_time_goes.distorted(image, result)
            np.testing.assert_allclose(result[:, ::-1] if flips else result, shown, atol=1e-3)
        assert len(mirrored) == 2

    def test_images_are_standardized_and_steps_are_timed(self):
        images = data.load(SHAPES).first(5, 1).train
        batches = list(itertools.islice(where_time_goes.image_by_image(images, 2), 4))
        expected = images.labels[:4].reshape(2, 2).tolist() * 2
        assert [labels.tolist() for _, labels in batches] == expected
        for pixels, _ in batches:
            np.testing.assert_allclose(pixels.mean(axis=(1, 2, 3)), 0, atol=1e-4)
            np.testing.assert_allclose(pixels.std(axis=(1, 2, 3)), 1, rtol=1e-4)
        made, fast = [], Timed(0.0, 1.0, 1.0)
        timed = where_time_goes.quickest(itertools.repeat([0]), made.append, windows=2, steps=4)
        assert len(made) == where_time_goes.LEAD_IN + 2 * 4 and timed.step > timed.waited > 0
        turns = iter([fast._replace(step=2.0), fast, fast._replace(step=3.0)])
        assert where_time_goes.by_turns({"a": lambda: next(turns)}, 3) == {"a": fast}
