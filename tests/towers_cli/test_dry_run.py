"""`train.py --dry_run` writes nothing, wherever a run, its data or its libraries would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import scripts
import tiny_photos

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
    kept = {k: v for k, v in os.environ.items() if k not in ("KERAS_HOME", "TFDS_DATA_DIR")}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": ""}
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
def test_on_a_run_that_would_go_on_changes_nothing_of_it(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scripts.trained(home / "run", "--max_steps=2")
    shutil.copytree(tmp_path / "cache", home / ".cache")
    before = state(home)
    done = dry_run(home, *scripts.small_run(home / "run"), "--max_steps=9", run=forked.run)
    assert (done.returncode, done.stderr) == (0, "")
    assert state(home) == before
