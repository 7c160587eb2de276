"""Update rules on a virtual clock: what each reduces to, and what was computed by hand."""

import collections
import dataclasses

import keras
import numpy as np
import plots
import pytest

import towers
from laboratory import data, findings, paired, problems, race, report, rules, simulation, speeds
from laboratory import network as network_of
from towers import devices

PARABOLA = type("OfThree", (problems.Parabola,), {"batch": 3})()
EASGD_STAYS_AT = {"moving_rate": 0.0}  # the spring does not pull


@pytest.fixture(scope="module")
def images():
    return data.load(findings.Setup(shapes=True)).first(4_000, 500)


@pytest.fixture(scope="module")
def network(images):
    return network_of.Network(race.network, images, 8)


def run(name, problem, workers=1, of_speeds="constant", *, until=20, message=0.0, **parameters):
    """A run, and the rule in its last state."""
    rule = rules.RULES[name](**parameters)
    of_workers = speeds.Speeds(of_speeds, workers)
    measured = {"until": until, "message": message, "measurements": 10}
    return simulation.run(name, rule, problem, of_workers, **measured), rule


def trained(images, build, num_towers, per_tower, steps, rate):
    """The weights of Keras's fit with SGD on towers, one flat array."""
    model = build()
    data.compile_classifier(model, keras.optimizers.SGD(rate))
    towers.distribute(model, devices.choose(num_towers), microbatch_size=per_tower)
    batches = images.training_batches(num_towers * per_tower, steps, distorted=False)
    model.fit(batches, shuffle=False, verbose=0)
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


@pytest.fixture(scope="module")
def sgd(images):
    return trained(images, race.network, 1, 8, 16, 0.1)


class TestWithOneWorker:
    """Every rule is plain SGD: the weights of Keras's fit, to the last bit."""

    @pytest.mark.parametrize("name", [name for name in rules.RULES if name != "eamsgd"])
    def test_is_sgd(self, name, network, sgd):
        given = {
            "easgd": EASGD_STAYS_AT,
            "post_local_sgd": {"switch_after": 64, "local_steps": 4},  # 8 steps, and two rounds
        }
        done, rule = run(name, network, until=16, rate=0.1, **given.get(name, {}))
        if name == "easgd":  # the centre stays where it was: it is the worker that is SGD
            np.testing.assert_array_equal(rule.cluster.holds[0], sgd)
        else:
            np.testing.assert_array_equal(done.weights, sgd)
            assert done.used == 16
            assert set(done.staleness) == {0}

    def test_eamsgd_is_nesterov_s_momentum(self, network):
        _, rule = run("eamsgd", network, until=6, rate=0.1, momentum=0.9, **EASGD_STAYS_AT)
        weights, velocity = network.initial, np.zeros_like(network.initial)
        for number in range(6):  # Sutskever et al. 2013, equations 3 and 4
            ahead = weights + np.float32(0.9) * velocity
            gradient = network.gradient(ahead, number)
            velocity = np.float32(0.9) * velocity - np.float32(0.1) * gradient
            weights = weights + velocity
        np.testing.assert_array_equal(rule.cluster.holds[0], weights)


class TestSynchronous:
    @pytest.mark.parametrize("build", [race.network, data.small_cifarnet])
    def test_k_workers_are_a_step_of_k_towers(self, build, images):
        problem = network_of.Network(build, images, 8)
        done, _ = run("synchronous", problem, 4, "jitter", until=12, message=0.1, rate=0.1)
        assert done.updates > 3
        towers_weights = trained(images, build, 4, 8, done.updates, 0.1)
        np.testing.assert_array_equal(done.weights, towers_weights)

    def test_a_step_takes_as_long_as_the_slowest_and_two_messages(self):
        done, _ = run("synchronous", PARABOLA, 4, "straggler", until=42.5, message=0.125)
        assert done.updates == 10  # of 4 + 2 * 0.125
        assert done.used == 40

    def test_the_warm_up_goes_from_one_rate_to_k_rates(self):
        # Four workers on x**2 / 2, over 8 batches of 3: rates 0.1, 0.25, 0.4, 0.4 by hand.
        done, _ = run("warm_up", PARABOLA, 4, until=4, rate=0.1, warm_up=24)
        np.testing.assert_allclose(done.weights, 0.9 * 0.75 * 0.6 * 0.6)
        # So has every rule that makes steps of several gradients; here of three of four.
        backup, _ = run("backup_workers", PARABOLA, 4, until=4, backups=1, warm_up=18)
        np.testing.assert_allclose(backup.weights, 0.9 * 0.8 * 0.7 * 0.7)
        at_once, _ = run("warm_up", PARABOLA, 4, until=2, rate=0.1, warm_up=0)
        np.testing.assert_allclose(at_once.weights, 0.6 * 0.6)


class TestAsynchronous:
    def test_the_scaled_rate_is_divided_by_the_staleness(self):
        done, _ = run("staleness_scaled", PARABOLA, 3, until=2, rate=0.1)
        # Staleness 0, 1, 2 of the gradient 1 at first, then 2 of x_1, x_2, x_3.
        x = [1.0, 0.9, 0.8, 0.75]
        for n in range(3):
            x.append(x[-1] - 0.05 * x[n + 1])
        np.testing.assert_allclose(done.weights, x[6])

    def test_equal_speeds_have_a_staleness_of_k_minus_one(self):
        done, _ = run("asynchronous", PARABOLA, 5, until=60)
        first = dict.fromkeys(range(4), 1)  # those that all began with the same weights
        assert done.staleness == first | {4: done.used - 4}


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_is_further_ahead_than_the_bound(bound):
    """All go at the pace of the straggler, which takes 4 for each of its 10."""
    done, rule = run("bounded_staleness", PARABOLA, 3, "straggler", until=40, bound=bound)
    assert max(rule.clocks.values()) - min(rule.clocks.values()) <= bound + 1
    assert 10 * 3 <= done.used <= 10 * 3 + 2 * (bound + 1)


@pytest.mark.parametrize(("name", "slow"), [("straggler", 1), ("two_speeds", 2)])
def test_the_last_workers_are_slow(name, slow):
    taken = [speeds.Speeds(name, 5, slowdown=3.0).of_gradient(worker, 0) for worker in range(5)]
    assert taken == [1.0] * (5 - slow) + [3.0] * slow


def test_a_dead_worker_stops_the_step_until_it_is_noticed():
    """5 steps of 4, nothing until 15.5, the 6th with the 3 gradients that are there, 14 more."""
    of_workers, rule = speeds.Speeds("dying", 4, dies_at=5.5), rules.Synchronous(0.1)
    done = simulation.run("a", rule, PARABOLA, of_workers, until=30, noticed_after=10.0)
    assert (done.updates, done.used) == (20, 5 * 4 + 15 * 3)


class TestLocalSGD:
    def test_post_local_switches_after_its_examples(self):
        done, _ = run("post_local_sgd", PARABOLA, 4, until=40, local_steps=8, switch_after=96)
        assert done.updates == 8 + 4  # 8 steps of 4 * 3 examples, then 4 rounds of 8 steps

    def test_h_steps_between_means_by_hand(self, network):
        done, _ = run("local_sgd", network, 2, until=6, local_steps=3, rate=0.1)
        # Workers take turns at the one row of batches: 0, 2, 4 and 1, 3, 5.
        weights = network.initial
        for first in (0, 6):
            own = []
            for worker in range(2):
                mine = weights
                for step in range(3):
                    gradient = network.gradient(mine, first + 2 * step + worker)
                    mine = mine - np.float32(0.1) * gradient
                own.append(mine)
            weights = (own[0] + own[1]) / np.float32(2)
        np.testing.assert_array_equal(done.weights, weights)
        assert done.updates == 2


class TestEASGD:
    def test_a_pull_by_hand(self):
        # Period 1, one worker, x = x~ = 1, rate 0.1, and alpha is 0.9 / 1.
        x, centre = 1.0, 1.0
        for _ in range(5):
            pulled = 0.9 * (x - centre)
            x, centre = x - 0.1 * x - pulled, centre + pulled
        done, rule = run("easgd", PARABOLA, until=5, rate=0.1, period=1)
        np.testing.assert_allclose(done.weights, centre)
        np.testing.assert_allclose(rule.cluster.holds[0], x)


class TestRace:
    def test_the_middle_of_three_evaluations_counts(self, images):
        entry = race.Entry(500, 0.01)
        assert race.examples_needed([entry], images, accuracy=0.0, at_most=8_000) == [4_000]
        assert race.examples_needed([entry], images, accuracy=0.0, at_most=5_999) == [None]
        assert race.examples_needed([entry], images, accuracy=1.1, at_most=8_000) == [None]
        assert race.mean_needed([1.0, 2.0]) == 1.5
        assert race.mean_needed([1.0, None]) is race.mean_needed([]) is None

    def test_a_rate_warms_up_from_its_start_factor_over_its_examples(self):
        model = race.model(race.Entry(10, 0.4, warm_up=100, start_factor=0.25))
        rates = []
        for step in (0, 5, 10, 20):
            model.optimizer.iterations.assign(step)
            rates.append(float(model.optimizer.learning_rate))
        np.testing.assert_allclose(rates, [0.1, 0.25, 0.4, 0.4], rtol=1e-6)


class TestReport:
    def of_points(self, *accuracies, **changes):
        """A run with an accuracy at each unit of time, and ten examples between them."""
        of_points = [
            simulation.Point(time, 10 * time, 1.0, accuracy, 0.25)
            for time, accuracy in enumerate(accuracies)
        ]
        done, _ = run("asynchronous", PARABOLA, 2, until=2, message=0.1)
        return dataclasses.replace(done, points=of_points, **changes)

    def test_a_row_says_when_the_target_was_reached_and_how_stale_gradients_were(self):
        stale = collections.Counter({0: 1, 2: 3})
        best = self.of_points(0, 0.25, 0.5, 0.75, staleness=stale, used=4, updates=1_000, dropped=5)
        never = self.of_points(0.2, 0.2, 0.2, staleness=collections.Counter())
        head, rows = report.table([best, never, dataclasses.replace(best, diverged=True)])
        assert report.final_accuracy(best) == 0.5
        assert head[3].startswith("to 37%")
        common = ["10.0", "1,000", "1.5, 2", "5"]
        assert rows[0] == ["asynchronous", "0.1", "50.0%", "2 (20)", *common, "0.250"]
        assert rows[1][2:4] == ["20.0%", ""] and rows[1][6] == ""
        assert rows[2][2] == "diverged" and rows[2][-1] == ""
        late = dataclasses.replace(never, rule="late", diverged=True)
        plots.check("laboratory", lambda figure: report.draw(figure, [best, late], "of two"))

    def test_json_has_all_of_a_run(self):
        done = self.of_points(0.0, 0.5)
        shown = report.as_json(done)
        assert shown["gradients"] == {"began": 4, "used": 2, "dropped": 0}
        assert (shown["accuracy"], shown["staleness"]) == (0.5, {"0": 1, "1": 1})
        assert shown["points"][1] == {
            "time": 1, "examples": 10, "loss": 1.0, "accuracy": 0.5, "distance": 0.25,
        }  # fmt: skip
        no_time = report.as_json(self.of_points(0.5, diverged=True))
        assert (no_time["accuracy"], no_time["examples_per_second"]) == (None, 0)


class TestRuns:
    def test_a_run_ends_after_three_points_that_are_enough(self):
        rule, pace = rules.Asynchronous(0.1), speeds.Speeds("constant", 2)
        done = simulation.run("a", rule, PARABOLA, pace, until=99, every_examples=12, enough=0.0)
        assert [(point.time, point.examples) for point in done.points] == [(0, 0), (2, 12), (4, 24)]

    def test_the_distance_is_that_of_what_workers_hold(self):
        done, _ = run("synchronous", PARABOLA, 2, until=2.5, message=0.5)
        # Both hold 1 until the new weights, 0.9, are there, half a unit after the step at 2.
        np.testing.assert_allclose([p.distance for p in done.points[-3:]], [0.1, 0.1, 0.0])

    def test_evaluations_are_keras_s(self, network, images):
        expected = race.evaluated(network.assign(network.initial), images.test_batches())
        assert network.evaluate(network.initial) == pytest.approx(expected, rel=1e-5)

    def test_a_rate_that_is_too_large_ends_as_diverged(self):
        done, _ = run("asynchronous", PARABOLA, 4, until=4_000, rate=3.0)
        assert done.diverged
        assert 0 < len(done.points) < 11
        assert all(np.isfinite(point.loss) for point in done.points)

    def test_a_model_with_statistics_is_refused(self, images):
        with pytest.raises(ValueError, match="keeps .*moving_mean"):
            network_of.Network(data.small_resnet, images, 8)


def test_the_interval_of_a_difference_is_that_of_paired_means():
    draws = np.random.default_rng(0)
    ours, theirs = draws.random(5_000) < 0.6, draws.random(5_000) < 0.5
    result = paired.difference([ours], [theirs])
    assert paired.difference([theirs] * 2, [ours] * 2).verdict == -1
    assert paired.difference([ours, theirs], [theirs, theirs]).verdict == 0  # a seed saw none
    each = ours.astype(float) - theirs
    half = 1.96 * each.std() / np.sqrt(len(each))  # the normal one: the count is large
    assert result.high - result.mean == pytest.approx(half, rel=0.05)
    assert result.mean - result.low == pytest.approx(half, rel=0.05)
    assert str(paired.Difference(-0.0001, -0.0119, 0.0, ())) == "+0.0 (-1.2 to +0.0)"
