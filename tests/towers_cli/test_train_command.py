"""`train.py`: what a run leaves and says; that it goes on where it was stopped, however it was.

Most tests run the script in their own process (scripts.py); signals, the exported model and a
silent stderr are tested on real ones.
"""

import dataclasses
import json
import math
import os
import re
import shutil
import signal

import keras
import lighter
import pytest
import scripts
import tensorflow as tf

TRAINING_KEYS = {
    *("step", "examples_seen", "epoch", "learning_rate", "weight_decay"),
    *("accuracy", "cross_entropy", "loss", "top5_accuracy", "examples_per_second", "step_seconds"),
}
NUM_TRAIN = 5000  # of `shapes`

WHOLE_RUN = (
    "--num_towers=2", "--microbatch_size=6", "--max_steps=7", "--checkpoint_every_steps=2",
    "--checkpoints_to_keep=2", "--summary_every_steps=3", "--moving_average_decay=0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "deep" / "run"


@pytest.fixture(scope="module")
def done(forked_command, folder):
    with lighter.only(()):
        return forked_command("train.py", *scripts.small_run(folder), *WHOLE_RUN)


@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_runs")
class TestARun:
    """One run of two towers as a process, and what it leaves."""

    @pytest.mark.pitfall(3, 4, 22)
    def test_is_quiet_and_begins_with_a_table(self, done, folder):
        assert (done.returncode, done.stderr) == (0, "")
        table = [line for line in done.stdout.splitlines() if line.startswith("  ")]
        rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in table)
        for name, pieces in (
            ("data", ("5,000 train", "1,000 test", "10 classes")),
            ("model", ("cifarnet", "float32", "sgd", "weight decay 0.004")),
            ("towers", ("2 on /CPU:0, /CPU:1",)),
            ("batch", ("24 global", "4 microbatches", "6")),
            ("steps", ("7", "208.3 per epoch")),
            ("learning rate", ("exponential, 0.1 to 0.1 at epoch 0.0336", "WARNING")),
        ):
            for piece in pieces:
                assert piece in rows[name]
        assert scripts.final_summary(folder)["weights_sha256"][:16] in done.stdout

    @pytest.mark.pitfall(3, 10)
    def test_config_holds_every_setting_resolved(self, done, folder):
        config = json.loads((folder / "config.json").read_text())
        chosen, derived = config["settings"], config["resolved"]
        given = scripts.settings_of(*scripts.small_run(folder), *WHOLE_RUN)
        filled_in = {
            "preprocessing": "crop_flip_colour",
            "weight_decay": 0.004,
            "jit_compile": False,
            "parameter_device": "cpu",
        }
        expected = dataclasses.asdict(given) | filled_in
        assert chosen == {k: [*v] if isinstance(v, tuple) else v for k, v in expected.items()}
        assert derived["tower_devices"] == ["/CPU:0", "/CPU:1"]
        assert (derived["examples_per_epoch"], derived["last_step"]) == (NUM_TRAIN, 7)
        assert len(derived["class_names"]) == 10
        assert config["runs_on"]["tensorflow"] == tf.__version__
        assert {"keras", "numpy", "python", "processor"} <= set(config["runs_on"])

    @pytest.mark.pitfall(5, 9, 19, 20)
    def test_metrics_name_steps_examples_and_epochs_and_the_loss_is_the_sum_of_its_terms(
        self, done, folder
    ):
        lines = scripts.training_lines(folder)
        assert [set(line) for line in lines] == [TRAINING_KEYS] * 7
        for step, line in enumerate(lines, start=1):
            assert (line["step"], line["examples_seen"]) == (step, step * 24)
            assert line["epoch"] == step * 24 / NUM_TRAIN
            assert line["step_seconds"] * line["examples_per_second"] == pytest.approx(24)
        first, last = lines[0], scripts.evaluation_lines(folder)[-1]
        assert first["loss"] == pytest.approx(first["cross_entropy"] + first["weight_decay"])
        assert first["cross_entropy"] == pytest.approx(math.log(10), rel=0.05)
        assert first["weight_decay"] == pytest.approx(2.374, abs=0.001)  # once, for 2 towers
        assert last["val_loss"] - last["val_cross_entropy"] == pytest.approx(2.37, abs=0.01)

    @pytest.mark.pitfall(13)
    def test_leaves_the_promised_files_in_which_nothing_is_called_precision(self, done, folder):
        names = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
        assert names == {
            *("config.json", "metrics.jsonl", "checkpoints", "train", "eval"),
            *("final_model.keras", "final_model.json", "training.lock"),
        }
        assert scripts.checkpoint_steps(folder) == [6, 7]  # the newest are kept
        summary = scripts.final_summary(folder)
        for name in ("weights_sha256", "state_sha256"):
            assert re.fullmatch("[0-9a-f]{64}", summary.pop(name))
        assert summary == scripts.evaluation_lines(folder)[-1]
        assert "precision" not in done.stdout.lower()
        for name, content in scripts.contents(folder).items():
            if name.endswith((".json", ".jsonl")) or "tfevents" in name:
                assert b"precision" not in content.lower(), name

    @pytest.mark.pitfall(11)
    def test_a_second_start_changes_nothing(self, done, folder, tmp_path):
        """It needs no checkpoint: nothing comes after it that would use the weights."""
        copied = shutil.copytree(folder, tmp_path / "copied")
        shutil.rmtree(copied / "checkpoints")
        before = scripts.contents(copied)
        for flags in ([], ["--num_towers=1"], ["--max_steps=3"]):
            again = scripts.trained(copied, *WHOLE_RUN, *flags)
            assert "the run has finished already, at step 7" in again.stdout
        assert scripts.contents(copied) == before


STOPPED = ("--checkpoint_every_steps=2", "--momentum=0.9", "--moving_average_decay=0.9")


@pytest.mark.whole_program
@pytest.mark.pitfall(11, 28, 31)
def test_goes_on_after_signals(tmp_path):
    """SIGTERM, then the same command and Ctrl-C, then the folder is moved and the towers more."""
    folder = tmp_path / "run"
    command = [*scripts.small_run(folder), *STOPPED, "--max_steps=50000"]
    steps = [0]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = scripts.start("train", *command)
        scripts.wait_for_line(process, f"step {steps[-1] + 2}/")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (code, "")
        stopped = re.match(r"stopped at step (\d+)", stdout.splitlines()[-1])
        assert (folder / "checkpoints" / f"step-{stopped[1]}").exists()
        assert not (folder / "final_model.json").exists()
        assert scripts.training_lines(folder)[-1]["step"] == int(stopped[1])
        steps.append(int(stopped[1]))
    assert steps[2] > steps[1]
    # Where it stands now is up to the clock, so the comparison runs to a little further.
    end = f"--max_steps={steps[2] + 2}"
    moved = shutil.move(folder, tmp_path / "moved")
    done = scripts.trained(moved, *STOPPED, end, "--num_towers=4")
    assert f"\ncontinuing at step {steps[2]}\n" in done.stdout
    scripts.trained(tmp_path / "in_one_go", *STOPPED, end)
    scripts.assert_same_run(moved, tmp_path / "in_one_go")


@pytest.fixture
def short_run(run_of):
    return run_of("--max_steps=1", "--momentum=0.9")


@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_runs")
def test_a_dry_run_leaves_a_new_home_folder_empty(forked_command, tmp_path):
    """As a user whose home folder it is; what libraries write as they are imported is theirs."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": ""}
    done = forked_command("train.py", "--dry_run", "--recipe=shapes", env=kept | places, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5,000 train, 1,000 test" in done.stdout and "cosine, 0.02 to 0 at" in done.stdout
    assert not list(home.iterdir())


def test_a_dry_run_of_one_that_would_go_on_changes_nothing(short_run):
    before = scripts.contents(short_run)
    scripts.trained(short_run, "--max_steps=9", "--momentum=0.9", "--dry_run")
    assert scripts.contents(short_run) == before


class TestAnotherRun:
    SAME = ("--max_steps=9", "--momentum=0.9")

    @pytest.mark.pitfall(11)
    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--microbatch_size=6"], ["microbatch_size"]),
            (["--model=resnet"], ["model", "preprocessing", "weight_decay"]),
        ],
    )
    def test_is_refused_by_name_and_leaves_the_folder_alone(self, short_run, flags, named):
        before = scripts.contents(short_run)
        done = scripts.train(short_run, *self.SAME, *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"error: --train_dir={short_run} " in done.stderr
        assert set(re.findall(r"--(\w+)=\S+ \(", done.stderr)) == set(named)
        assert scripts.contents(short_run) == before

    def test_on_other_data_under_the_same_name_is_refused(self, short_run, tmp_path):
        folder = shutil.copytree(short_run, tmp_path / "run")
        config = json.loads((folder / "config.json").read_text())
        config["defining"] |= {"sha256 of the images": "f" * 12, "names of the classes": ["a"]}
        config["resolved"]["eval_sha256"] = "e" * 64
        (folder / "config.json").write_text(json.dumps(config))
        before = scripts.contents(folder)
        done = scripts.train(folder, *self.SAME)
        assert done.returncode == 1
        assert "sha256 of the images" in done.stderr and "ffffffffffff" in done.stderr
        assert "names of the classes" in done.stderr and "eeeeeeeeeeee" in done.stderr
        assert scripts.contents(folder) == before


@pytest.mark.parametrize("damaged", ["final_model.keras", "final_model.json"])
def test_a_final_model_that_is_damaged_is_exported_again(tmp_path, short_run, damaged):
    folder = shutil.copytree(short_run, tmp_path / "run")
    whole = scripts.final_summary(folder)
    os.truncate(folder / damaged, 100)
    done = scripts.trained(folder, "--max_steps=1", "--momentum=0.9")
    assert "finished already" not in done.stdout
    assert scripts.final_summary(folder) == whole
    keras.saving.load_model(folder / "final_model.keras")
