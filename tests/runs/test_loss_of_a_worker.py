"""The chief saves the last complete step where another worker is gone: nothing else is lost.

Whole processes that are killed are in tests/towers_cli/test_workers_command.py.
"""

import itertools
import os
import signal

import numpy as np
import pytest
import scripts

from towers import trainer, worker
from towers.runs import loop
from towers.support import worker_errors

GONE = worker_errors.GoneError("worker 1 (b:2) died without an error message")
FLAGS = (
    "--max_steps=6", "--checkpoint_every_steps=2", "--verify_every_steps=1", "--eval_every_epochs=0"
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def lost_at(monkeypatch):
    """Lets a step, or what comes after it, fail as if another worker were gone."""

    def lose(step: int, error=GONE):
        original = trainer.Trainer.train_step

        def train_step(self, *arguments, **options):
            if int(self.state.step) == step - 1:
                raise error
            return original(self, *arguments, **options)

        monkeypatch.setattr(trainer.Trainer, "train_step", train_step)

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
def test_a_hash_that_could_not_be_compared_is_written_when_the_run_goes_on(
    tmp_path, monkeypatch, whole
):
    folder = tmp_path / "run"
    original = worker.SingleWorker.exchange

    def exchange(self, what, message):
        if message == second:
            raise GONE
        return original(self, what, message)

    second = scripts.hash_lines(whole)[2]["parts_sha256"]
    with monkeypatch.context() as patch:
        patch.setattr(worker.SingleWorker, "exchange", exchange)
        assert train(folder).returncode == 138
    assert [line["step"] for line in scripts.hash_lines(folder)] == [0, 1]
    assert scripts.checkpoint_steps(folder) == [2]
    assert train(folder).returncode == 0
    assert scripts.hash_lines(folder) == scripts.hash_lines(whole)


def test_so_is_that_of_the_last_step(tmp_path, monkeypatch, whole):
    folder = tmp_path / "run"
    original = worker.SingleWorker.exchange

    def exchange(self, what, message):
        if message == last:
            raise GONE
        return original(self, what, message)

    last = scripts.hash_lines(whole)[-1]["parts_sha256"]
    with monkeypatch.context() as patch:
        patch.setattr(worker.SingleWorker, "exchange", exchange)
        assert train(folder).returncode == 138
    assert scripts.checkpoint_steps(folder)[-1] == 6
    assert scripts.hash_lines(folder) == scripts.hash_lines(whole)[:-1]
    assert train(folder).returncode == 0
    assert scripts.hash_lines(folder) == scripts.hash_lines(whole)


@pytest.mark.parametrize(
    ("of", "method"),
    [
        (loop.Loop, "_write_checkpoint"),
        (worker.SingleWorker, "survivors"),  # takes three seconds, with several workers
        (loop.Loop, "_described"),
    ],
)
def test_a_signal_does_not_cut_the_saving_short(tmp_path, lost_at, monkeypatch, of, method):
    """A launcher sends SIGTERM that has waited long enough, or that has one more worker."""
    folder = tmp_path / "run"
    lost_at(4)
    original, times = getattr(of, method), itertools.count()

    def signalled(self, *arguments):
        if method != "_write_checkpoint" or next(times) == 1:  # the one at step 2 is any other
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    monkeypatch.setattr(of, method, signalled)
    assert train(folder).returncode == 138
    assert scripts.checkpoint_steps(folder) == [2, 3]


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
    assert done.stderr == f"train.py: error: {GONE}. There is no checkpoint yet.\n"


def test_an_error_that_will_not_go_away_saves_nothing(tmp_path, lost_at):
    lost_at(4, worker_errors.WorkerError("worker 1 has ended: it has other images"))
    done = train(tmp_path / "run")
    assert done.returncode == 1
    assert scripts.checkpoint_steps(tmp_path / "run") == [2]


@pytest.mark.parametrize(
    ("said", "is_saved"),
    [
        ([3, {"weights": "0" * 64}], False),  # the same step, and other weights
        ([2, {"weights": "0" * 64}], True),  # it had not come as far
        (None, True),
        ("nonsense", True),
    ],
)
def test_survivors_that_have_other_weights_are_named(
    tmp_path, lost_at, monkeypatch, said, is_saved
):
    folder = tmp_path / "run"
    lost_at(4)
    monkeypatch.setattr(worker.SingleWorker, "survivors", lambda self, reason: {2: said})
    done = train(folder)
    assert done.returncode == 138
    problem = " Step 3 is not saved: worker 2 and worker 0 have different weights."
    assert (problem in done.stderr) == (not is_saved)
    assert scripts.checkpoint_steps(folder) == ([2, 3] if is_saved else [2])


def test_what_is_not_finite_is_not_saved(tmp_path, lost_at, monkeypatch):
    folder = tmp_path / "run"
    lost_at(4)

    def survivors(self, reason):
        np.isfinite = lambda values: np.zeros(np.shape(values), bool)
        return {}

    monkeypatch.setattr(np, "isfinite", np.isfinite)  # put back afterwards
    monkeypatch.setattr(worker.SingleWorker, "survivors", survivors)
    done = train(folder)
    assert done.returncode == 138
    assert " Step 3 is not saved: step 3: the update has left NaN or Inf in " in done.stderr
    assert scripts.checkpoint_steps(folder) == [2]
