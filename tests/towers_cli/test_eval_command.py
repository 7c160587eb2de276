"""`eval.py`: each example once whatever the towers and batches, any checkpoint, any folder."""

import dataclasses
import json
import os
import re
import shutil
import signal
import time

import lighter
import numpy as np
import pytest
import scripts

from input_pipeline import datasets
from towers.runs import checkpoints, run_folder
from towers_cli import checkpoint_evaluator, tally

WAY = ["checkpoint", "split", "dataset", "data_sha256", "test_time_flip"]
FOUND = ["accuracy", "top5_accuracy", "cross_entropy"]
KEYS = ["step", "epoch", *WAY, "count", *FOUND]

TRAINING = (
    "--model=fastnet",  # of the lighter networks the one that learns something in so few steps
    "--max_steps=40",
    "--checkpoint_every_steps=20",
    "--log_every_steps=20",
    "--num_towers=2",
    "--learning_rate=0.02",
    "--momentum=0.9",
    "--moving_average_decay=0.5",
    "--summary_every_steps=0",
)


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run with checkpoints at steps 20 and 40."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    done = scripts.train(folder, *TRAINING)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def unfinished(folder):
    """The same run as it is while its training has not finished."""
    summary = folder / "final_model.json"
    content = summary.read_text()
    summary.unlink()
    yield folder
    summary.write_text(content)


def evaluate(folder, *flags) -> tuple[scripts.Done, list[dict]]:
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
    assert head == (
        f"step 40, epoch 0.19, test split, {lighter.TEST_IMAGES} examples, each once: "
        f"accuracy {line['accuracy']:.2%}, top-5 {line['top5_accuracy']:.2%}, "
        f"cross entropy {line['cross_entropy']:.4f}"
    )
    confusion = _confusion(rows)
    assert confusion.sum(axis=1).tolist() == [lighter.TEST_IMAGES // 10] * 10
    assert np.trace(confusion) / lighter.TEST_IMAGES == line["accuracy"]
    shares = [float(share) / 100 for share in re.findall(r"([\d.]+)%", "\n".join(rows))]
    assert shares == (np.diag(confusion) * 10 / lighter.TEST_IMAGES).tolist()

    assert list(line) == KEYS
    check_found(line, folder)
    assert "precision" not in done.stdout.lower()

    after = scripts.contents(folder)
    assert {name: after[name] for name in before} == before
    added = {name.split("/")[0] for name in set(after) - set(before)}
    assert added == {"eval.jsonl", "eval_test"}


def _confusion(rows: list[str]) -> np.ndarray:
    """[label, predicted], from the rows `name  share%  label  count count ...`."""
    return np.array([row.split()[3:] for row in rows[2:]], dtype=int)


@pytest.mark.pitfall(12, 26)
@pytest.mark.parametrize(("towers", "batch"), [(1, None), (3, 64), (2, 33), (4, 101)])
def test_towers_and_batches_change_nothing(folder, towers, batch):
    flags = [f"--num_towers={towers}"] + ([f"--global_batch_size={batch}"] if batch else [])
    done, [line] = evaluate(folder, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert line["count"] == lighter.TEST_IMAGES
    check_found(line, folder)


@pytest.mark.long
def test_the_training_split_and_its_count(folder):
    done, [line] = evaluate(folder, "--split=train", "--global_batch_size=500")
    assert "train split, 5,000 examples, each once" in done.stdout
    assert (line["split"], line["count"], line["step"]) == ("train", 5000, 40)
    assert list((folder / "eval_train").iterdir())


@pytest.mark.parametrize("split", ["test", "train"])
def test_other_images_under_the_runs_own_name_are_refused(folder, monkeypatch, split):
    real = datasets.load

    def other(*arguments, **options):
        return dataclasses.replace(real(*arguments, **options), fingerprint="f" * 64)

    monkeypatch.setattr(datasets, "load", other)
    done, lines = evaluate(folder, f"--split={split}")
    assert (done.returncode, lines) == (2, [])
    assert f"--split={split}: its images or labels are not those of the run (sha256 ffff" in (
        done.stderr
    )


class TestAFlipAtTestTime:
    def test_is_said_and_written_down(self, folder):
        _, [plain] = evaluate(folder)
        done, [line] = evaluate(folder, "--test_time_flip")
        assert f"{lighter.TEST_IMAGES} examples, each once and mirrored: accuracy" in done.stdout
        assert (plain["test_time_flip"], line["test_time_flip"]) == (False, True)
        assert list(line) == KEYS
        assert line["cross_entropy"] != plain["cross_entropy"]
        assert line["cross_entropy"] == pytest.approx(plain["cross_entropy"], abs=0.2)
        assert list((folder / "eval_test_flip").iterdir())

    @pytest.mark.long
    def test_is_an_evaluation_of_its_own_to_one_that_follows(self, folder):
        forget_evaluations(folder)
        evaluate(folder)
        _, lines = evaluate(folder, "--test_time_flip", *TestFollowing.FLAGS)
        assert [line["step"] for line in lines] == [20, 40]
        _, lines = evaluate(folder, "--test_time_flip", *TestFollowing.FLAGS)
        assert lines == []


class TestTheCheckpoint:
    def test_by_step_and_by_path(self, folder):
        _, [by_step] = evaluate(folder, "--checkpoint=20")
        path = folder / "checkpoints" / "step-20"
        _, [by_path] = evaluate(folder, f"--checkpoint={path}")
        _, [newest] = evaluate(folder)
        assert by_step == by_path
        assert (by_step["step"], by_step["epoch"]) == (20, 20 * 24 / 5000)
        assert newest["step"] == 40
        assert by_step["cross_entropy"] != newest["cross_entropy"]

    def test_that_is_missing_is_named_beside_those_that_are_there(self, folder):
        done, lines = evaluate(folder, "--checkpoint=30")
        assert (done.returncode, done.stdout, lines) == (1, "", [])
        assert re.fullmatch(
            r"eval.py: error: checkpoint=30: not found; \S*checkpoints holds the steps 20, 40\n",
            done.stderr,
        )

    def test_is_not_there_yet(self, folder, tmp_path):
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        done, _ = evaluate(tmp_path)
        assert done.returncode == 1
        assert done.stderr == (
            f"eval.py: error: {tmp_path / 'checkpoints'} holds no checkpoint yet\n"
        )


def forget_evaluations(folder):
    (folder / "eval.jsonl").unlink(missing_ok=True)


class TestFollowing:
    FLAGS = ("--run_once=false", "--eval_interval_seconds=0.05")

    @pytest.mark.whole_program
    def test_evaluates_each_checkpoint_of_a_running_training_once(self, tmp_path, cache_home):
        folder = tmp_path / "run"
        flags = ["--max_steps=100", "--checkpoint_every_steps=25", "--checkpoints_to_keep=9"]
        flags.append("--model=cifarnet")  # the quickest
        process = scripts.start(cache_home, "train", *scripts.small_run(folder), *TRAINING, *flags)
        scripts.wait_for_line(process, "step 1/")
        done, lines = evaluate(folder, *self.FLAGS)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert (done.returncode, done.stderr) == (0, "")
        assert [line["step"] for line in lines] == [25, 50, 75, 100]
        assert done.stdout.splitlines()[-1] == "the training has finished"
        own = scripts.final_summary(folder)["val_accuracy"]
        assert lines[-1]["accuracy"] == pytest.approx(own, abs=1e-6)

    def test_ends_at_once_where_the_training_has_finished(self, folder):
        forget_evaluations(folder)
        done, lines = evaluate(folder, *self.FLAGS)
        assert done.returncode == 0
        assert [line["step"] for line in lines] == [20, 40]
        assert done.stdout.splitlines()[-1] == "the training has finished"
        again, lines = evaluate(folder, *self.FLAGS)
        assert (again.stdout, lines) == ("the training has finished\n", [])  # once is enough

    @pytest.mark.long
    def test_an_evaluation_of_other_data_is_none_of_the_runs_own(self, folder, monkeypatch):
        """After `eval.py --dataset=other` the run's own steps are still to be evaluated."""
        forget_evaluations(folder)
        real = datasets.load

        def other(name, *arguments, **options):
            data = real("shapes", *arguments)
            return dataclasses.replace(data, labels=data.labels[::-1], fingerprint="f" * 64)

        with monkeypatch.context() as patch:
            patch.setattr(datasets, "load", other)
            _, of_other = evaluate(folder, "--dataset=other/set", *self.FLAGS)
        _, of_own = evaluate(folder, *self.FLAGS)
        config = run_folder.RunFolder(str(folder)).read_config()
        assert [line["step"] for line in of_other] == [20, 40]
        assert [line["step"] for line in of_own] == [20, 40]
        assert {(line["dataset"], line["data_sha256"]) for line in of_other} == {
            ("other/set", "f" * 64)
        }
        assert {line["dataset"] for line in of_own} == {"shapes"}
        assert of_own[0]["data_sha256"] == config["resolved"]["eval_sha256"]
        assert of_own[0]["checkpoint"] == f"{folder}/checkpoints/step-20"
        assert list((folder / "eval_other-set_test").iterdir())  # a TensorBoard run of its own

    def test_another_run_in_the_folder_is_said(self, unfinished, monkeypatch):
        """As when a run without a checkpoint starts over with other settings."""
        forget_evaluations(unfinished)
        path = unfinished / "config.json"
        before = path.read_text()

        def begin_another(*_):
            config = json.loads(before)
            config["run_sha256"] = "0" * 64
            path.write_text(json.dumps(config))

        monkeypatch.setattr(checkpoint_evaluator, "_wait", begin_another)
        try:
            done, _ = evaluate(unfinished, *self.FLAGS)
        finally:
            path.write_text(before)
        assert done.returncode == 1
        assert "another run has begun here since; run the same command again" in done.stderr

    def test_a_folder_that_was_removed_is_said(self, unfinished, monkeypatch, tmp_path):
        shutil.copytree(unfinished, tmp_path / "run")
        monkeypatch.setattr(
            checkpoint_evaluator, "_wait", lambda *_: shutil.rmtree(tmp_path / "run")
        )
        done = scripts.run("eval", f"--train_dir={tmp_path / 'run'}", *self.FLAGS)
        assert done.returncode == 1
        assert "there is no run here" in done.stderr

    @pytest.mark.long
    def test_waits_for_a_training_that_has_not_begun(self, tmp_path, monkeypatch):
        def train_meanwhile(_):
            monkeypatch.undo()  # others sleep, too
            assert scripts.train(tmp_path, *TRAINING).returncode == 0

        monkeypatch.setattr(time, "sleep", train_meanwhile)
        done, lines = evaluate(tmp_path, *self.FLAGS)
        assert done.returncode == 0
        assert done.stdout.startswith(f"waiting for a run in {tmp_path}\n")
        assert [line["step"] for line in lines] == [20, 40]

    @pytest.mark.long
    def test_goes_on_where_a_finished_training_goes_on(self, tmp_path, monkeypatch):
        assert scripts.train(tmp_path, *TRAINING, "--max_steps=20").returncode == 0
        config = json.loads((tmp_path / "config.json").read_text())
        config["resolved"]["last_step"] = 40  # what the longer training begins with
        (tmp_path / "config.json").write_text(json.dumps(config))

        waits = []

        def train_meanwhile(*_):
            waits.append(scripts.train(tmp_path, *TRAINING).returncode)

        monkeypatch.setattr(checkpoint_evaluator, "_wait", train_meanwhile)
        done, lines = evaluate(tmp_path, *self.FLAGS)
        assert (done.returncode, waits) == (0, [0])
        assert [line["step"] for line in lines] == [20, 40]

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_stops_when_asked(self, unfinished, monkeypatch, number, code):
        forget_evaluations(unfinished)
        monkeypatch.setattr(checkpoint_evaluator, "_wait", lambda *_: os.kill(os.getpid(), number))
        done, lines = evaluate(unfinished, *self.FLAGS)
        assert (done.returncode, done.stderr) == (code, "")
        assert [line["step"] for line in lines] == [20, 40]
        assert done.stdout.splitlines()[-1] == "stopped following"

    def test_passes_over_what_the_training_has_deleted(self, folder, monkeypatch):
        forget_evaluations(folder)
        original = checkpoints.by_step

        def with_a_deleted_one(checkpoint_folder):
            return {5: str(checkpoint_folder / "step-5")} | original(checkpoint_folder)

        monkeypatch.setattr(checkpoints, "by_step", with_a_deleted_one)
        done, lines = evaluate(folder, *self.FLAGS)
        assert done.returncode == 0
        assert f"skipped: checkpoint={folder}/checkpoints/step-5: " in done.stdout
        assert [line["step"] for line in lines] == [20, 40]


def test_too_little_memory_is_said_in_one_line(folder, monkeypatch):
    def no_memory(*_):
        raise MemoryError("cannot allocate")

    monkeypatch.setattr(tally, "evaluate", no_memory)
    done, lines = evaluate(folder)
    assert (done.returncode, lines) == (1, [])
    assert done.stderr.startswith("eval.py: error: there is not enough memory for a batch")
    assert done.stderr.count("\n") == 1


class TestOtherData:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda data: {"images": data.images[..., :1]},
                r"--dataset: its images are \[32, 32, 1\] after preprocessing, but the run's "
                r"network takes \[32, 32, 3\]",
            ),
            (
                lambda data: {"class_names": data.class_names + ("another",)},
                r"--dataset: its classes are 11 \(disc, ring, square, \.\.\.\), but the run's "
                r"10 \(disc, ring, square, \.\.\.\)",
            ),
        ],
    )
    def test_that_do_not_fit_are_refused(self, folder, monkeypatch, change, message):
        original = datasets.load

        def other_data(*arguments, **options):
            data = original(*arguments, **options)
            return type(data)(**{**vars(data), **change(data)})

        monkeypatch.setattr(datasets, "load", other_data)
        done, lines = evaluate(folder)
        assert (done.returncode, done.stdout, lines) == (2, "", [])
        assert re.fullmatch(f"eval.py: error: {message}\n", done.stderr)

    @pytest.mark.long
    def test_the_runs_own_are_found_from_another_folder(self, tmp_path, monkeypatch):
        """`--data_dir` and `--train_dir` may be relative, and eval.py started elsewhere."""
        asked = []
        original = datasets.load

        def noted(name, data_dir, split, **options):
            asked.append(data_dir)
            return original(name, data_dir, split, **options)

        monkeypatch.setattr(datasets, "load", noted)
        monkeypatch.chdir(tmp_path)
        flags = ["--max_steps=1", "--data_dir=data/sets", "--summary_every_steps=0"]
        assert scripts.train("runs/first", *flags).returncode == 0
        monkeypatch.chdir(tmp_path / "runs")
        done = scripts.run("eval", "--train_dir=first")
        assert (done.returncode, done.stderr) == (0, "")
        assert set(asked) == {str(tmp_path / "data" / "sets")}
        assert (tmp_path / "runs" / "first" / "eval.jsonl").exists()
