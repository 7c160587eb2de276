"""A run that met NaN or too little memory is no dead end: its advice can be followed."""

import json
import re
import shutil

import numpy as np
import pytest
import scripts
import tensorflow as tf

from towers import checkpoints, trainer

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
        assert re.search(
            r"  begins from +\S+/step-4, at 96 examples", " ".join(done.stdout.split("\n"))
        )
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

    def test_another_optimizer_begins_with_new_slots(self, four_steps, tmp_path):
        adam = ("--summary_every_steps=0", "--optimizer=adam", "--learning_rate=0.001")
        done = scripts.train(tmp_path, *adam, f"--begin_from={four_steps}", "--max_steps=5")
        assert done.returncode == 0, done.stderr
        assert "slots begin anew" in " ".join(done.stdout.split())

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

    def test_averages_begin_at_the_weights_where_there_were_none(self, tmp_path):
        none = (*MOMENTUM, "--moving_average_decay=0", "--max_steps=2")
        assert scripts.train(tmp_path / "none", *none).returncode == 0
        some = (*FLAGS, f"--begin_from={tmp_path / 'none'}", "--max_steps=2")
        assert scripts.train(tmp_path / "some", *some).returncode == 0
        before, after = state_at(tmp_path / "none", 2), state_at(tmp_path / "some", 2)
        np.testing.assert_array_equal(after["moving_averages/0"], before["weights/0"])


class TestTheNewRun:
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
        assert f"{tmp_path}/old/checkpoints holds no whole checkpoint" in error

    def test_another_network(self, four_steps, tmp_path):
        error = self.refused(tmp_path / "new", f"--begin_from={four_steps}", "--model=resnet")
        assert "it has --model cifarnet, and this run has resnet" in error

    def test_a_batch_that_does_not_divide_the_examples_seen(self, four_steps, tmp_path):
        error = self.refused(
            tmp_path / "new", f"--begin_from={four_steps}", "--global_batch_size=36"
        )
        assert "its 96 examples seen are no whole number of batches of --global_batch_size=36" in (
            error
        )
        assert "such as 32" in error

    def test_past_the_end(self, four_steps, tmp_path):
        done = scripts.train(tmp_path, *FLAGS, f"--begin_from={four_steps}", "--max_steps=3")
        assert done.returncode == 1
        assert "the run is at step 4, past the end that was asked for, step 3" in done.stderr


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
            f"The last good checkpoint is {tmp_path}/old/checkpoints/step-2. To go on from it with "
            f"other settings, give them with --begin_from={tmp_path}/old and a new --train_dir.\n"
        )
        advised = (f"--begin_from={tmp_path}/old", "--learning_rate=0.01", "--clip_norm=1")
        done = scripts.train(tmp_path / "new", *FLAGS, *advised)
        assert done.returncode == 0, done.stderr
        assert [line["step"] for line in scripts.training_lines(tmp_path / "new")] == [3, 4]

    def test_before_the_first_checkpoint_can_be_followed_in_the_same_folder(self, tmp_path):
        done = scripts.train(tmp_path, "--learning_rate=1e20", "--summary_every_steps=0")
        assert done.returncode == 1
        assert done.stderr.endswith(
            "There is no checkpoint yet. The same command takes other settings, and begins anew.\n"
        )
        done = scripts.train(tmp_path, "--learning_rate=0.01", "--summary_every_steps=0")
        assert done.returncode == 0, done.stderr
        assert (
            f"the run in {tmp_path} has no checkpoint yet and begins anew: "
            "--learning_rate=0.01 (so far it has 1e+20)\n"
        ) in done.stdout
        assert [line["step"] for line in scripts.training_lines(tmp_path)] == [1, 2, 3, 4]
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["settings"]["learning_rate"] == 0.01
        scripts.train(tmp_path / "other", "--learning_rate=0.01", "--summary_every_steps=0")
        scripts.assert_same_run(tmp_path, tmp_path / "other")


class TestTheFirstCheckpoint:
    def test_that_was_torn_is_none(self, four_steps, tmp_path):
        """Killed, or the disk full, before its index was whole: the same command begins anew."""
        for content in (None, b"", b"half an index"):
            folder = tmp_path / f"torn-{content}"
            shutil.copytree(four_steps, folder)
            for left in ("final_model.json", "final_model.keras"):
                (folder / left).unlink()
            for file in (folder / "checkpoints").glob("step-4*"):
                file.unlink()
            (folder / "checkpoints" / "checkpoint").unlink()
            index = folder / "checkpoints" / "step-2.index"
            index.unlink()
            if content is not None:
                index.write_bytes(content)
            config = json.loads((folder / "config.json").read_text())
            del config["first_checkpoint"]
            (folder / "config.json").write_text(json.dumps(config))
            done = scripts.train(folder, *FLAGS)
            assert done.returncode == 0, done.stderr
            scripts.assert_same_run(folder, four_steps)

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
        assert "the run has saved checkpoints, the first at step 3, and" in done.stderr
        assert (tmp_path / "metrics.jsonl").read_bytes() == before


class TestACheckpointThatIsNotTheRuns:
    @pytest.fixture
    def run(self, four_steps, tmp_path):
        shutil.copytree(four_steps, tmp_path / "run")
        return tmp_path / "run"

    def copy(self, source, run, name):
        for file in source.parent.glob(f"{source.name}.*"):
            shutil.copy(file, run / "checkpoints" / file.name.replace(source.name, name))

    def test_another_runs_is_neither_continued_nor_evaluated(self, run, tmp_path):
        scripts.train(tmp_path / "other", *FLAGS, "--seed=1", "--max_steps=6")
        self.copy(tmp_path / "other" / "checkpoints" / "step-6", run, "step-6")
        done = scripts.train(run, *FLAGS, "--max_steps=8")
        assert done.returncode == 1
        assert "step-6 is of another run, with other settings or images" in done.stderr
        path = tmp_path / "other" / "checkpoints" / "step-6"
        done = scripts.run("eval", f"--train_dir={run}", f"--checkpoint={path}")
        assert done.returncode == 1
        assert "is of another run" in done.stderr
        assert not (run / "eval.jsonl").exists()

    def test_a_renamed_one_is_told_by_its_step(self, run):
        self.copy(run / "checkpoints" / "step-2", run, "step-40")
        done = scripts.train(run, *FLAGS, "--max_steps=50")
        assert done.returncode == 1
        assert "step-40 holds step 2, and its name says 40" in done.stderr


def test_a_run_alone_does_not_hash_its_state(tmp_path, monkeypatch):
    """The hashes of several workers are compared before each checkpoint; one has nobody to ask."""

    def parts_sha256(_):
        raise AssertionError("hashed for nobody")

    monkeypatch.setattr(trainer.Trainer, "parts_sha256", parts_sha256)
    assert scripts.train(tmp_path, *FLAGS).returncode == 0
