"""`train.py --dry_run` writes nothing, wherever a run or its data would."""

import os

import pytest
import scripts


@pytest.mark.whole_program
def test_on_a_drawn_set_leaves_a_new_home_folder_empty(command, tmp_path):
    """As a user whose home folder it is; the run's folder would be there, too."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if k != "TFDS_DATA_DIR"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "XDG_CONFIG_HOME": ""}
    # What the libraries write when they are first imported is theirs.
    places |= {name: str(tmp_path / name) for name in ("KERAS_HOME", "MPLCONFIGDIR")}
    done = command("train.py", "--dry_run", "--recipe=shapes", env=kept | places, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5,000 train, 1,000 test" in done.stdout and "cosine, 0.02 to 0 at" in done.stdout
    assert not list(home.iterdir())


def test_on_a_run_that_would_go_on_changes_nothing_of_it(tmp_path):
    scripts.trained(tmp_path, "--max_steps=2")
    before = scripts.contents(tmp_path)
    scripts.trained(tmp_path, "--max_steps=9", "--dry_run")
    assert scripts.contents(tmp_path) == before
