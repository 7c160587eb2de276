"""Faults done for real: processes that are killed, files that are torn, disks that are full.

After each of them the same command ends with the weights of a run that nothing happened to.
docs/reliability.md has the figures.
"""

import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scripts

from input_pipeline import datasets
from towers.runs import checkpoints, run_folder

SIX_STEPS = (
    "--max_steps=6",
    "--checkpoint_every_steps=2",
    "--momentum=0.9",
    "--summary_every_steps=3",
)
ENDLESS = ("--max_steps=50000", "--checkpoint_every_steps=5")
ONE_AT_THE_END = (*ENDLESS, "--checkpoint_every_steps=50000")


@pytest.fixture
def stopped(run_of, tmp_path) -> Path:
    """A run that was stopped after four of its six steps; a copy, to be damaged."""
    return Path(shutil.copytree(run_of(*SIX_STEPS, "--max_steps=4"), tmp_path / "run"))


def refused(done) -> str:
    """The line of a start that ended in an error."""
    assert done.returncode == 1
    return done.stderr


@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_runs")
def test_killed_at_any_moment_a_run_ends_as_if_it_had_not_been(tmp_path):
    """Ten times; `make test` has kills at certain steps, in test_run.py."""
    flags = (
        "--recipe=shapes", "--global_batch_size=100", "--microbatch_size=50", "--max_steps=500",
        "--train_epochs=10", "--eval_every_epochs=1", "--log_every_steps=1",
        "--checkpoint_every_steps=10", "--checkpoints_to_keep=3",
    )  # fmt: skip
    folder, alone, draw = tmp_path / "killed", tmp_path / "alone", random.Random(0)
    killed = 0
    for _ in range(10):
        before = max(checkpoints.by_step(folder / "checkpoints"), default=0)
        process = scripts.start("train", *flags, f"--train_dir={folder}")
        time.sleep(draw.uniform(0, 8))
        process.kill()
        message, _ = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0)
        killed += process.returncode != 0
        if (folder / "metrics.jsonl").exists():
            saved = max(checkpoints.by_step(folder / "checkpoints"), default=0)
            lines = run_folder.read_lines(folder / "metrics.jsonl")
            assert max((line["step"] for line in lines), default=0) <= saved + 10
        if continued := re.search(r"^continuing at step (\d+)$", message, re.M):
            assert int(continued[1]) == before
    assert killed >= 5
    for run in (folder, alone):
        assert scripts.start("train", *flags, f"--train_dir={run}").wait() == 0
    scripts.assert_same_run(folder, alone)
    assert scripts.evaluation_lines(folder) == scripts.evaluation_lines(alone)
    assert scripts.checkpoint_steps(folder) == [480, 490, 500]


class TestTornFiles:
    def test_a_damaged_checkpoint_is_said_and_the_run_goes_on_without_it(self, stopped, run_of):
        data = stopped / "checkpoints/step-4/state.data-00000-of-00001"
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        before = scripts.contents(stopped)
        line = refused(scripts.train(stopped, *SIX_STEPS))
        assert f"checkpoint {stopped}/checkpoints/step-4 cannot be restored: " in line
        assert scripts.contents(stopped) == before
        shutil.rmtree(data.parent)
        scripts.trained(stopped, *SIX_STEPS)
        untouched = run_of(*SIX_STEPS)
        scripts.assert_same_run(stopped, untouched)
        assert scripts.evaluation_lines(stopped) == scripts.evaluation_lines(untouched)

    def test_a_checkpoint_of_another_run_is_not_continued_nor_evaluated(self, stopped, tmp_path):
        scripts.trained(tmp_path / "other", *SIX_STEPS, "--seed=1")
        other = tmp_path / "other" / "checkpoints" / "step-6"
        shutil.copytree(other, stopped / "checkpoints" / "step-6")
        assert "step-6 belongs to another run" in refused(scripts.train(stopped, *SIX_STEPS))
        done = scripts.run("eval", f"--train_dir={stopped}", f"--checkpoint={other}")
        assert "step-6 belongs to another run" in refused(done)
        assert not (stopped / "eval.jsonl").exists()

    @pytest.mark.long
    def test_checkpoints_that_are_gone_are_missed(self, stopped):
        """They were whole: the run does not start over, and nothing is cut."""
        (stopped / "final_model.json").unlink()
        shutil.rmtree(stopped / "checkpoints")
        (stopped / "checkpoints").symlink_to(stopped / "nowhere")
        before = scripts.contents(stopped)
        line = refused(scripts.train(stopped, *SIX_STEPS))
        assert "has saved checkpoints, the first at step 2, but " in line
        assert scripts.contents(stopped) == before

    def test_eval_whose_checkpoint_is_deleted_under_it_takes_the_next(self, stopped, monkeypatch):
        """As by a training that goes on: step 4 goes when eval.py has chosen it, step 6 comes."""
        original, restored = checkpoints.read_weights, []

        def read(path):
            restored.append(Path(path).name)
            if len(restored) == 1:
                scripts.trained(stopped, *SIX_STEPS, "--checkpoints_to_keep=1")
            return original(path)

        monkeypatch.setattr(checkpoints, "read_weights", read)
        done = scripts.run("eval", f"--train_dir={stopped}")
        assert (done.returncode, done.stderr) == (0, "")
        assert restored == ["step-4", "step-6"]
        assert [line["step"] for line in scripts.lines_of(stopped / "eval.jsonl")] == [6]


@pytest.mark.whole_program
def test_a_second_is_refused_and_a_folder_that_is_moved_away_is_not_made_again(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    process = scripts.start("train", *scripts.small_run(folder), *ENDLESS)
    scripts.wait_for_line(process, "step 6/")
    config = (folder / "config.json").read_bytes()
    assert f"--train_dir={folder}: " in refused(scripts.train(folder, *ENDLESS))
    assert (folder / "config.json").read_bytes() == config
    # An evaluation is no training, and comes and goes.
    assert scripts.run("eval", f"--train_dir={folder}").returncode == 0
    scripts.wait_for_line(process, "step ")  # the first goes on
    shutil.move(folder, elsewhere)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.startswith("train.py: error: ") and str(folder) in stderr
    assert stderr.count("\n") == 1
    assert not (folder / "metrics.jsonl").exists()  # at most a checkpoint that was under way
    newest = max(checkpoints.by_step(elsewhere / "checkpoints"))
    done = scripts.trained(elsewhere, *ENDLESS, f"--max_steps={newest + 1}")
    assert f"\ncontinuing at step {newest}\n" in done.stdout


def test_one_that_began_while_another_read_its_data_is_found_out(tmp_path, monkeypatch):
    """Both find an empty folder; the settings are looked at again under the lock."""
    original = datasets.load

    def load(*arguments, **options):
        monkeypatch.setattr(datasets, "load", original)
        scripts.trained(tmp_path / "run", "--seed=1")
        return original(*arguments, **options)

    monkeypatch.setattr(datasets, "load", load)
    line = refused(scripts.train(tmp_path / "run", "--seed=2"))
    assert "--seed=2 (the run has 1)" in line
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["seed"] == 1


def test_a_folder_that_is_read_only_is_refused_and_left_as_it_is(stopped, request):
    """Nobody can write to it, root included; else the test is skipped."""
    if os.geteuid():
        stopped.chmod(0o555)
    elif subprocess.run(["mount", "--bind", stopped, stopped]).returncode:
        pytest.skip("needs the right to mount")
    else:
        unmount = ["umount", "--lazy", stopped]
        request.addfinalizer(lambda: subprocess.run(unmount, check=True))
        subprocess.run(["mount", "-o", "remount,bind,ro", stopped], check=True)
    before = scripts.contents(stopped)
    line = refused(scripts.train(stopped, *SIX_STEPS))
    assert f"--train_dir={stopped}: cannot be written: " in line
    assert "cannot be written" in refused(scripts.run("eval", f"--train_dir={stopped}"))
    assert scripts.contents(stopped) == before


@pytest.mark.whole_program
def test_a_reader_that_goes_ends_the_run_without_a_word(tmp_path):
    """As in `train.py | head`; with a checkpoint."""
    folder = tmp_path / "run"
    process = scripts.start("train", *scripts.small_run(folder), *ONE_AT_THE_END)
    scripts.wait_for_line(process, "step 6/")
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
    [step] = scripts.checkpoint_steps(folder)
    assert step == scripts.training_lines(folder)[-1]["step"] > 5


@pytest.mark.whole_program
@pytest.mark.long
def test_a_terminal_that_is_closed_ends_the_run_with_a_checkpoint(tmp_path):
    """SIGHUP comes, and from then on whatever is printed is an error."""
    folder = tmp_path / "run"
    process, terminal = pty.fork()
    if process == 0:
        call = [sys.executable, str(scripts.ROOT / "train.py"), *scripts.small_run(folder)]
        os.execv(sys.executable, [*call, *ONE_AT_THE_END])
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:  # the first step
        time.sleep(0.05)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (129, 141)  # whichever was noticed first
    [step] = scripts.checkpoint_steps(folder)
    assert step == scripts.training_lines(folder)[-1]["step"]
