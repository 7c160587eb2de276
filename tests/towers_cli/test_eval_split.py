"""`--eval_split`: a run evaluates the split of that name, and all that it says names it."""

import re
from pathlib import Path

import pytest
import scripts
import tiny_photos

SPLITS = ("train", "validation", "extra")
FLAGS = (
    "--dataset=tiny_photos",
    "--global_batch_size=8",
    "--microbatch_size=8",
    "--max_steps=2",
    "--summary_every_steps=0",
)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """Holds `tiny_photos` without a split `test`."""
    folder = tmp_path_factory.mktemp("data")
    tiny_photos.prepare(folder, SPLITS, size=(32, 32))
    return folder


def train(folder: Path, data_dir: Path, *flags: str) -> scripts.Done:
    return scripts.train(folder, *FLAGS, f"--data_dir={data_dir}", *flags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs") / "run"


@pytest.fixture(scope="module")
def done(folder, data_dir) -> scripts.Done:
    """A run without a split `test`."""
    return train(folder, data_dir, "--eval_split=validation")


def test_every_report_has_the_splits_own_name(done, folder):
    assert (done.returncode, done.stderr) == (0, "")
    assert "25 train, 25 validation, 3 classes" in done.stdout
    assert "validation at step 2: accuracy" in done.stdout
    assert "finished: validation accuracy " in done.stdout
    assert not re.search(r"\btest\b", done.stdout)


def test_eval_takes_the_runs_split_and_any_other(done, folder):
    by_default = scripts.run("eval", f"--train_dir={folder}")
    assert (by_default.returncode, by_default.stderr) == (0, "")
    assert "validation split, 25 examples, each once" in by_default.stdout
    for split in ("extra", "train"):
        other = scripts.run("eval", f"--train_dir={folder}", f"--split={split}")
        assert f"{split} split, 25 examples, each once" in other.stdout
        assert (folder / f"eval_{split}").is_dir()
    lines = scripts.lines_of(folder / "eval.jsonl")
    assert [line["split"] for line in lines] == ["validation", "extra", "train"]
    missing = scripts.run("eval", f"--train_dir={folder}", "--split=test")
    assert missing.returncode == 1
    assert "has no split 'test'; it has train, validation, extra" in missing.stderr
    for expression in ("validation[:5]", "train+validation", ""):
        wrong = scripts.run("eval", f"--train_dir={folder}", f"--split={expression}")
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert wrong.stderr.startswith(
            f"eval.py: error: --split={expression}: must be the name of one whole split"
        )


def test_a_run_that_goes_on_may_evaluate_another_split(tmp_path, data_dir):
    flags = ["--eval_every_epochs=1", "--max_steps=8"]  # an epoch is 25 images, in batches of 8
    assert train(tmp_path, data_dir, "--eval_split=validation", *flags).returncode == 0
    done = train(tmp_path, data_dir, "--eval_split=extra", *flags, "--max_steps=12")
    assert (done.returncode, done.stderr) == (0, "")
    said = re.findall(r"(\w+) at step (\d+): accuracy", done.stdout)
    assert said == [("extra", "10"), ("extra", "12")]
    assert [line["step"] for line in scripts.evaluation_lines(tmp_path)] == [4, 7, 8, 10, 12]


def test_a_split_that_is_missing_is_answered_before_the_other_is_decoded(
    tmp_path, data_dir, monkeypatch
):
    from input_pipeline import tfds_source

    monkeypatch.setattr(tfds_source, "read", lambda *_: pytest.fail("a split was decoded"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = train(tmp_path / "run", data_dir)
    assert (done.returncode, done.stdout) == (1, "")
    problem = "dataset=tiny_photos has no split 'test'; it has train, validation, extra"
    assert done.stderr == f"train.py: error: {problem}\n"


def test_sets_that_are_not_of_tfds_have_train_and_test(tmp_path):
    done = scripts.train(tmp_path / "run", "--eval_split=validation")
    assert done.returncode == 1
    assert "dataset=shapes has no split 'validation'; it has train, test" in done.stderr
    (tmp_path / "cifar-10-batches-bin").mkdir()
    flags = ["--dataset=cifar10", f"--data_dir={tmp_path}", "--eval_split=validation"]
    done = scripts.train(tmp_path / "run", *flags)
    assert done.returncode == 1
    assert "dataset=cifar10 has no split 'validation'; it has train, test" in done.stderr
