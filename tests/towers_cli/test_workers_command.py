"""train.py as several processes: one run folder, the bits of one process, and no worker left.

How workers end in general is in tests/multi_worker/test_ends.py.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import photos
import pytest
import scripts

from towers_cli import launch

STOPS_WITHIN_SECONDS = 25
DEATHS = int(os.environ.get("TOWERS_TEST_DEATHS", 5))

FLAGS = (  # 40 steps in four microbatches
    "--global_batch_size=32", "--microbatch_size=8", "--momentum=0.9", "--log_every_steps=5",
    "--checkpoint_every_steps=10", "--verify_every_steps=20", "--max_steps=40",
)  # fmt: skip


def start(workers, index: int, folder, *more: str):
    """Starts train.py as a worker of `several`."""
    script = scripts.ROOT / "train.py"
    return workers.start(index, script, *scripts.small_run(folder), *FLAGS, *more)


@pytest.mark.whole_program
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.long)])
def test_killed_stopped_and_continued_by_other_numbers_of_workers(tmp_path, run_of, several, kills):
    folder, elsewhere = tmp_path / "run", tmp_path / "nothing"
    saved = 0
    if kills:
        scripts.trained(folder, *FLAGS, "--max_steps=10")
        two = several()
        chief = start(two, 0, folder)
        time.sleep(1)  # a worker that starts late is waited for
        other = start(two, 1, elsewhere)
        assert scripts.wait_for_line(chief, "continuing at step 10")
        scripts.wait_for_line(chief, "step 15/40")
        other.kill()
        two.begin()
        code, message = two.ended(0)
        saved = scripts.checkpoint_steps(folder)[-1]
        assert code == 138 and message.startswith(f"{two.name(1)} died")
        assert saved >= 15  # nothing is lost but the step under way
        assert two.seconds() < STOPS_WITHIN_SECONDS

    again = several()
    chief, other = start(again, 0, folder), start(again, 1, elsewhere)
    assert not saved or scripts.wait_for_line(chief, f"continuing at step {saved}")
    scripts.wait_for_line(chief, "step 20/40")
    other.send_signal(signal.SIGTERM)  # one worker is asked, and all stop after the same step
    stopped = scripts.wait_for_line(chief, "stopped at step")
    assert [again.ended(index) for index in range(2)] == [(143, "")] * 2
    assert f" {scripts.checkpoint_steps(folder)[-1]}," in stopped

    scripts.trained(folder, *FLAGS)
    alone = run_of(*FLAGS)
    scripts.assert_same_run(folder, alone)
    hashes = [line for line in scripts.hash_lines(folder) if line["step"] != 10]  # a run's end
    assert hashes == scripts.hash_lines(alone)
    assert not elsewhere.exists()  # the chief alone writes


@pytest.mark.whole_program
@pytest.mark.long
def test_random_deaths_under_the_launcher_do_not_show(tmp_path):
    """Three workers, killed while they start and train; docs/workers.md has more deaths."""
    more = "--max_steps=120", "--checkpoint_every_steps=20", "--log_every_steps=1"
    alone, folder = tmp_path / "alone", tmp_path / "run"
    scripts.trained(alone, *FLAGS, *more)
    call = [sys.executable, "-m", "towers_cli.launch", "--workers=3", f"--restarts={DEATHS}", "--"]
    process = subprocess.Popen(
        [*call, scripts.lighter_train(tmp_path), *scripts.small_run(folder), *FLAGS, *more],
        stdout=subprocess.PIPE, text=True, cwd=scripts.ROOT,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    drawn, deaths, is_due = random.Random(58), 0, False
    for line in process.stdout:
        if deaths == DEATHS or not line.startswith(("[0] step", "[launcher]")):
            continue
        if line.startswith("[launcher]"):
            is_due = drawn.random() < 0.3
            time.sleep(drawn.uniform(1, 8) if is_due else 0)  # while they start
        if (is_due or drawn.random() < 0.2) and (pids := children.read_text().split()):
            os.kill(int(drawn.choice(pids)), signal.SIGKILL)
            deaths, is_due = deaths + 1, False
    assert (process.wait(timeout=60), deaths) == (0, DEATHS)
    scripts.assert_same_run(folder, alone)


@pytest.mark.whole_program
def test_a_worker_with_other_settings_is_refused_by_name(tmp_path, several):
    folder, two = tmp_path / "run", several()
    start(two, 0, folder)
    start(two, 1, folder, "--seed=1", "--max_steps=30")
    for index in range(2):
        code, message = two.ended(index)
        assert code == 1 and message.startswith(two.name(1))
        for name in ("--seed=1 ", "--max_steps=30 ", two.name(0)):
            assert name in message
    assert not folder.exists()


@pytest.mark.whole_program
@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=pytest.mark.long)])
def test_a_worker_with_other_images_is_refused_by_name(tmp_path, several, split):
    two = several()
    for index, name in enumerate(("here", "there")):
        photos.folder(tmp_path / name, 20, splits=("train", "test"))
        if index:
            (tmp_path / name / split / "ant" / "000.jpg").unlink()
        data = "--dataset=folder", f"--data_dir={tmp_path / name}", "--image_size=32"
        start(two, index, tmp_path / "run", *data)
    for index in range(2):
        code, message = two.ended(index)
        assert code == 1 and f"{two.name(1)} differs from {two.name(0)}" in message
        assert message.count("sha256") == 1
    assert not (tmp_path / "run").exists()


def test_a_wrong_tf_config_is_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", launch.tf_config(["a:1", "a:1"], 0))
    done = scripts.train(tmp_path / "run")
    assert done.returncode == 2 and "error: TF_CONFIG: " in done.stderr
    assert not (tmp_path / "run").exists()
