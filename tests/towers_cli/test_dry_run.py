"""`train.py --dry_run` writes nothing, wherever a run or its data would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import scripts
import tiny_photos

from input_pipeline import cache, datasets, tfds_source

pytestmark = pytest.mark.whole_program


@pytest.fixture
def home(tmp_path) -> Path:
    """A home folder as new; what the tests compare is all below it."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def dry_run(home: Path, *flags: str, run=subprocess.run) -> subprocess.CompletedProcess:
    """As a user whose home folder it is; the run's folder would be there, too.

    By `forked.run` its libraries are imported already, and what they would write then is not seen.
    """
    kept = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": ""}
    # What the libraries write when they are first imported is theirs.
    for library in ("KERAS_HOME", "MPLCONFIGDIR"):
        places[library] = str(home.parent / library)
    call = [sys.executable, str(scripts.ROOT / "train.py"), "--dry_run", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return run(call, env=kept | places, cwd=home, timeout=120, **pipes)


def state(folder: Path) -> dict[str, tuple]:
    """Every file and folder below `folder`: bytes, and when it was last written to."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


def test_on_a_drawn_set_leaves_a_new_home_folder_empty(home):
    before = state(home)
    done = dry_run(home, "--recipe=shapes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "5,000 train, 1,000 test" in done.stdout and "rate of the next update" in done.stdout
    assert state(home) == before


@pytest.mark.long
def test_on_a_prepared_set_writes_neither_there_nor_into_the_cache(home):
    data_dir = home / "data"
    tiny_photos.prepare(data_dir, size=(32, 32))
    before = state(home)
    done = dry_run(home, "--dataset=tiny_photos", f"--data_dir={data_dir}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "25 train, 25 test" in done.stdout
    assert state(home) == before


@pytest.mark.long
def test_reads_the_cache_and_leaves_a_broken_entry_as_it_is(home, monkeypatch):
    data_dir = home / "data"
    tiny_photos.prepare(data_dir, size=(32, 32))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    for split in datasets.SPLITS:
        datasets.load("tiny_photos", str(data_dir), split)
    (of_test,) = cache.folder().glob("*-test-*")
    (of_test / "labels.npy").write_bytes(b"")
    before = state(home)
    done = dry_run(home, "--dataset=tiny_photos", f"--data_dir={data_dir}")
    assert done.returncode == 0
    assert f"images {of_test.name} are not used" in done.stderr and "train-" not in done.stderr
    assert state(home) == before

    def read(*_):
        raise AssertionError("decoded although it is cached")

    monkeypatch.setattr(tfds_source, "read", read)
    assert len(datasets.load("tiny_photos", str(data_dir), "train", read_only=True).images) == 25


def test_on_a_set_that_is_not_prepared_says_what_to_do(home):
    """Nor does it prepare the archive that a person has brought."""
    manual = home / "tensorflow_datasets" / "downloads" / "manual"
    manual.mkdir(parents=True)
    (manual / "cifar-10-binary.tar.gz").write_bytes(b"an archive")
    before = state(home)
    done = dry_run(home, run=forked.run)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"train.py: error: cifar10 is not prepared in {home}/tensorflow_datasets, and a dry run "
        "(`read_only`) downloads and prepares nothing. Train once without it, or point "
        "`data_dir` to a folder that holds the set prepared.\n"
    )
    assert state(home) == before


@pytest.mark.long
def test_on_a_run_that_would_go_on_changes_nothing_of_it(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert scripts.train(home / "run", "--max_steps=2").returncode == 0
    shutil.copytree(tmp_path / "cache", home / ".cache")
    before = state(home)
    done = dry_run(home, *scripts.small_run(home / "run"), "--max_steps=9", run=forked.run)
    assert (done.returncode, done.stderr) == (0, "")
    assert state(home) == before


@pytest.mark.long
def test_a_model_of_the_user_s_own_may_draw(home):
    (home / "mine.py").write_text(
        "import keras\nimport matplotlib.figure\n\n"
        "def build(image_shape, num_classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten()]\n"
        "    return keras.Sequential([*layers, keras.layers.Dense(num_classes)])\n"
    )
    done = dry_run(home, "--dataset=shapes", "--model=mine:build")
    assert done.returncode == 0, done.stderr  # Matplotlib says there that it looks for fonts
