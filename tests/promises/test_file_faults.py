"""Faults of the disk, one file operation after the other, over a whole training.

A process trains whose file operations go through `file_faults.c`, compiled here; this file is its
program, too. One of its operations fails, and it looks at what that leaves behind; then the next.
It takes every twentieth operation, or with FILE_FAULTS_STRIDE=1 in the environment every one, which
takes an hour.
"""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import scripts

pytestmark = pytest.mark.long

FOUR_STEPS = (
    "--max_steps=4",
    "--checkpoint_every_steps=2",
    "--checkpoints_to_keep=1",
    "--summary_every_steps=3",
    "--momentum=0.9",
)
STRIDE = int(os.environ.get("FILE_FAULTS_STRIDE", 20))


# What becomes of the chosen operation.
FAIL_ONCE = 1  # with an error; the next ones succeed
FAIL_FROM_HERE = 2  # and so do all later ones, as on a full disk
STOP = 3  # nothing reaches the disk from here on, as where the process is killed
TEAR = 4  # half of what it writes does, and then nothing

WAYS = {  # and whether opening and reading a file count, beside what changes one
    "killed": (STOP, errno.EIO, False),
    "torn": (TEAR, errno.EIO, False),
    "network disk": (FAIL_ONCE, errno.ESTALE, False),
    "full disk": (FAIL_FROM_HERE, errno.ENOSPC, False),
    "read error": (FAIL_ONCE, errno.EIO, True),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Where there is no C compiler, the test is skipped."""
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        pytest.skip(f"needs a C compiler, and there is no {compiler}")
    made = tmp_path_factory.mktemp("library") / "file_faults.so"
    source = scripts.ROOT / "tests" / "helpers" / "file_faults.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", made, source, "-ldl", "-pthread"], check=True)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_a_training_ends_as_if_nothing_had_happened(library, tmp_path, way):
    """It says in one line what it could not do; the same command then comes to the same end."""
    path = os.pathsep.join([str(scripts.ROOT), str(scripts.ROOT / "tests" / "helpers")])
    done = subprocess.run(
        [sys.executable, __file__, way, tmp_path],
        env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 100 // STRIDE, "hardly anything failed"


def try_operations(way: str, place: Path) -> int:
    """Lets one after the other fail; how many did."""
    how, error, reads = WAYS[way]
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    disk.faults_what_failed.restype = ctypes.c_char_p
    scripts.trained(place / "untouched", *FOUR_STEPS)
    for count, operation in enumerate(range(1, 10_000, STRIDE)):
        folder = place / f"run{operation}"
        disk.faults_arm(str(folder).encode(), ctypes.c_long(operation), how, error, reads)
        done = scripts.train(folder, *FOUR_STEPS)
        disk.faults_arm(b"", ctypes.c_long(0), 0, 0, 0)
        failed = disk.faults_what_failed().decode()
        if not failed:
            return count
        print(operation, failed, flush=True)
        if way == "full disk" and done.returncode:
            assert "No space left on device" in done.stderr and str(folder) in done.stderr
        if done.returncode or done.stderr:  # one line says what did not go well
            assert done.returncode == 1 and "[Errno" not in done.stderr  # it is a sentence of ours
        scripts.trained(folder, *FOUR_STEPS)
        scripts.assert_same_run(folder, place / "untouched")
        # More where the disk did not let the older one be removed, and no other was saved.
        assert scripts.checkpoint_steps(folder) in ([4], [2, 4])
        left = [*folder.rglob("*partial*"), *folder.rglob("*temp*"), *folder.rglob("*tmp*")]
        if not failed.startswith(("unlink", "rmdir", "remove")):
            assert {path.name for path in left} <= {"step-2.partial"}
        shutil.rmtree(folder)
        scripts.let_graphs_go()
    raise AssertionError("a training makes no end of operations")


if __name__ == "__main__":
    print(try_operations(sys.argv[1], Path(sys.argv[2])))
