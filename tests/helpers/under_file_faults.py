"""What test_file_faults.py runs in a process whose file operations can fail.

Each test lets one operation after the other fail, and looks each time at what that leaves behind.
"""

import errno
import json
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
from tensorflow.compat.v1.train import summary_iterator

from towers.runs import checkpoints, run_folder, run_lock, summaries
from towers.runs import run as towers_run

pytestmark = pytest.mark.usefixtures("cache")

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
def untouched(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("untouched") / "run"
    assert scripts.train(folder, *FOUR_STEPS).returncode == 0
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


def check_said(done: scripts.Done, said: str) -> None:
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


@each_way
class TestFilesOfARun:
    def test_a_json_file_is_the_old_or_the_new_one(self, disk, tmp_path, how, error):
        path = tmp_path / "config.json"

        def run(operation):
            run_folder.write_json(path, {"is": "old"})
            written = succeeds(
                disk, tmp_path, operation, how, error,
                lambda: run_folder.write_json(path, {"is": "new"}),
            )  # fmt: skip
            there = json.loads(path.read_text())
            assert there in ({"is": "old"}, {"is": "new"})
            assert there == {"is": "new"} or not written
            run_folder.write_json(path, {"is": "newer"})
            assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
            return disk.failed

        each_operation(run)

    def test_of_the_lines_none_is_lost(self, disk, tmp_path, how, error):
        path = tmp_path / "metrics.jsonl"

        def run(operation):
            path.write_text('{"step": 1}\n{"step": 2}\n')
            written = succeeds(
                disk, tmp_path, operation, how, error,
                lambda: run_folder.append_line(path, {"step": 3}),
            )  # fmt: skip
            run_folder.append_line(path, {"step": 4})
            steps = [line["step"] for line in scripts.lines_of(path)]
            assert steps in ([1, 2, 4], [1, 2, 3, 4])
            assert 3 in steps or not written
            return disk.failed

        each_operation(run)

    def test_dropped_lines_are_all_there_or_none(self, disk, tmp_path, how, error):
        folder = run_folder.RunFolder(str(tmp_path))

        def run(operation):
            folder.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
            dropped = succeeds(
                disk, tmp_path, operation, how, error, lambda: folder.drop_metrics_after(1)
            )
            steps = [line["step"] for line in scripts.lines_of(folder.metrics)]
            assert steps in ([1], [1, 2, 3])
            assert steps == [1] or not dropped
            return disk.failed

        each_operation(run)

    def test_a_lock_that_cannot_be_had_is_free_afterwards(self, disk, tmp_path, how, error):
        lock = run_lock.RunLock(run_folder.RunFolder(str(tmp_path / "run")))

        def run(operation):
            with disk.fault(tmp_path, operation, how, error):
                try:
                    with lock.held():
                        lock.check_held()
                except run_folder.RunFolderError:
                    pass
            with lock.held():
                pass
            return disk.failed

        each_operation(run)


def succeeds(disk, folder: Path, operation: int, how: Fault, error: int, write) -> bool:
    """Whether `write()` says that it has written, under a fault."""
    with disk.fault(folder, operation, how, error):
        try:
            write()
        except (run_folder.RunFolderError, checkpoints.CheckpointError) as said:
            assert "cannot be written: " in str(said) and disk_error(said), disk.failed
            return False
    return True


def disk_error(said: Exception) -> bool:
    """Whether a message tells what the system said, and none of Python's or TensorFlow's words."""
    reasons = [os.strerror(error) for error in (*ERRORS, *NETWORK_ERRORS)]
    text = str(said)
    return "\n" not in text and "[Errno" not in text and any(reason in text for reason in reasons)


class TestCheckpoints:
    @each_way
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

    @each_way
    def test_why_it_could_not_be_saved_is_said_whatever_comes_then(
        self, disk, tmp_path, how, error
    ):
        """Reading what there is of it may fail, too."""
        state = toys_state()

        def run(operation):
            folder = tmp_path / f"checkpoints{operation}"
            saver = checkpoints.Checkpoints(state, folder, keep=2)
            save(saver, state, 1)
            with disk.fault(folder, operation, how, error, reads=True):
                try:
                    save(saver, state, 2)
                except checkpoints.CheckpointError as said:
                    assert "step-2 cannot be written: " in str(said), disk.failed
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


# What else a disk may say: TensorFlow has errors of eleven kinds for them.
NETWORK_ERRORS = [
    *(errno.EACCES, errno.EAGAIN, errno.EBADF, errno.EBUSY, errno.ECANCELED, errno.ECONNRESET),
    *(errno.EDEADLK, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EHOSTDOWN, errno.EINTR),
    *(errno.EINVAL, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENETDOWN, errno.ENFILE),
    *(errno.ENOBUFS, errno.ENODATA, errno.ENODEV, errno.ENOENT, errno.ENOLCK, errno.ENOLINK),
    *(errno.ENOMEM, errno.ENOSPC, errno.ENOSYS, errno.ENOTCONN, errno.ENOTDIR, errno.ENXIO),
    *(errno.EOPNOTSUPP, errno.EOVERFLOW, errno.EPERM, errno.EPIPE, errno.EREMOTE, errno.EREMOTEIO),
    *(errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.ETXTBSY),
]


@pytest.mark.parametrize(
    "error", NETWORK_ERRORS[:: 1 if ALL else 4], ids=lambda error: errno.errorcode[error]
)
def test_tensorboards_files_cannot_be_written_is_one_sentence(disk, tmp_path, error):
    """Whatever the reason is."""

    def write():
        writer = summaries.file_writer(tmp_path / "train")
        with summaries.events(writer, 1):
            summaries.scalars({"accuracy": 1.0})
            writer.flush()

    def run(operation):
        if succeeds(disk, tmp_path, operation, Fault.FAIL_ONCE, error, write):
            newest = max((tmp_path / "train").iterdir(), key=lambda path: path.stat().st_mtime_ns)
            tags = [
                value.tag
                for event in summary_iterator(str(newest))
                for value in event.summary.value
            ]
            assert "accuracy" in tags, disk.failed
        return disk.failed

    each_operation(run)
