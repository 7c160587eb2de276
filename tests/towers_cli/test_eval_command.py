"""`eval.py`: each example once whatever the towers and batches, any checkpoint, any folder."""

import json
import re
import shutil
import signal
import subprocess

import lighter
import numpy as np
import photos
import pytest
import scripts

from towers.runs import checkpoints, run_folder
from towers_cli import checkpoint_evaluator, settings

FOUND = ["accuracy", "top5_accuracy", "cross_entropy"]
KEYS = ["step", "epoch", "checkpoint", "split", "data_sha256", "test_time_flip", "count", *FOUND]

TRAINING = (
    "--model=fastnet",  # of the lighter networks the one that learns something in so few steps
    "--max_steps=40", "--checkpoint_every_steps=20", "--num_towers=2", "--learning_rate=0.02",
    "--momentum=0.9", "--moving_average_decay=0.5",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(run_of):
    """A finished run with checkpoints at steps 20 and 40."""
    return run_of(*TRAINING)


def evaluate(folder, *flags) -> tuple[subprocess.CompletedProcess, list[dict]]:
    """Runs eval.py; what it said, and the lines that it added to eval.jsonl."""
    path = folder / "eval.jsonl"
    before = len(scripts.lines_of(path)) if path.exists() else 0
    done = scripts.run("eval", f"--train_dir={folder}", *flags)
    return done, scripts.lines_of(path)[before:] if path.exists() else []


def check_found(line: dict, folder) -> None:
    """An evaluation of the last checkpoint found what that of the training had."""
    own = scripts.final_summary(folder)  # on two towers
    assert 0.15 < own["val_accuracy"] < 0.9
    assert (line["step"], line["epoch"]) == (own["step"], own["epoch"])
    for name in FOUND:
        assert line[name] == pytest.approx(own[f"val_{name}"], abs=1e-6)


@pytest.mark.whole_program
@pytest.mark.pitfall(12, 13)
def test_a_process_evaluates_the_newest_checkpoint(forked_command, folder):
    before = scripts.contents(folder)
    done = forked_command("eval.py", "--train_dir=run", cwd=folder.parent)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    line = scripts.lines_of(folder / "eval.jsonl")[-1]
    assert f"step 40, epoch 0.19, test split, {lighter.TEST_IMAGES} examples" in head
    assert f"{line['accuracy']:.2%}" in head and f"{line['cross_entropy']:.4f}" in head
    shares = [float(row.split()[0].removesuffix("%")) / 100 for row in rows]
    assert len(shares) == 10
    assert np.mean(shares) == pytest.approx(line["accuracy"], abs=5e-5)  # they are rounded

    assert list(line) == KEYS
    check_found(line, folder)
    assert "precision" not in done.stdout.lower()

    after = scripts.contents(folder)
    assert {name: after[name] for name in before} == before
    added = {name.split("/")[0] for name in set(after) - set(before)}
    assert added == {"eval.jsonl", "eval_test"}


@pytest.mark.pitfall(12, 26)
@pytest.mark.parametrize(("towers", "batch"), [(1, 24), (3, 64), (4, 101)])
def test_towers_and_batches_change_nothing(folder, towers, batch):
    done, [line] = evaluate(folder, f"--num_towers={towers}", f"--global_batch_size={batch}")
    assert (done.returncode, done.stderr) == (0, "")
    assert line["count"] == lighter.TEST_IMAGES
    check_found(line, folder)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("eval_sha256", "f" * 64, "sha256"),
        ("data_sha256", "f" * 64, "sha256"),
        ("class_names", ["a"] * 11, "class_names"),
        ("image_shape", [9, 9, 3], "image_shape"),
    ],
)
def test_other_images_than_the_runs_are_refused(folder, tmp_path, name, value, what):
    shutil.copytree(folder, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["resolved"][name] = value
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    split = "--split=train" if name == "data_sha256" else "--split=test"
    done = scripts.run("eval", f"--train_dir={tmp_path / 'run'}", split)
    assert done.returncode == 2 and f"error: {split}: " in done.stderr
    assert f"{what} " in done.stderr and "(the run has " in done.stderr


def test_a_flip_at_test_time_is_said_and_written_down(folder):
    _, [plain] = evaluate(folder)
    done, [line] = evaluate(folder, "--test_time_flip")
    assert f"{lighter.TEST_IMAGES} examples, each once and mirrored: accuracy" in done.stdout
    assert (plain["test_time_flip"], line["test_time_flip"]) == (False, True)
    assert list(line) == KEYS
    assert line["cross_entropy"] != plain["cross_entropy"]
    assert line["cross_entropy"] == pytest.approx(plain["cross_entropy"], abs=0.2)
    assert list((folder / "eval_test_flip").iterdir())


def test_mirrored_images_are_evaluated_from_right_to_left():
    class Columns:
        """Its logits are an image's columns."""

        def predict_on_batch(self, images):
            return images.mean(axis=(1, 3))

    images = np.zeros((1, 2, 3, 1), np.float32)
    images[:, :, 0], images[:, :, 2] = 3.0, 1.0
    batches = [(images, np.array([2]))]
    plain, _ = checkpoint_evaluator.evaluate(Columns(), batches, 3)
    assert plain["cross_entropy"] == pytest.approx(np.log(1 + np.exp(2) + np.exp(-1)))  # of 3, 0, 1
    mean, of_classes = checkpoint_evaluator.evaluate(Columns(), batches, 3, test_time_flip=True)
    assert mean["cross_entropy"] == pytest.approx(np.log(2 + np.exp(-2)))  # of 2, 0 and 2
    assert np.isnan(of_classes[:2]).all() and of_classes[2] == mean["accuracy"]


def test_a_checkpoint_that_is_missing_is_named_beside_those_that_are_there(folder):
    _, [line] = evaluate(folder, "--checkpoint=20")
    assert (line["step"], line["epoch"]) == (20, 20 * 24 / 5000)
    done, lines = evaluate(folder, "--checkpoint=30")
    assert (done.returncode, done.stdout, lines) == (1, "", [])
    assert re.fullmatch(r"eval.py: error: checkpoint=30: .* 20, 40\n", done.stderr)


def test_a_run_that_is_removed_or_replaced_meanwhile_is_not_evaluated(folder, run_of, tmp_path):
    chosen = settings.EvalSettings(train_dir=str(tmp_path / "run"), run_once=False)
    shutil.copytree(folder, tmp_path / "run")
    with lighter.runs():
        evaluator = checkpoint_evaluator.CheckpointEvaluator(chosen)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(run_folder.RunFolderError, match="no run"):
        evaluator.follow()
    shutil.copytree(run_of(*TRAINING, "--seed=1", "--max_steps=1"), tmp_path / "run")
    newest = checkpoints.newest(tmp_path / "run" / "checkpoints")
    for evaluate in (evaluator.follow, lambda: evaluator.evaluate(newest)):
        with pytest.raises(run_folder.RunFolderError, match="another run"):
            evaluate()


class TestFollowing:
    FLAGS = ("--run_once=false", "--eval_interval_seconds=0.05")

    @pytest.mark.whole_program
    def test_evaluates_each_checkpoint_of_a_running_training_once(self, tmp_path):
        folder = tmp_path / "run"
        flags = ["--max_steps=100", "--checkpoint_every_steps=25", "--checkpoints_to_keep=9"]
        flags.append("--model=cifarnet")  # the quickest
        process = scripts.start("train", *scripts.small_run(folder), *TRAINING, *flags)
        scripts.wait_for_line(process, "step 1/")
        done, lines = evaluate(folder, *self.FLAGS)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert (done.returncode, done.stderr) == (0, "")
        assert [line["step"] for line in lines] == [25, 50, 75, 100]
        assert done.stdout.splitlines()[-1] == "the training has finished"
        own = scripts.final_summary(folder)["val_accuracy"]
        assert lines[-1]["accuracy"] == pytest.approx(own, abs=1e-6)

    def test_evaluates_what_was_not_and_ends_where_the_training_has_finished(self, folder):
        (folder / "eval.jsonl").unlink(missing_ok=True)
        evaluate(folder)
        done, lines = evaluate(folder, *self.FLAGS)
        assert done.returncode == 0
        assert [line["step"] for line in lines] == [20]  # older than the one before
        assert done.stdout.splitlines()[-1] == "the training has finished"
        again, lines = evaluate(folder, *self.FLAGS)
        assert (again.stdout, lines) == ("the training has finished\n", [])  # once is enough

    def test_stops_when_asked(self, folder, tmp_path):
        unfinished = shutil.copytree(folder, tmp_path / "run")
        (unfinished / "final_model.json").unlink()
        (unfinished / "eval.jsonl").unlink(missing_ok=True)
        process = scripts.start("eval", f"--train_dir={unfinished}", *self.FLAGS)
        scripts.wait_for_line(process, "step 40, ")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (130, "")
        assert stdout.splitlines()[-1] == "stopped"
        lines = scripts.lines_of(unfinished / "eval.jsonl")
        assert [line["step"] for line in lines] == [20, 40]


def test_every_report_has_the_name_of_the_evaluated_split(tmp_path):
    photos.prepare_tiny(tmp_path / "data", ("train", "validation", "extra"), size=(32, 32))
    flags = ["--dataset=tiny_photos", "--global_batch_size=5", "--microbatch_size=5"]
    flags += [f"--data_dir={tmp_path / 'data'}", "--train_epochs=0.4", "--summary_every_steps=0"]
    run = tmp_path / "run"
    done = scripts.trained(run, *flags, "--eval_split=validation")
    assert "25 train, 25 validation, 3 classes" in done.stdout
    assert "validation at step 2: accuracy" in done.stdout
    assert not re.search(r"\btest\b", done.stdout)
    for split in ("validation", "extra", "train"):
        flag = [f"--split={split}"] if split != "validation" else []
        done = scripts.run("eval", f"--train_dir={run}", *flag)
        assert f"{split} split, 25 examples, each once" in done.stdout
        assert (run / f"eval_{split}").is_dir()
    lines = scripts.lines_of(run / "eval.jsonl")
    assert [line["split"] for line in lines] == ["validation", "extra", "train"]
    missing = scripts.run("eval", f"--train_dir={run}", "--split=test")
    assert missing.returncode == 1
    assert "'test'" in missing.stderr and "train, validation, extra" in missing.stderr
    for split in ("", "train[:10%]", "train+extra"):  # no whole split of the set, by its name
        assert scripts.run("eval", f"--train_dir={run}", f"--split={split}").returncode == 2
    # And a run whose end moves may evaluate another split; at its end it was evaluated.
    done = scripts.trained(run, *flags, "--eval_split=extra", "--train_epochs=0.6")
    assert "extra at step 3: accuracy" in done.stdout
    (run / "final_model.json").unlink()
    done = scripts.train(run, *flags, "--eval_split=validation", "--train_epochs=0.6")
    assert done.returncode == 1 and "--eval_split=validation" in done.stderr
