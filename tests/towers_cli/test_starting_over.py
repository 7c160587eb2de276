"""A run that met NaN or lost its checkpoints: what it says, and how it starts over."""

import shutil

import pytest
import scripts

pytestmark = pytest.mark.usefixtures("cache")

MOMENTUM = ("--momentum=0.9", "--summary_every_steps=0")
FLAGS = (*MOMENTUM, "--checkpoint_every_steps=2", "--moving_average_decay=0.9")


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    """A run with checkpoints at steps 2 and 4."""
    folder = tmp_path_factory.mktemp("begin") / "four"
    scripts.trained(folder, *FLAGS)
    return folder


@pytest.mark.long
def test_an_attempt_without_a_checkpoint_leaves_nothing_in_the_run_that_starts_over(tmp_path):
    verify = ("--verify_every_steps=1", "--summary_every_steps=0")
    failed = scripts.train(tmp_path / "run", *verify, "--learning_rate=1e20")
    assert failed.returncode == 1
    events = list((tmp_path / "run" / "train").iterdir())
    scripts.trained(tmp_path / "run", *verify, "--seed=1")
    assert not any(path.exists() for path in events)
    scripts.trained(tmp_path / "fresh", *verify, "--seed=1")
    ours, fresh = scripts.hash_lines(tmp_path / "run"), scripts.hash_lines(tmp_path / "fresh")
    assert ours == fresh


class TestTheFirstCheckpoint:
    @pytest.mark.long
    def test_that_was_whole_is_missed_where_it_is_gone(self, tmp_path):
        """Stopped before the first regular one, then without its checkpoints: nothing is cut."""
        scripts.trained(tmp_path, *MOMENTUM, "--max_steps=3")
        for lost in ("final_model.json", "final_model.keras"):
            (tmp_path / lost).unlink()
        shutil.rmtree(tmp_path / "checkpoints")
        (tmp_path / "checkpoints").symlink_to(tmp_path / "nowhere")
        before = (tmp_path / "metrics.jsonl").read_bytes()
        done = scripts.train(tmp_path, *MOMENTUM)
        assert done.returncode == 1
        assert "holds a run that has saved checkpoints, the first at step 3, but " in done.stderr
        assert (tmp_path / "metrics.jsonl").read_bytes() == before


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
