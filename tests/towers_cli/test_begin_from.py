"""A run that met NaN or too little memory is no dead end: its advice can be followed."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import scripts
import tensorflow as tf

from input_pipeline import datasets
from towers import train_state, trainer
from towers.runs import checkpoints
from towers_cli import run_config

pytestmark = pytest.mark.usefixtures("cache")

MOMENTUM = ("--momentum=0.9", "--summary_every_steps=0")
FLAGS = (*MOMENTUM, "--checkpoint_every_steps=2", "--moving_average_decay=0.9")


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    """A run with checkpoints at steps 2 and 4."""
    folder = tmp_path_factory.mktemp("begin") / "four"
    done = scripts.train(folder, *FLAGS)
    assert done.returncode == 0, done.stderr
    return folder


def state_at(folder, step: int) -> dict[str, np.ndarray]:
    return checkpoints.read(str(folder / "checkpoints" / f"step-{step}"))


class TestTheSameSettings:
    def test_give_the_bits_of_the_run_itself(self, four_steps, tmp_path):
        """Step 4 and two more in a new folder: the state that six steps in one folder have."""
        before = scripts.contents(four_steps)
        done = scripts.train(
            tmp_path / "new", *FLAGS, f"--begin_from={four_steps}", "--max_steps=6"
        )
        assert done.returncode == 0, done.stderr
        assert "/step-4, at 96 examples seen, which is step 4 here" in " ".join(done.stdout.split())
        assert scripts.contents(four_steps) == before
        scripts.train(tmp_path / "whole", *FLAGS, "--max_steps=6")
        ours, whole = state_at(tmp_path / "new", 6), state_at(tmp_path / "whole", 6)
        assert ours.keys() == whole.keys()
        for name, value in whole.items():
            assert value.tobytes() == ours[name].tobytes(), name

    def test_may_name_a_checkpoint(self, four_steps, tmp_path):
        path = four_steps / "checkpoints" / "step-2"
        done = scripts.train(tmp_path, *FLAGS, f"--begin_from={path}", "--max_steps=3")
        assert done.returncode == 0, done.stderr
        assert [line["step"] for line in scripts.training_lines(tmp_path)] == [3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda names: names[::-1], "it has the class disc, but this run has checkers"),
        (lambda names: (*names, "more"), "it has the class (none), but this run has more"),
    ],
)
def test_other_names_of_classes_are_refused(four_steps, tmp_path, monkeypatch, change, reason):
    load = datasets.load

    def other_names(*arguments, **options):
        data = load(*arguments, **options)
        return dataclasses.replace(data, class_names=change(data.class_names))

    monkeypatch.setattr(datasets, "load", other_names)
    done = scripts.train(tmp_path / "new", *FLAGS, f"--begin_from={four_steps}", "--max_steps=6")
    assert done.returncode == 2
    assert f"--begin_from={four_steps}: {reason}" in done.stderr
    assert not (tmp_path / "new").exists()


class TestOtherSettings:
    def test_a_lower_rate_goes_on_from_the_same_weights(self, four_steps, tmp_path):
        lower = (*FLAGS, f"--begin_from={four_steps}", "--learning_rate=0.001")
        done = scripts.train(tmp_path, *lower, "--max_steps=5")
        assert done.returncode == 0, done.stderr
        [line] = scripts.training_lines(tmp_path)
        assert (line["step"], line["learning_rate"]) == (5, 0.001)
        # w' = w + v', v' = 0.9 v - rate * gradient: momentum was taken over, so the weights move by
        # most of the last velocity although the rate is low.
        before, after = state_at(four_steps, 4), state_at(tmp_path, 5)
        velocity = [name for name in before if name.startswith("optimizer/")][2:]
        moved = after["weights/0"] - before["weights/0"]
        slot = next(before[n] for n in velocity if before[n].shape == moved.shape)
        assert np.corrcoef(moved.ravel(), slot.ravel())[0, 1] > 0.9

    def test_half_the_batch_is_twice_the_steps_at_the_same_examples(self, four_steps, tmp_path):
        done = scripts.train(
            tmp_path, *FLAGS, f"--begin_from={four_steps}", "--global_batch_size=12",
            "--max_steps=9",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        [line] = scripts.training_lines(tmp_path)
        assert (line["step"], line["examples_seen"]) == (9, 108)

    @pytest.mark.long
    def test_another_optimizer_begins_with_new_slots(self, four_steps, tmp_path):
        adam = ("--summary_every_steps=0", "--optimizer=adam", "--learning_rate=0.001")
        done = scripts.train(tmp_path, *adam, f"--begin_from={four_steps}", "--max_steps=5")
        assert done.returncode == 0, done.stderr
        assert "slots start over" in " ".join(done.stdout.split())
        after = state_at(tmp_path, 5)
        assert after["optimizer/0"] == 1  # of one update, where the old optimizer has made four

    @pytest.mark.long
    def test_a_wider_type_leaves_the_loss_scale_behind(self, tmp_path):
        narrow = (*FLAGS, "--compute_dtype=float16", "--max_steps=2")
        assert scripts.train(tmp_path / "narrow", *narrow).returncode == 0
        wide = (*FLAGS, f"--begin_from={tmp_path / 'narrow'}", "--compute_dtype=bfloat16")
        done = scripts.train(tmp_path / "wide", *wide, "--max_steps=2")
        assert done.returncode == 0, done.stderr  # at its end at once: what it began from
        before, after = state_at(tmp_path / "narrow", 2), state_at(tmp_path / "wide", 2)
        scale = len([n for n in before if n.startswith("optimizer/")])
        kept = [n for n in after if n.startswith("optimizer/")]
        assert scale == len(kept) + 4
        for name in kept:
            place = int(name.partition("/")[2])
            np.testing.assert_array_equal(after[name], before[f"optimizer/{place + 4}"])

    @pytest.mark.long
    def test_averages_begin_at_the_weights_where_there_were_none(self, tmp_path):
        none = (*MOMENTUM, "--moving_average_decay=0", "--max_steps=2")
        assert scripts.train(tmp_path / "none", *none).returncode == 0
        some = (*FLAGS, f"--begin_from={tmp_path / 'none'}", "--max_steps=2")
        assert scripts.train(tmp_path / "some", *some).returncode == 0
        before, after = state_at(tmp_path / "none", 2), state_at(tmp_path / "some", 2)
        averages = [name for name in after if name.startswith("moving_averages/")]
        assert len(averages) == len([name for name in before if name.startswith("weights/")])
        for name in averages:
            np.testing.assert_array_equal(after[name], before[f"weights/{name.partition('/')[2]}"])

    @pytest.mark.long
    def test_a_loss_scale_goes_on_where_both_have_one(self, tmp_path):
        narrow = (*FLAGS, "--compute_dtype=float16", "--max_steps=2")
        assert scripts.train(tmp_path / "one", *narrow).returncode == 0
        again = (*narrow, f"--begin_from={tmp_path / 'one'}")
        assert scripts.train(tmp_path / "two", *again).returncode == 0
        before, after = state_at(tmp_path / "one", 2), state_at(tmp_path / "two", 2)
        for name, value in before.items():
            assert after[name].tobytes() == value.tobytes(), name

    @pytest.mark.long
    def test_statistics_of_each_begin_at_the_models_where_there_were_none(self, tmp_path):
        resnet = (*FLAGS, "--model=resnet", "--max_steps=2")
        assert scripts.train(tmp_path / "mean", *resnet).returncode == 0
        each = (*resnet, "--batch_norm_statistics=each", f"--begin_from={tmp_path / 'mean'}")
        assert scripts.train(tmp_path / "each", *each).returncode == 0
        state = state_at(tmp_path / "each", 2)
        kept = [name for name in state if name.startswith("statistics_of_each/")]
        assert kept
        for name in kept:
            shared = state[f"model_state/{name.partition('/')[2]}"]
            np.testing.assert_array_equal(state[name], np.stack([shared] * 2))


class TestTheNewRun:
    @pytest.mark.long
    def test_goes_on_without_the_old_one_and_without_the_flag(self, four_steps, tmp_path):
        old = tmp_path / "old"
        shutil.copytree(four_steps, old)
        begin = (*FLAGS, f"--begin_from={old}")
        assert scripts.train(tmp_path / "new", *begin, "--max_steps=6").returncode == 0
        shutil.rmtree(old)
        done = scripts.train(tmp_path / "new", *FLAGS, "--max_steps=8")
        assert "continuing at step 6" in done.stdout
        again = scripts.train(tmp_path / "new", *begin, "--max_steps=10")
        assert "continuing at step 8" in again.stdout
        scripts.train(tmp_path / "whole", *FLAGS, "--max_steps=10")
        ours, whole = state_at(tmp_path / "new", 10), state_at(tmp_path / "whole", 10)
        assert all(value.tobytes() == ours[name].tobytes() for name, value in whole.items())

    def test_that_began_elsewhere_is_another_run(self, four_steps, tmp_path):
        assert scripts.train(tmp_path, *FLAGS, "--max_steps=2").returncode == 0
        before = scripts.contents(tmp_path)
        done = scripts.train(tmp_path, *FLAGS, f"--begin_from={four_steps}")
        assert done.returncode == 1
        assert f"--begin_from={four_steps} (the run has None)" in done.stderr
        assert scripts.contents(tmp_path) == before

    @pytest.mark.long
    def test_can_be_evaluated(self, four_steps, tmp_path):
        scripts.train(tmp_path, *FLAGS, f"--begin_from={four_steps}", "--max_steps=6")
        done = scripts.run("eval", f"--train_dir={tmp_path}")
        assert done.returncode == 0, done.stderr
        [line] = scripts.lines_of(tmp_path / "eval.jsonl")
        assert line["accuracy"] == scripts.final_summary(tmp_path)["accuracy"]


class TestWhatIsRefused:
    def refused(self, folder, *flags) -> str:
        done = scripts.train(folder, *FLAGS, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert not folder.exists()
        return done.stderr

    def test_what_is_no_run(self, tmp_path):
        error = self.refused(tmp_path / "new", f"--begin_from={tmp_path / 'none'}")
        assert "must be the folder of a run, or a checkpoint in one such as" in error

    def test_a_run_without_a_checkpoint(self, four_steps, tmp_path):
        (tmp_path / "old").mkdir()
        shutil.copy(four_steps / "config.json", tmp_path / "old")
        error = self.refused(tmp_path / "new", f"--begin_from={tmp_path / 'old'}")
        assert f"{tmp_path}/old/checkpoints holds no such checkpoint" in error

    def test_another_network(self, four_steps, tmp_path):
        error = self.refused(tmp_path / "new", f"--begin_from={four_steps}", "--model=resnet")
        assert "it has --model cifarnet, but this run has resnet" in error

    def test_a_batch_that_does_not_divide_the_examples_seen(self, four_steps, tmp_path):
        error = self.refused(
            tmp_path / "new", f"--begin_from={four_steps}", "--global_batch_size=36"
        )
        assert "its 96 examples seen are not a whole number of batches of --global_batch_siz" in (
            error
        )
        assert "; 32 would fit" in error

    def test_past_the_end(self, four_steps, tmp_path):
        done = scripts.train(tmp_path, *FLAGS, f"--begin_from={four_steps}", "--max_steps=3")
        assert done.returncode == 1
        assert "the run is at step 4, past its last step, 3; give it a later end" in done.stderr

    def test_a_run_whose_configuration_was_edited(self, four_steps, tmp_path):
        shutil.copytree(four_steps, tmp_path / "old")
        path = tmp_path / "old" / "config.json"
        config = json.loads(path.read_text())
        config["settings"]["global_batch_size"] = "24"
        path.write_text(json.dumps(config))
        error = self.refused(tmp_path / "new", f"--begin_from={tmp_path / 'old'}")
        assert "its config.json is not that of a run" in error


@pytest.mark.long
def test_what_it_began_from_defines_a_run_and_not_its_path(four_steps, tmp_path):
    """The same step of the same run is the same beginning; another step is another run."""
    shutil.copytree(four_steps, tmp_path / "copy")
    beginnings = {
        "folder": four_steps,
        "copy": tmp_path / "copy",
        "path": four_steps / "checkpoints" / "step-4",
        "earlier": four_steps / "checkpoints" / "step-2",
    }
    hashes = {}
    for name, beginning in beginnings.items():
        folder = tmp_path / f"from_{name}"
        done = scripts.train(folder, *FLAGS, f"--begin_from={beginning}", "--max_steps=5")
        assert done.returncode == 0, done.stderr
        hashes[name] = run_config.run_sha256(json.loads((folder / "config.json").read_text()))
    assert hashes["folder"] == hashes["copy"] == hashes["path"] != hashes["earlier"]


class TestAnAttemptWithoutACheckpoint:
    @pytest.mark.long
    def test_leaves_nothing_in_the_run_that_starts_over(self, four_steps, tmp_path):
        verify = ("--verify_every_steps=1", "--summary_every_steps=0")
        failed = scripts.train(tmp_path / "run", *verify, "--learning_rate=1e20")
        assert failed.returncode == 1
        events = list((tmp_path / "run" / "train").iterdir())
        again = scripts.train(tmp_path / "run", *verify, "--seed=1")
        assert again.returncode == 0, again.stderr
        assert not any(path.exists() for path in events)
        assert scripts.train(tmp_path / "fresh", *verify, "--seed=1").returncode == 0
        ours, fresh = scripts.hash_lines(tmp_path / "run"), scripts.hash_lines(tmp_path / "fresh")
        assert ours == fresh

    @pytest.mark.long
    def test_nor_in_one_that_begins_elsewhere(self, four_steps, tmp_path):
        assert scripts.train(tmp_path, *FLAGS, "--learning_rate=1e20").returncode == 1
        done = scripts.train(tmp_path, *FLAGS, f"--begin_from={four_steps}", "--max_steps=6")
        assert done.returncode == 0, done.stderr
        assert [line["step"] for line in scripts.training_lines(tmp_path)] == [5, 6]


@pytest.mark.long
class TestTheAdvice:
    def test_after_nan_can_be_followed(self, tmp_path, monkeypatch):
        """Step 3 leaves infinite weights; a new run with a lower rate begins from step 2."""
        real = trainer.Trainer.train_step

        def train_step(self, *arguments, **options):
            result = real(self, *arguments, **options)
            if int(self.state.step) == 3:
                weight = self.state.model.trainable_variables[0]
                weight.assign(tf.fill(weight.shape, np.inf))
            return result

        with monkeypatch.context() as patch:
            patch.setattr(trainer.Trainer, "train_step", train_step)
            done = scripts.train(tmp_path / "old", *FLAGS)
        assert done.returncode == 1
        assert done.stderr.endswith(
            f"The newest checkpoint is {tmp_path}/old/checkpoints/step-2. To continue from it or "
            f"from an earlier one with other settings, give them with --begin_from={tmp_path}/old, "
            "or a checkpoint in it, and a new --train_dir.\n"
        )
        advised = (f"--begin_from={tmp_path}/old", "--learning_rate=0.01", "--clip_norm=1")
        done = scripts.train(tmp_path / "new", *FLAGS, *advised)
        assert done.returncode == 0, done.stderr
        assert [line["step"] for line in scripts.training_lines(tmp_path / "new")] == [3, 4]

    def test_before_the_first_checkpoint_can_be_followed_in_the_same_folder(self, tmp_path):
        done = scripts.train(tmp_path, "--learning_rate=1e20", "--summary_every_steps=0")
        assert done.returncode == 1
        assert done.stderr.endswith(
            "There is no checkpoint yet. The same command takes other settings, and starts over.\n"
        )
        done = scripts.train(tmp_path, "--learning_rate=0.01", "--summary_every_steps=0")
        assert done.returncode == 0, done.stderr
        assert (
            f"the run in {tmp_path} has no checkpoint yet and starts over: "
            "--learning_rate=0.01 (so far it has 1e+20)\n"
        ) in done.stdout
        assert [line["step"] for line in scripts.training_lines(tmp_path)] == [1, 2, 3, 4]
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["settings"]["learning_rate"] == 0.01
        scripts.train(tmp_path / "other", "--learning_rate=0.01", "--summary_every_steps=0")
        scripts.assert_same_run(tmp_path, tmp_path / "other")


class TestTheFirstCheckpoint:
    @pytest.mark.long
    def test_that_was_whole_is_missed_where_it_is_gone(self, tmp_path):
        """Stopped before the first regular one, then without its checkpoints: nothing is cut."""
        assert scripts.train(tmp_path, *MOMENTUM, "--max_steps=3").returncode == 0
        for lost in ("final_model.json", "final_model.keras"):
            (tmp_path / lost).unlink()
        shutil.rmtree(tmp_path / "checkpoints")
        (tmp_path / "checkpoints").symlink_to(tmp_path / "nowhere")
        before = (tmp_path / "metrics.jsonl").read_bytes()
        done = scripts.train(tmp_path, *MOMENTUM)
        assert done.returncode == 1
        assert "the run has saved checkpoints, the first at step 3, but " in done.stderr
        assert (tmp_path / "metrics.jsonl").read_bytes() == before

    def test_whose_mark_a_kill_prevented_is_marked_as_the_run_goes_on(self, four_steps, tmp_path):
        shutil.copytree(four_steps, tmp_path / "run")
        path = tmp_path / "run" / "config.json"
        config = json.loads(path.read_text())
        del config["first_checkpoint"]
        path.write_text(json.dumps(config))
        (tmp_path / "run" / "final_model.json").unlink()
        done = scripts.train(tmp_path / "run", *FLAGS, "--max_steps=5")
        assert "continuing at step 4" in done.stdout
        assert json.loads(path.read_text())["first_checkpoint"] == 4


class TestACheckpointThatIsNotTheRuns:
    @pytest.fixture
    def run(self, four_steps, tmp_path):
        shutil.copytree(four_steps, tmp_path / "run")
        return tmp_path / "run"

    def test_another_runs_is_neither_continued_nor_evaluated(self, run, tmp_path):
        scripts.train(tmp_path / "other", *FLAGS, "--seed=1", "--max_steps=6")
        shutil.copytree(
            tmp_path / "other" / "checkpoints" / "step-6", run / "checkpoints" / "step-6"
        )
        done = scripts.train(run, *FLAGS, "--max_steps=8")
        assert done.returncode == 1
        assert "step-6 belongs to another run, with other settings or images" in done.stderr
        path = tmp_path / "other" / "checkpoints" / "step-6"
        done = scripts.run("eval", f"--train_dir={run}", f"--checkpoint={path}")
        assert done.returncode == 1
        assert "belongs to another run" in done.stderr
        assert not (run / "eval.jsonl").exists()


@pytest.mark.long
def test_a_run_alone_does_not_hash_its_state(tmp_path, monkeypatch):
    """The hashes of several workers are compared before each checkpoint; one has nobody to ask."""

    def parts_sha256(_):
        raise AssertionError("hashed for nobody")

    monkeypatch.setattr(train_state.TrainState, "parts_sha256", parts_sha256)
    assert scripts.train(tmp_path, *FLAGS).returncode == 0
