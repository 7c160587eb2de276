"""Faults of the disk, one file operation after the other: under_file_faults.py has the tests.

They run in a process of their own, whose file operations go through a library compiled here.
"""

import os
import subprocess
import sys

import file_faults
import pytest
import scripts

PASSED = 0
TRAINING = (
    "--recipe=shapes",
    "--max_steps=4",
    "--checkpoint_every_steps=2",
    "--summary_every_steps=0",
    "--log_every_steps=1",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return file_faults.build(tmp_path_factory.mktemp("library"))


def run_under_faults(library, cache_home, chosen: str, every: bool, minutes: int) -> None:
    """Runs the tests that pytest's -k chooses; all have to pass."""
    environment = file_faults.environment(library) | {
        "FILE_FAULTS_ALL": str(int(every)),
        "XDG_CACHE_HOME": str(cache_home),
        "PYTEST_ADDOPTS": "",
    }
    tests = scripts.ROOT / "tests" / "helpers" / "under_file_faults.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tests],
        env=os.environ | environment,
        cwd=scripts.ROOT,
        capture_output=True,
        text=True,
        timeout=60 * minutes,
    )
    assert done.returncode == PASSED, done.stdout + done.stderr


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.long
def test_what_a_run_writes_and_reads(library, cache_home, every):
    """Lines, checkpoints, TensorBoard's files, the lock: each operation, by some faults or all."""
    run_under_faults(library, cache_home, "not TestAWholeTraining", every, minutes=10)


@pytest.mark.parametrize(
    ("every", "minutes"),
    [pytest.param(*of, marks=pytest.mark.long) for of in ((False, 10), (True, 180))],
)
def test_a_whole_training(library, cache_home, every, minutes):
    """Of about 140 operations each, or one for each kind of fault."""
    run_under_faults(library, cache_home, "TestAWholeTraining", every, minutes)


@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.parametrize("operation", [8, 45, 80, 105])
def test_a_process_that_is_killed_at_an_operation(library, cache_home, tmp_path, operation):
    """As a stop in one process is taken to be, in the tests above: the same, of a real kill."""
    killed, alone = tmp_path / "killed", tmp_path / "alone"

    def train(folder, faults):
        return subprocess.run(
            [sys.executable, scripts.ROOT / "train.py", *TRAINING, f"--train_dir={folder}"],
            env=os.environ | {"XDG_CACHE_HOME": str(cache_home)} | faults,
            capture_output=True,
            text=True,
            timeout=300,
        )

    faults = file_faults.environment(library) | file_faults.killed_at(killed, operation)
    assert train(killed, faults).returncode == -9
    assert not (killed / "final_model.json").exists()
    for folder in (killed, alone):
        done = train(folder, {})
        assert (done.returncode, done.stderr) == (0, "")
    scripts.assert_same_run(killed, alone)
