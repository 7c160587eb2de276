"""The chief saves the last complete step where another worker is gone: nothing else is lost.

Whole processes that are killed are in tests/towers_cli/test_workers_command.py.
"""

import itertools

import pytest
import scripts

from towers import distribution, worker_errors

GONE = worker_errors.GoneError("worker 1 (b:2) died without an error message")
FLAGS = (
    "--max_steps=6", "--checkpoint_every_steps=2", "--verify_every_steps=1", "--eval_every_epochs=0"
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def lost_at(monkeypatch):
    """Lets a step, or what comes after it, fail as if another worker were gone."""

    def lose(step: int, error=GONE):
        original, steps = distribution.Distribution.train_step, itertools.count(1)

        def train_step(self, batch):
            if next(steps) == step:
                raise error
            return original(self, batch)

        monkeypatch.setattr(distribution.Distribution, "train_step", train_step)

    yield lose
    monkeypatch.undo()


def train(folder, *flags):
    return scripts.train(folder, *FLAGS, *flags)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(folder).returncode == 0
    return folder


def test_the_step_before_is_saved_and_the_run_is_as_if_nothing_had_been(
    tmp_path, lost_at, monkeypatch, whole
):
    folder = tmp_path / "run"
    lost_at(4)
    done = train(folder)
    newest = f"{folder}/checkpoints/step-3"
    assert done.returncode == 138
    assert done.stderr == f"train.py: error: {GONE}. The newest checkpoint is {newest}.\n"
    assert scripts.checkpoint_steps(folder) == [2, 3]
    monkeypatch.undo()
    again = train(folder)
    assert (again.returncode, again.stderr) == (0, "")
    assert "continuing at step 3" in again.stdout
    assert scripts.hash_lines(folder) == scripts.hash_lines(whole)
    assert scripts.final_summary(folder) == scripts.final_summary(whole)


@pytest.mark.long
def test_a_step_that_is_saved_already_stays_as_it_is(tmp_path, lost_at, monkeypatch, whole):
    folder = tmp_path / "run"
    lost_at(3)
    done = train(folder)
    assert done.returncode == 138
    assert done.stderr.endswith(f"The newest checkpoint is {folder}/checkpoints/step-2.\n")
    monkeypatch.undo()
    assert train(folder).returncode == 0
    assert scripts.hash_lines(folder) == scripts.hash_lines(whole)


def test_nothing_is_saved_before_the_first_step(tmp_path, lost_at):
    lost_at(1)
    done = train(tmp_path / "run")
    assert done.returncode == 138
    assert str(GONE) in done.stderr
    assert scripts.checkpoint_steps(tmp_path / "run") == []


def test_an_error_that_will_not_go_away_saves_nothing(tmp_path, lost_at):
    lost_at(4, worker_errors.WorkerError("worker 1 has ended: it has other images"))
    done = train(tmp_path / "run")
    assert done.returncode == 1
    assert scripts.checkpoint_steps(tmp_path / "run") == [2]
