"""`train.py --dry_run` writes nothing, wherever a run or its data would."""

import os
from pathlib import Path

import pytest
import scripts

pytestmark = pytest.mark.whole_program


@pytest.fixture
def home(tmp_path) -> Path:
    """A home folder as new; what the tests compare is all below it."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def dry_run(command, home: Path, *flags: str) -> str:
    """As a user whose home folder it is; the run's folder would be there, too."""
    kept = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": ""}
    # What the libraries write when they are first imported is theirs.
    places |= {name: str(home.parent / name) for name in ("KERAS_HOME", "MPLCONFIGDIR")}
    done = command("train.py", "--dry_run", *flags, env=kept | places, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def state(folder: Path) -> dict[str, tuple]:
    """Every file and folder below `folder`: bytes, and when it was last written to."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


def test_on_a_drawn_set_leaves_a_new_home_folder_empty(command, home):
    before = state(home)
    said = dry_run(command, home, "--recipe=shapes")
    assert "5,000 train, 1,000 test" in said and "rate of the next update" in said
    assert state(home) == before


@pytest.mark.long
def test_on_a_run_that_would_go_on_changes_nothing_of_it(forked_command, home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    scripts.trained(home / "run", "--max_steps=2")
    before = state(home)
    dry_run(forked_command, home, *scripts.small_run(home / "run"), "--max_steps=9")
    assert state(home) == before
