"""What test_file_faults.py runs in a process whose file operations can fail.

Each test lets one operation after the other fail, and looks each time at what that leaves behind.
"""

import errno
import os
import re
import shutil
from pathlib import Path

import file_faults
import keras
import pytest
import scripts
import shared
import tensorflow as tf
from file_faults import Fault

from towers.runs import checkpoints, run_folder
from towers.runs import run as towers_run

FOUR_STEPS = (
    "--max_steps=4",
    "--checkpoint_every_steps=2",
    "--checkpoints_to_keep=1",
    "--summary_every_steps=3",
    "--momentum=0.9",
)
# A disk that fails, is full, is another machine's, or has a quota.
ERRORS = [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT, errno.EDQUOT]
# Whether each operation of a whole training fails in its turn, and for every reason, or some.
ALL = os.environ.get("FILE_FAULTS_ALL") == "1"


@pytest.fixture(scope="session")
def disk() -> file_faults.Disk:
    return file_faults.Disk()


def each_operation(run) -> None:
    """Calls `run(operation)` with one after the other, until it says that there was none."""
    operation = 1
    while run(operation):
        operation += 1
    assert operation > 1, "nothing failed"


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched") / "run"
    scripts.trained(folder, *FOUR_STEPS)
    return folder


class TestAWholeTraining:
    @pytest.mark.parametrize(
        ("how", "error", "reads", "sample"),
        [
            (Fault.STOP, errno.EIO, False, 45),
            (Fault.TEAR, errno.EIO, False, 80),
            (Fault.FAIL_ONCE, errno.ESTALE, False, 95),
            (Fault.FAIL_FROM_HERE, errno.ENOSPC, False, 60),
            (Fault.FAIL_ONCE, errno.EIO, True, 35),
        ],
    )
    def test_ends_as_if_nothing_had_happened(
        self, disk, untouched, tmp_path, how, error, reads, sample
    ):
        """It says in one line what it could not do; the same command then comes to the same end."""

        def run(operation):
            folder = tmp_path / f"run{operation}"
            with disk.fault(folder, operation, how, error, reads=reads):
                done = scripts.train(folder, *FOUR_STEPS)
            if not disk.failed:
                return False
            again = scripts.train(folder, *FOUR_STEPS)
            said = f"{disk.failed}\n{done.stderr}{again.stderr}"
            check_said(done, said)
            assert (again.returncode, again.stderr) == (0, ""), said
            scripts.assert_same_run(folder, untouched)
            # More where the disk did not let the older one be removed, and no other was saved.
            assert scripts.checkpoint_steps(folder) in ([4], [2, 4])
            left = [*folder.rglob("*partial*"), *folder.rglob("*temp*"), *folder.rglob("*tmp*")]
            assert {path.name for path in left} <= {"step-2.partial"}
            shutil.rmtree(folder)
            shared.let_graphs_go()
            return True

        if ALL:
            each_operation(run)
        else:
            assert run(sample)


def check_said(done, said: str) -> None:
    """Either all went well, or one line says what did not."""
    if done.returncode == 0:
        assert done.stderr == "", said
        return
    assert done.returncode == 1, said
    assert re.fullmatch(r"train\.py: error: .+\n", done.stderr), said
    assert "[Errno" not in done.stderr, said  # it is a sentence of ours


WAYS = [
    *[(how, errno.EIO) for how in (Fault.STOP, Fault.TEAR)],
    *[(Fault.FAIL_ONCE, error) for error in (ERRORS if ALL else ERRORS[:1])],
    *[(Fault.FAIL_FROM_HERE, error) for error in (ERRORS if ALL else ERRORS[1:2])],
]
each_way = pytest.mark.parametrize(
    ("how", "error"), WAYS, ids=[f"{how.name}-{errno.errorcode[error]}" for how, error in WAYS]
)


def succeeds(disk, folder: Path, operation: int, how: Fault, error: int, write) -> bool:
    """Whether `write()` says that it has written, under a fault."""
    with disk.fault(folder, operation, how, error):
        try:
            write()
        except (run_folder.RunFolderError, checkpoints.CheckpointError) as said:
            assert "cannot be written: " in str(said) and "[Errno" not in str(said), disk.failed
            return False
    return True


@each_way
class TestCheckpoints:
    def test_the_newest_that_was_saved_comes_back(self, disk, tmp_path, how, error):
        state = toys_state()

        def run(operation):
            folder = tmp_path / f"checkpoints{operation}"
            saver = checkpoints.Checkpoints(state, folder, keep=2)
            for at_step in (1, 2):
                save(saver, state, at_step)
            saved = succeeds(disk, tmp_path, operation, how, error, lambda: save(saver, state, 3))
            state.counters["step"].assign(0)
            again = checkpoints.Checkpoints(state, folder, keep=2)
            again.restore()
            assert int(state.counters["step"]) in (2, 3)
            assert int(state.counters["step"]) == 3 or not saved
            assert state.model.weights[0].numpy().flat[0] == int(state.counters["step"])
            save(again, state, 4)
            assert list(checkpoints.by_step(folder))[-1] == 4
            assert len(checkpoints.by_step(folder)) <= 3
            assert not [*folder.glob("*.partial")]
            return disk.failed

        each_operation(run)


def toys_state() -> towers_run.FitState:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(300)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    model.optimizer.build(model.trainable_variables)
    return towers_run.FitState(model, [tf.Variable(w.value) for w in model.trainable_variables])


def save(saver: checkpoints.Checkpoints, state: towers_run.FitState, at_step: int) -> None:
    state.counters["step"].assign(at_step)
    state.model.weights[0].assign(tf.fill(state.model.weights[0].shape, float(at_step)))
    saver.save()
