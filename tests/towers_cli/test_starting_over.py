"""A run that met NaN or lost its checkpoints: what it says, and how it starts over."""

import json
import shutil

import numpy as np
import pytest
import scripts
import tensorflow as tf

from towers import train_state, trainer

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


@pytest.mark.long
def test_an_attempt_without_a_checkpoint_leaves_nothing_in_the_run_that_starts_over(tmp_path):
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
class TestTheAdvice:
    def test_after_nan_can_be_followed(self, tmp_path, monkeypatch):
        """Step 3 leaves infinite weights; a new run begins with those of step 2."""
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
            f"The newest checkpoint is {tmp_path}/old/checkpoints/step-2. To begin with its "
            f"weights and other settings, give --init_from={tmp_path}/old, or a checkpoint in it, "
            "and a new --train_dir.\n"
        )
        advised = (f"--init_from={tmp_path}/old", "--learning_rate=0.01", "--clip_norm=1")
        done = scripts.train(tmp_path / "new", *FLAGS, *advised)
        assert done.returncode == 0, done.stderr
        assert f"begins with {tmp_path}/old/checkpoints/step-2" in " ".join(done.stdout.split())
        assert [line["step"] for line in scripts.training_lines(tmp_path / "new")] == [1, 2, 3, 4]

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
