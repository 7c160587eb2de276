"""Faults of the disk, one file operation after the other: under_file_faults.py has the tests.

They run in a process of their own, whose file operations go through a library compiled here. With
FILE_FAULTS_ALL=1 in the environment every operation of a training fails in its turn, for every
reason, which takes hours; without it some of them do.
"""

import os
import subprocess
import sys

import file_faults
import pytest
import scripts

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return file_faults.build(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("chosen", ["TestAWholeTraining", "TestCheckpoints"])
def test_what_a_run_writes_and_reads(library, chosen):
    """A whole training, of which some operations fail; of a checkpoint all do."""
    environment = file_faults.environment(library) | {"PYTEST_ADDOPTS": ""}
    tests = scripts.ROOT / "tests" / "helpers" / "under_file_faults.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tests],
        env=os.environ | environment, cwd=scripts.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
