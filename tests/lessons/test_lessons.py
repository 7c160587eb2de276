"""The lessons' claims, in short versions, and their pages."""

import importlib.util
import math
import os
import re
import sys
import time
from unittest import mock

import forked
import lesson_checks
import numpy as np
import pytest
import scripts

from laboratory import data, findings, paired, race
from lessons import __main__ as command
from lessons import (
    averaging,
    batch_norm,
    batch_size,
    every,
    final_model,
    learning_rate,
    lesson,
    losses,
    scaling,
    train_and_test_loss,
)
from towers import microbatch
from towers.runs import run_folder

import tensorflow as tf  # isort: skip

LESSONS = {one.name: one for one in every.LESSONS}


@pytest.fixture(scope="module")
def found():
    """What each lesson finds in its short version, run once."""
    made = {}

    def find(name) -> findings.Finding:
        if name not in made:
            made[name] = LESSONS[name].run(findings.Setup(short=True))
        return made[name]

    return find


@pytest.mark.long
def test_averaging_is_exact_and_what_is_done_around_it_is_not(found):
    numbers = found("averaging").numbers
    assert numbers["same"]  # 1, 2 and 4 towers, after every step
    gaps, first = numbers["gaps"], numbers["first"]
    # Rounding: the same two programs are closer in float64 by all that it is finer.
    assert gaps[f"{averaging.WHOLE}, float64"] < 1e-12 < first[f"{averaging.WHOLE}, float32"] < 1e-4
    others = {name: far for name, far in gaps.items() if averaging.WHOLE not in name}
    assert len(others) == 7
    assert min(others.values()) > 1e-2
    assert first["sum instead of mean"] == pytest.approx(1.0, abs=1e-4)  # twice as far
    assert first["Adam, sum instead of mean"] < 0.1  # Adam does not notice the scale
    assert first["Adam, mean of the halves' own steps"] > 0.2
    apart = numbers["apart"]
    for k in (2, 4):
        kept = apart[f"{k} GPUs, the same rate"]
        multiplied = next(
            one
            for name, one in apart.items()
            if f"{k} GPUs, " in name and "rate" in name and one is not kept
        )
        assert kept.verdict == -1
        assert multiplied.mean > kept.mean
    assert found("averaging").answer.startswith("Yes, averaging is exact; ")


@pytest.mark.parametrize(
    ("same_rate", "higher_rate", "says"),
    [
        (-1, -1, "fewer updates, and a higher rate did not make up for all of it, or something"),
        (-1, 0, "fewer updates, after which a higher rate showed no difference, or something"),
        (0, 0, "if a model is less accurate, something other than the averaging was changed"),
        (0, -1, "if a model is less accurate, something other than the averaging was changed"),
    ],
)
def test_what_averaging_answers_is_what_was_found(same_rate, higher_rate, says):
    gaps = {f"{averaging.WHOLE}, float64": [1e-15], f"{averaging.WHOLE}, float32": [1e-6]}
    verdicts = {"4 GPUs, the same rate": same_rate, "4 GPUs, 4 times the rate": higher_rate}
    apart = {
        name: paired.Difference(verdict, verdict, verdict, (verdict,) * 3)
        for name, verdict in verdicts.items()
    }
    assert says in averaging.answer(True, gaps, apart)
    assert averaging.answer(False, gaps, apart).startswith("Not here")


def test_the_old_rule_decays_k_times_too_late_and_this_one_does_not(found):
    for num_towers, (old, new) in found("learning_rate").numbers["first_decay"].items():
        assert old == pytest.approx(350 * num_towers, rel=1e-3)
        assert new == pytest.approx(350, rel=1e-3)


def test_a_tower_s_loss_is_its_own_and_weight_decay_counts_once(found):
    numbers = found("losses").numbers
    np.testing.assert_allclose(numbers["total"], numbers["parts"], rtol=1e-6)
    assert np.ptp(numbers["decay"]) == 0 < numbers["decay"][0]
    np.testing.assert_allclose(numbers["collected"], np.cumsum(numbers["total"]), rtol=1e-6)
    assert len(numbers["total"]) == losses.TOWERS == 11


@pytest.mark.long
def test_beyond_the_noise_scale_a_larger_batch_needs_more_examples(found):
    numbers = found("batch_size").numbers
    smallest, middle, largest = numbers["examples"]
    assert numbers["examples"][smallest] <= numbers["examples"][middle]
    assert numbers["examples"][largest] is None  # beyond what a run is allowed
    assert min(numbers["noise_scale"].values()) > 1
    assert max(numbers["noise_scale"].values()) < largest
    rates = numbers["images_per_second"]
    assert rates[largest] > rates[smallest]
    for batch, seconds in numbers["seconds"].items():
        assert seconds == pytest.approx(numbers["examples"][batch] / rates[batch])
        assert numbers["examples"][batch] == pytest.approx(np.mean(numbers["of_seeds"][batch]))
    assert numbers["predicted"][smallest] == pytest.approx(numbers["examples"][smallest])
    for runs in numbers["stopped"].values():
        assert len(runs) == 3
        assert all(run.loss <= batch_size.IN_SHORT["gap"]["loss"] for run in runs)
    assert found("batch_size").answer.startswith("No, not always: ")


@pytest.mark.long
def test_the_linear_rule_holds_for_a_while_and_a_fixed_rate_does_not(found):
    numbers = found("scaling").numbers
    fixed, linear = numbers["examples"]["fixed"], numbers["examples"]["linear"]
    assert fixed[1] == linear[1]
    assert linear[4] < 2 * linear[1] < fixed[4]
    assert fixed[16] is None
    assert linear[16] is None or linear[16] > 2 * linear[1]  # and then it ends, too


@pytest.mark.long
def test_towers_share_weights_and_differ_in_statistics(found):
    numbers = found("batch_norm").numbers
    assert numbers["equal"] == {"gradients": True, "mean": True}
    assert 0.001 < numbers["apart"] < 0.2  # standard deviations
    off = numbers["off"]
    of_towers = [off[f"tower {tower}'s"] for tower in range(batch_norm.TOWERS)]
    assert len(set(of_towers)) == batch_norm.TOWERS
    assert off[batch_norm.MEAN] < 0.97 * np.sqrt(np.mean(np.square(of_towers)))
    assert off[batch_norm.REESTIMATED] == 0
    assert off[batch_norm.WIDER] == off[batch_norm.MEAN]
    # The mean of the variances leaves out how far the towers' batches are apart.
    assert numbers["wide"][batch_norm.MEAN] < 1 == numbers["wide"][batch_norm.REESTIMATED]
    assert numbers["wide"][batch_norm.WIDER] == 1
    accuracy = numbers["accuracy"]
    assert len(accuracy) == batch_norm.TOWERS + 3
    assert min(accuracy.values()) > 0.2  # chance is 0.1
    assert np.ptp(list(accuracy.values())) < 0.1


@pytest.mark.long
def test_nodes_of_mixed_shards_are_apart_by_chance_and_of_sorted_ones_by_more(found):
    numbers = found("final_model").numbers
    whole, mixed = numbers["whole"], numbers["of_nodes"]
    assert whole.count == 1_000
    for nodes, shares in mixed.items():
        assert len(shares) == nodes
        assert sum(n for n, _ in shares) == whole.count
        assert final_model.together(shares) == pytest.approx(whole.accuracy, abs=1e-12)
    every = [share for shares in mixed.values() for share in shares]
    assert final_model.covering(every, whole) >= 0.8 * len(every)
    chance = final_model.spread_by_chance(mixed[16], whole)
    assert chance / 2 < final_model.spread(mixed[16], whole) < 2 * chance
    by_class = numbers["of_sorted"]
    assert final_model.spread(by_class, whole) > 2 * final_model.spread_by_chance(by_class, whole)


@pytest.mark.long
def test_the_lowest_training_loss_is_not_the_lowest_test_loss(found):
    numbers = found("train_and_test_loss").numbers
    runs, apart = numbers["runs"], numbers["apart"]
    assert numbers["lowest"] == "plain"
    # Which is the most accurate cannot be seen on so few images; the answer has to agree.
    assert found("train_and_test_loss").answer.startswith("No: ") == (apart.verdict > 0)

    def end(name, value):
        return train_and_test_loss.averaged(runs[name], lambda run: value(run.points[-1]))

    assert end("weight decay", lambda point: point.shown) > 2 * end("plain", lambda p: p.shown)
    assert end("distortions", lambda point: point.shown) > 10 * end("plain", lambda p: p.shown)
    assert end("distortions", lambda p: p.test.loss) < 0.9 * end("plain", lambda p: p.test.loss)
    gained = []
    for run in runs["plain"]:
        # The test loss rises again, and with it the accuracy, on these few images.
        *_, last = points = run.points
        turning = min(points, key=lambda point: point.test.loss)
        assert last.test.loss > 1.05 * turning.test.loss
        gained.append(last.test.accuracy - turning.test.accuracy)
        assert run.train.loss < 0.2 * last.test.loss
    assert min(gained) > 0
    assert np.mean(gained) > 0.02
    # Where weights move much from step to step, their average is better.
    ends = [run.points[-1] for name in ("plain", "weight decay") for run in runs[name]]
    assert all(end.averaged.loss < end.test.loss for end in ends)


class TestVerdictOfTheLowestTrainingLoss:
    """It is computed, and can come out either way."""

    @staticmethod
    def runs(shown, accuracies):
        return {
            name: [
                train_and_test_loss.Run(
                    [
                        train_and_test_loss.Point(
                            1,
                            loss,
                            race.Evaluated(1.0, share),
                            race.Evaluated(1.0, share),
                        )
                    ],
                    race.Evaluated(0.5, 0.9),
                    np.arange(1_000) < 1_000 * share,
                )
            ]
            * 3
            for (name, loss), share in zip(shown.items(), accuracies, strict=True)
        }

    def test_no_where_another_is_more_accurate(self):
        runs = self.runs({"plain": 0.1, "both": 2.0}, (0.4, 0.5))
        found = train_and_test_loss.finding(runs, "images")
        assert found.answer.startswith("No: ")
        assert "shown by 'plain', which has 40.0% of the test images right" in found.claim
        assert "'both' has the most, 50.0%, at a training loss of 2.00" in found.claim

    def test_yes_where_it_is_the_most_accurate(self):
        runs = self.runs({"plain": 0.1, "both": 2.0}, (0.5, 0.4))
        found = train_and_test_loss.finding(runs, "images")
        assert found.answer.startswith("Here it did")
        assert "50.0% of the test images right, more than any other" in found.claim


# Lessons whose claims are tested in files of their own, which run their short versions.
ELSEWHERE = {
    path.stem.removeprefix("test_lesson_"): path
    for path in (scripts.ROOT / "tests" / "lessons").glob("test_lesson_*.py")
}


HERE = [name for name in LESSONS if name not in ELSEWHERE]
NEED_LONG = (
    "averaging", "batch_norm", "batch_size", "final_model", "scaling", "train_and_test_loss"
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.long if one in NEED_LONG else []) for one in HERE],
)
def test_a_finding_is_a_table_a_claim_and_a_plot(found, name, tmp_path):
    lesson_checks.check_finding(found(name), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in HERE if name in lesson_checks.GLANCES])
def test_a_glance_is_one_too(name, tmp_path):
    lesson_checks.check_finding(lesson_checks.glance(name), tmp_path)


def test_that_is_tested_of_the_others_too():
    assert set(ELSEWHERE) < set(LESSONS)
    assert len(ELSEWHERE) == 6
    for path in ELSEWHERE.values():
        assert re.search(r"check_finding\((finding|glance), tmp_path\)", path.read_text())


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_has_the_question_the_figure_and_the_code_as_it_is(name):
    one = LESSONS[name]
    page = one.page.read_text(encoding="utf-8")
    assert one.question in " ".join(page.replace(">", "").split())
    # The answer stands right below the question, before any evidence.
    assert re.search(r"^> .*\n\n<!-- answer -->\n\*\*.{40,}\.\*\*\n<!-- end -->\n", page, re.M)
    assert f"](../figures/{one.figure.name})" in page
    assert one.figure.exists()
    assert lesson.refreshed(page) == page  # `make lessons` writes it
    assert len(re.findall("```python", page)) >= 2
    parts = dict(re.findall(r"<!-- (claim|table|conditions) -->\n(.*?)<!-- end -->", page, re.S))
    assert len(parts) == 3 and all(parts.values())
    assert float(re.search(r"(\d+) s\)$", parts["conditions"])[1]) < 300


def test_every_lesson_is_listed_with_its_question():
    listed = (lesson.PAGES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (.*) \|$", listed, re.M)
    assert rows == [(one.name, one.name, one.question) for one in every.LESSONS]
    assert {path.stem for path in lesson.PAGES.glob("*.md")} == {*LESSONS, "README"}


class TestPages:
    def test_code_is_that_of_the_source_without_its_docstring(self, tmp_path):
        path = tmp_path / "module.py"
        path.write_text(
            'class A:\n    def f(self):\n        """Says."""\n        return 1\n\n\nx = 2\n'
        )
        assert lesson.source(path, "A.f") == "def f(self):\n    return 1"
        with pytest.raises(ValueError, match="there is no A.g"):
            lesson.source(path, "A.g")

    def test_parts_are_written_and_the_rest_is_left(self):
        finding = findings.Finding(["a"], [["1"]], "So it is.", {}, lambda figure: None)
        page = "x\n<!-- claim -->\n<!-- end -->\ny\n<!-- table -->\nold\n<!-- end -->\n"
        assert lesson.refreshed(page, finding) == (
            "x\n<!-- claim -->\nSo it is.\n<!-- end -->\ny\n"
            "<!-- table -->\n| a |\n|---|\n| 1 |\n<!-- end -->\n"
        )
        assert lesson.refreshed(page) == page


class TestCommand:
    def run(self, monkeypatch, *arguments) -> int:
        """Its exit code, in this process."""
        monkeypatch.setattr(sys, "argv", ["lessons", *arguments])
        try:
            return command.main()
        except SystemExit as error:
            return error.code

    def test_lists_the_lessons(self, monkeypatch, capsys):
        assert self.run(monkeypatch) == 0
        listed = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in listed] == list(LESSONS)

    @pytest.mark.whole_program
    def test_runs_one(self, tmp_path):
        path = {"PYTHONPATH": str(scripts.ROOT)}
        call = [sys.executable, "-m", "lessons", "learning_rate"]
        done = forked.run(call, timeout=120, cwd=tmp_path, env=os.environ | path)
        assert (done.returncode, done.stderr) == (0, "")
        assert LESSONS["learning_rate"].run(findings.Setup()).table() in done.stdout
        assert (tmp_path / "runs/lessons/learning_rate.png").exists()

    def test_without_matplotlib_says_so_before_it_runs(self, monkeypatch, capsys):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(sys, "argv", ["lessons", "averaging"])
        with pytest.raises(SystemExit, match="2"):
            command.main()
        assert "the plots need matplotlib: pip install matplotlib" in capsys.readouterr().err

    def test_a_folder_without_cifar10_is_refused(self, tmp_path, monkeypatch, capsys):
        assert self.run(monkeypatch, "losses", f"--data_dir={tmp_path}") == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith(
            f"--data_dir={tmp_path} holds no CIFAR-10 that is prepared or unpacked; without the "
            "flag a lesson takes TFDS's folder, or draws shapes."
        )

    def test_an_unknown_one_is_refused(self, monkeypatch, capsys):
        assert self.run(monkeypatch, "avaraging") == 2
        said = capsys.readouterr().err
        assert "avaraging: there is no such lesson; they are averaging, " in said


class TestDryRun:
    """The audit that the lesson on the learning rate ends with."""

    def rates(self, tmp_path, *flags) -> dict[float, float]:
        done = scripts.train(tmp_path / "run", "--dry_run", "--train_epochs=10", *flags)
        assert (done.returncode, done.stderr) == (0, "")
        assert not (tmp_path / "run").exists()
        lines = done.stdout.split("rate of the next update\n")[1].splitlines()
        return {float(line.split()[0]): float(line.split()[-1]) for line in lines}

    @pytest.mark.long
    def test_shows_every_decay(self, tmp_path):
        rates = self.rates(
            tmp_path, "--max_steps=99999", "--learning_rate_schedule=piecewise",
            "--decay_epochs=3.5,7", "--global_batch_size=50",
        )  # fmt: skip
        assert rates == {
            0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1, 3.5: 0.01, 4: 0.01, 5: 0.01, 6: 0.01,
            7: 0.001, 8: 0.001, 9: 0.001, 10: 0.001,
        }  # fmt: skip

    @pytest.mark.long
    def test_shows_the_staircase_and_the_warm_up(self, tmp_path):
        rates = self.rates(
            tmp_path, "--max_steps=99999", "--epochs_per_decay=4.5", "--warmup_epochs=2",
            "--global_batch_size=50",
        )  # fmt: skip
        assert rates[0] == 0 and rates[1] == 0.05 and rates[2] == 0.1
        assert (rates[4], rates[4.5], rates[9.0]) == (0.1, 0.01, pytest.approx(0.001))

    @pytest.mark.long
    def test_leaves_a_run_that_is_there_alone(self, tmp_path):
        folder = tmp_path / "run"
        assert scripts.train(folder).returncode == 0
        before = scripts.contents(folder)
        assert scripts.train(folder, "--dry_run", "--max_steps=8").returncode == 0
        assert scripts.contents(folder) == before
        assert not run_folder.RunFolder(str(folder)).lock.exists()


def test_the_old_rule_is_the_tutorials():
    # cifar10.py: decay_steps = int(50,000 / 128 * 350) = 136,718, of steps of any size.
    assert learning_rate.rule_keyed_to_steps(136_717 * 128, 128) == 0.1
    assert learning_rate.rule_keyed_to_steps(136_718 * 128, 128) == pytest.approx(0.01)
    assert learning_rate.rule_keyed_to_steps(136_718 * 128, 256) == 0.1


class TestBatchSizeByHand:
    def test_a_prediction_doubles_the_examples_at_the_noise_scale(self):
        # A batch of 1 needs 100 * (1 + 1 / 64) examples, with 100 those of no noise.
        found = batch_size.predicted({1: 101.5625, 64: None}, {0: 32.0, 9: 128.0, 99: math.inf})
        assert found == pytest.approx({1: 101.5625, 64: 200.0})
        assert batch_size.predicted({1: None, 64: 100.0}, {0: 32.0}) == {}
        assert batch_size.predicted({1: 100.0}, {0: math.inf}) == {}

    def test_a_mean_needs_every_seed(self):
        assert race.mean_needed([10, 20]) == 15
        assert race.mean_needed([10, None]) is None
        assert race.mean_needed([]) is None

    def test_the_answer_can_come_out_either_way(self):
        rates = {16: 10.0, 64: 20.0}
        for needed, best, begins in (
            ({16: [100.0], 64: [150.0]}, 64, "Here it was: "),
            ({16: [100.0], 64: [300.0]}, 16, "No, not always: "),
        ):
            answer = batch_size.answer(needed, rates)
            assert answer.startswith(begins)
            assert answer.endswith(f"those of {best} took the least time here.")
        assert "no batch came" in batch_size.answer({16: [None], 64: []}, rates)
        needed = {16: [100.0, 100.0, 160.0], 64: [220.0, 250.0, 270.0]}  # means of 12 and 12.3 s
        answer = batch_size.answer(needed, rates)
        assert answer.startswith("Not clearly: ") and "those of 16 took" in answer

    def test_the_answer_names_what_was_hardly_slower(self):
        rates = {16: 10.0, 64: 20.0, 256: 20.0}  # 10 to 13 seconds, 9 to 11, and 11.5 to 12
        needed = {16: [100.0, 130.0], 64: [180.0, 220.0], 256: [230.0, 240.0]}
        answer = batch_size.answer(needed, rates)
        assert answer.endswith(
            "those of 64 took the least time here, not clearly less than those of 16."
        )


class TestNoiseScale:
    def test_is_that_of_gradients_whose_noise_is_known(self):
        # Gradients g + e, with |g|^2 = 4 and E|e|^2 = 100 / B over B examples: 100 / 4 = 25.
        assert batch_size.noise_scale(4 + 100 / 10, 4 + 100 / 50, 10, 50) == pytest.approx(25)

    def test_norms_are_those_of_the_microbatches(self):
        # Found by NumPy from each microbatch's own gradient.
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


def test_which_rule_to_use_follows_from_how_far_each_carries():
    far, near = {1: 10.0, 2: 15.0, 4: 18.0}, {1: 10.0, 2: 15.0, 4: None}
    found = scaling.answer({"fixed": near, "linear": far})
    assert "multiply the rate of SGD by the number of GPUs (here that carried to 4, an" in found
    assert "no rule carried" not in found and "Adam" not in found
    found = scaling.answer({"fixed": near, "linear": near, "sqrt": far})
    assert "multiply the rate of SGD by its square root (here that carried to 4, an" in found
    found = scaling.answer({"fixed": near, "linear": far, "sqrt": far})
    assert "by the number of GPUs or by its square root (here both carried to 4, an" in found
    found = scaling.answer({"fixed": near, "linear": near, "Adam, fixed": near, "Adam, sqrt": far})
    assert "carried no farther than leaving it, to 2" in found
    assert "Adam by the square root (to 4)" in found


def test_a_warm_up_begins_with_the_rate_of_one_tower():
    warm = scaling.entry("linear with warm-up", 8, seed=2)
    model = race.model(warm)
    assert float(model.optimizer.learning_rate) == pytest.approx(scaling.RATE)
    model.optimizer.iterations.assign(-(-scaling.WARM_UP // warm.global_batch_size))
    assert float(model.optimizer.learning_rate) == pytest.approx(8 * scaling.RATE)
    assert scaling.WARM_UP <= 0.05 * scaling.AT_MOST
    assert scaling.entry("linear with warm-up", 1, seed=2) == scaling.entry("fixed", 1, seed=2)


def test_a_rule_carries_as_far_as_it_needs_at_most_twice_the_examples():
    assert scaling.holds_up_to({1: 10.0, 2: 12.0, 4: 20.0, 8: 21.0, 16: 15.0}) == 4
    assert scaling.holds_up_to({1: 10.0, 2: None, 4: 12.0}) == 1
    assert scaling.holds_up_to({1: None, 2: 12.0}) == 0
    assert scaling.holds_up_to({1: 10.0, 2: 10.0}) == 2


class TestRace:
    """One run, with a model whose accuracies are given."""

    @pytest.fixture
    def run(self, monkeypatch):
        images = data.load(findings.Setup(short=True))

        def run(*accuracies, fails_at=None):
            model = mock.Mock()
            logs = [{"accuracy": accuracy, "cross_entropy": 1.0} for accuracy in accuracies]
            model.evaluate.side_effect = logs
            losses = [math.nan if step == fails_at else 1.0 for step in range(1, 11)]
            model.train_on_batch.side_effect = [{"loss": loss} for loss in losses]
            monkeypatch.setattr(race, "model", lambda entry: model)
            return race.run(race.Entry(1_000, 0.1), images, [], 0.5, at_most=10_000)

        return run

    def test_ends_when_three_evaluations_have_the_mean(self, run):
        # After 2,000, 4,000, 6,000 and 8,000 examples; the last three are of 6,000 on average.
        assert run(0.9, 0.0, 0.5, 1.0) == 6_000

    def test_two_evaluations_are_not_enough(self, run):
        assert run(1.0, 1.0, 1.0) == 4_000

    def test_is_given_up_after_so_many_examples(self, run):
        assert run(0.1, 0.1, 0.1, 0.1, 0.1) is None

    def test_is_given_up_where_a_loss_is_not_finite(self, run):
        assert run(1.0, fails_at=3) is None

    def test_after_an_error_no_other_run_begins(self):
        begun = []

        def fails():
            raise KeyError("of a run")

        def runs():
            begun.append(1)
            time.sleep(0.1)

        with pytest.raises(KeyError):
            race.side_by_side([fails, *[runs] * 40])
        assert len(begun) < 20


class TestIntervals:
    def test_wilson_s_is_that_of_the_textbook(self):
        # Brown, Cai and DasGupta 2001 (Statistical Science 16, page 101): 0 and 5 of 10.
        assert final_model.interval(final_model.Share(10, 0.0)) == pytest.approx(
            (0, 0.2775), abs=1e-4
        )
        low, high = final_model.interval(final_model.Share(10, 0.5))
        assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-4)

    def test_the_spread_by_chance_is_that_of_shares_drawn_at_random(self):
        right = np.arange(1_000) < 300
        draw = np.random.default_rng(0)
        whole = final_model.Share(1_000, 0.3)
        spreads = []
        for _ in range(200):
            parts = np.split(draw.permutation(right), 4)
            spreads.append(
                final_model.spread([final_model.Share(250, p.mean()) for p in parts], whole) ** 2
            )
        by_chance = final_model.spread_by_chance([final_model.Share(250, 0.0)] * 4, whole)
        assert by_chance == pytest.approx(np.sqrt(np.mean(spreads)), rel=0.1)

    def test_all_together_is_not_the_mean_of_unequal_shares(self):
        shares = [final_model.Share(30, 0.5), final_model.Share(10, 0.9)]
        assert final_model.together(shares) == pytest.approx(0.6)


class TestClaims:
    """What lessons say of numbers that did not come out here."""

    def test_rules_that_all_carry_or_of_which_none_does(self):
        carry = scaling.claim({"fixed": {1: 9.0, 2: 9.0}, "sqrt": {1: 9.0, 2: 19.0}}, 0.4)
        assert carry.endswith("carry this far: up to 2 towers: fixed; up to 1 tower: sqrt.")
        none = scaling.claim({"fixed": {1: None, 2: None}}, 0.4)
        assert none.endswith("the rules carry this far: not: fixed.")
        ends = {"fixed": {1: None, 2: None}, "linear": {1: 9.0, 2: None}}
        assert scaling.answer(ends).endswith("; no rule carried to 2.")

    @staticmethod
    def of_batches(examples, per_second, noise):
        stopped = {
            batch: [batch_size.Stopped(9, 1.0, np.arange(100) < share)] * 3
            for batch, share in ((32, 50), (1024, 40))
        }
        return batch_size.finding(examples, per_second, noise, stopped, 0.5, "shapes")

    def test_a_race_that_no_batch_ends(self):
        found = self.of_batches({8: [], 64: [9.0, None, 9.0]}, {8: 1e3, 64: 2e3}, {0: 50.0})
        assert [row[2:] for row in found.rows] == [["not reached", "", "", ""]] * 2
        assert "2.0 times as many as with 8. No batch came to 50% with every seed. " in found.claim
        assert (
            "batches of 1,024 were less accurate on the test images than those of 32: -10.0 ("
            in (found.claim)
        )

    def test_a_noise_scale_that_cannot_be_told(self, tmp_path):
        assert batch_size.noise_scale(1.0, 0.01, 64, 1024) == np.inf
        found = self.of_batches({8: [100.0] * 3}, {8: 10.0}, {0: np.inf})
        assert "was inf examples" in found.claim
        assert found.rows[0][2:4] == ["100 (100–100)", ""]
        findings.save(found, tmp_path / "plot.png")

    def test_a_test_loss_that_rises(self):
        runs = {
            "plain": [self.curve((1.0, 0.4), (2.0, 0.45)), self.curve((1.0, 0.4), (2.0, 0.35))],
            "both": [self.curve((2.0, 0.1), (1.9, 0.2))] * 2,
        }
        said = train_and_test_loss.within_a_run(runs)
        assert said.startswith("The test loss rose again towards the end of 2 of 4 runs, and in 1 ")
        assert (
            "For 'plain' the loss went from 1.00 after epoch 2 to 2.00 and the accuracy from "
            "40.0% to 45.0%." in said
        )

    def test_a_test_loss_that_never_rises(self):
        runs = {"plain": [self.curve((2.0, 0.1), (1.9, 0.2))]}
        assert "In no run" in train_and_test_loss.within_a_run(runs)

    def curve(self, *of_test):
        points = [
            train_and_test_loss.Point(2 * i, loss, *[race.Evaluated(loss, accuracy)] * 2)
            for i, (loss, accuracy) in enumerate(of_test, start=1)
        ]
        return train_and_test_loss.Run(points, points[-1].test, np.ones(1, bool))
