"""The lesson on the parts of a step: its short version, its arithmetic, and what it reads."""

import dataclasses
import functools
import itertools
import time

import lesson_checks
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import profiles
from laboratory import data, findings
from lessons import where_time_goes
from lessons.where_time_goes import AHEAD, FIXED, NONE_AHEAD, SINGLE, Step, Timed

SHORT = findings.Setup(short=True)


LESSON = where_time_goes.LESSON


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(glance, tmp_path):
    lesson_checks.check_finding(glance, tmp_path)


@pytest.mark.long
class TestFinding:
    @pytest.mark.long
    def test_most_of_a_step_is_compute(self, finding):
        steps = finding.numbers["steps"]
        assert set(steps) == set(where_time_goes.TRAINED)
        for step in steps.values():
            assert min(step) >= 0
            assert step.compute == max(step)
        one = steps[1, FIXED]
        assert one.input < 0.1  # the batch is there
        assert min(one.compute, one.reduce, one.update) > 0

    @pytest.mark.long
    def test_a_loop_over_images_is_much_slower_than_whole_batches(self, finding):
        rates = finding.numbers["rates"]  # more than ten times as fast where nothing disturbs
        assert rates[AHEAD] > 3 * rates[SINGLE]
        assert rates[AHEAD] > 3 * rates[NONE_AHEAD]

    @pytest.mark.long
    def test_a_device_behind_the_loop_is_less_busy(self, finding):
        behind = finding.numbers["behind"]
        for rate in behind[AHEAD]:
            busy = {name: of_rate[rate][0].busy for name, of_rate in behind.items()}
            assert 0 < busy[NONE_AHEAD] < busy[AHEAD] <= 1
        assert busy[SINGLE] < 0.6 * busy[AHEAD]  # where the device is quickest: about 15 of 80 %

    def test_the_claim_has_its_numbers(self, glance):
        numbers = glance.numbers
        device_rate = list(numbers["behind"][SINGLE])[1]
        speed_ups = numbers["speed_ups"]
        for text in (
            f"{numbers['steps'][1, FIXED].busy:.0%} is compute",
            f"a device of {device_rate:,.0f} images/s was busy",
            f"should make {speed_ups['predicted']:.2f} times",
            f"and made {speed_ups['measured']:.2f} times",
        ):
            assert text in glance.claim

    def test_the_table_adds_up(self, glance):
        assert [len(row) for row in glance.rows] == [7] * 8
        for _, *parts, whole, _, _ in glance.rows:
            assert sum(map(float, parts)) == pytest.approx(float(whole), abs=0.5)

    def test_a_loop_over_time_steps_runs_many_small_operations(self, glance):
        launches = glance.numbers["launches"]
        loop = launches[where_time_goes.STEP_BY_STEP]
        at_once = launches[where_time_goes.AT_ONCE]
        assert loop.operations > 10 * where_time_goes.TIME_STEPS
        assert at_once.operations < 100
        assert loop.milliseconds > 3 * at_once.milliseconds
        assert "many small operations" in glance.answer

    def test_the_plot_cuts_no_text_off(self, glance):
        figure = matplotlib.figure.Figure(figsize=(8.5, 4.2), dpi=100, layout="constrained")
        matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
        glance.draw(figure)
        figure.canvas.draw()
        left, right = figure.axes
        legends = [*figure.legends, left.get_legend()]
        of_axes = [[axes.title, *axes.get_yticklabels(), *axes.texts] for axes in (left, right)]
        for shown in itertools.chain(legends, *of_axes):
            extent = shown.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= 850 and 0 <= extent.y0 < extent.y1 <= 420, shown


class TestArithmetic:
    ONE = Step(copy=1.0, compute=60.0, reduce=2.0, update=3.0, rest=4.0)

    def predict(self, num_towers, cores) -> Step:
        return where_time_goes.predicted(self.ONE, num_towers, cores, of_batch=1.6)

    def test_compute_is_divided_and_the_rest_stays(self):
        assert self.predict(2, cores=4) == self.ONE._replace(compute=30.0)
        assert self.predict(1, cores=4) == self.ONE

    def test_input_is_seen_where_no_core_is_free(self):
        assert self.predict(2, cores=2).input == pytest.approx(0.8)
        assert self.predict(4, cores=4).input == pytest.approx(0.4)

    def test_one_core_gains_nothing(self):
        one, two = (self.predict(k, cores=1) for k in (1, 2))
        assert one.compute == two.compute == 60.0
        assert sum(two) == pytest.approx(sum(one))

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

    def test_the_quickest_of_several_turns_counts(self):
        turns = {"a": iter([5.0, 3.0, 4.0]), "b": iter([1.0, 2.0, 3.0])}
        order = []

        def take(name):
            order.append(name)
            return Timed(waited=0.0, step=next(turns[name]), cores=1.0)

        sides = {name: functools.partial(take, name) for name in turns}
        timed = where_time_goes.by_turns(sides, 3)
        assert {name: of.step for name, of in timed.items()} == {"a": 3.0, "b": 1.0}
        assert order == ["a", "b"] * 3

    def test_a_window_tells_waiting_from_work(self):
        def batches():
            for _ in range(4):
                time.sleep(0.02)
                yield ()

        timed = where_time_goes.window(batches(), lambda: time.sleep(0.01), 4)
        assert 20 <= timed.waited <= timed.step - 10
        assert timed.cores < 0.9  # it slept


class TestProfile:
    @pytest.mark.parametrize(
        "name, kind, part",
        [
            ("cut_batch/Slice", "StridedSlice", "copy"),
            ("weights/ReadVariableOp", "ReadVariableOp", "copy"),
            ("tower_1/Identity_3", "Identity", "copy"),
            ("weights/ReadVariableOp/_1", "_Send", "copy"),
            ("tower_0/microbatch/conv1/convolution", "Conv2D", "compute"),
            ("tower_10/microbatch_1/gradient_tape/local3/MatMul", "MatMul", "compute"),
            ("average_gradients/truediv_4", "RealDiv", "reduce"),
            ("apply/sgd/Mul_4", "Mul", "update"),
            ("moving_averages/sub_5", "Sub", "update"),
            ("metrics/AssignAddVariableOp", "AssignAddVariableOp", "update"),
            ("map/while", "While", None),
        ],
    )
    def test_an_operation_belongs_to_the_part_of_its_scope(self, name, kind, part):
        assert where_time_goes.part_of(name, kind) == part

    def test_towers_are_side_by_side(self):
        found = [
            profiles.Operation(name, "Mul", begin=0.0, milliseconds=milliseconds)
            for name, milliseconds in (("tower_0/a", 3.0), ("tower_1/a", 5.0), ("apply/a", 2.0))
        ]
        assert where_time_goes.by_part(found, 2) == {
            "copy": 0.0, "compute": 4.0, "reduce": 0.0, "update": 2.0
        }  # fmt: skip

    @pytest.mark.long
    def test_every_operation_of_a_step_has_its_part(self):
        train_step, inputs = where_time_goes.workplace(2, SHORT)
        batch = next(inputs[FIXED])
        train_step(*batch)
        shown, found = profiles.recorded(lambda: train_step(*batch))
        assert shown.losses.shape == (2,)
        parts = where_time_goes.by_part(found, 1)
        assert min(parts.values()) > 0
        whole = sum(operation.milliseconds for operation in found)
        begins = [operation.begin for operation in found]
        assert min(begins) >= 0
        assert max(begins) - min(begins) < 10_000  # milliseconds
        assert sum(parts.values()) == pytest.approx(whole, rel=0.02)


class TestInputs:
    def test_all_give_full_batches_of_distorted_images(self):
        for name, batches in where_time_goes.pipelines(data.load(SHORT), 8).items():
            images, labels = next(iter(batches))
            assert images.shape == (8, 24, 24, 3), name
            assert images.dtype == np.float32
            np.testing.assert_allclose(np.mean(images, axis=(1, 2, 3)), 0, atol=1e-4)
            np.testing.assert_allclose(np.std(images, axis=(1, 2, 3)), 1, atol=1e-2)
            assert labels.shape == (8,)

    def test_the_loop_starts_over_at_the_end(self):
        split = data.load(SHORT).train
        small = dataclasses.replace(split, images=split.images[:7], labels=split.labels[:7])
        labels = [labels for _, labels in itertools.islice(
            where_time_goes.image_by_image(small, 3), 3
        )]  # fmt: skip
        np.testing.assert_array_equal(np.concatenate(labels), split.labels[[*range(6), 0, 1, 2]])


@pytest.mark.long
@pytest.mark.whole_program
def test_towers_of_another_process_have_a_thread_each():
    with where_time_goes.place_of(2, short=False) as place:
        threads = tf.config.threading
        assert place.submit(threads.get_inter_op_parallelism_threads).result(timeout=60) == 2
        assert place.submit(threads.get_intra_op_parallelism_threads).result(timeout=60) == 1
