"""The lock of a run's folder: one training at a time, a dead one's lock is no lock."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from towers.runs import run_folder, run_lock

HOLD = """
import sys, time
from towers.runs import run_folder, run_lock
with run_lock.RunLock(run_folder.RunFolder(sys.argv[1], "--train_dir")).held():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    return run_folder.RunFolder(str(tmp_path / "run"), "--train_dir")


def test_is_there_while_it_is_held_and_says_by_whom(folder):
    lock = run_lock.RunLock(folder)
    with lock.held():
        said = json.loads(folder.lock.read_text())
        assert said["pid"] == os.getpid()
        lock.check_held()
    assert not folder.path.exists()  # nothing is left of a run that has left nothing


@pytest.fixture
def process(folder):
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.path], stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


@pytest.mark.long
def test_a_second_one_is_refused_until_the_first_is_dead(folder, process):
    assert process.stdout.readline() == b"held\n"
    before = folder.lock.read_bytes()
    message = rf"--train_dir={folder.path}: process {process.pid} on .*, is training in it; wait"
    with pytest.raises(run_folder.RunFolderError, match=message):
        run_lock.RunLock(folder).held().__enter__()
    assert folder.lock.read_bytes() == before
    process.kill()
    process.communicate()
    assert folder.lock.exists()
    with run_lock.RunLock(folder).held():
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()
    assert not folder.lock.exists()


@pytest.mark.parametrize("said", [b"", b"{", b"[1]", b'{"pid": 1}', b"\xff"])
def test_a_holder_that_has_not_said_who_it_is_holds_it_all_the_same(folder, said):
    with run_lock.RunLock(folder).held():
        folder.lock.write_bytes(said)
        with pytest.raises(run_folder.RunFolderError, match="another process is training in it"):
            run_lock.RunLock(folder).held().__enter__()


def test_a_lock_that_its_holder_removed_meanwhile_is_not_taken_for_the_lock(folder, monkeypatch):
    """Between the opening of the file and the lock on it, the first holder removes it and a third
    process makes another."""
    folder.path.mkdir()
    opened = []
    real_open = os.open

    def open_then_lose(path, *arguments, **options):
        file = real_open(path, *arguments, **options)
        opened.append(file)
        if len(opened) == 1:
            os.unlink(path)
        return file

    monkeypatch.setattr(os, "open", open_then_lose)
    with run_lock.RunLock(folder).held():
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(opened[1]), os.stat(folder.lock))


class TestAFolderThatGoesAway:
    @pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
    def test_is_noticed(self, folder, how):
        lock = run_lock.RunLock(folder)
        with lock.held():
            shutil.move(folder.path, folder.path.with_name("elsewhere"))
            if how == "removed":
                shutil.rmtree(folder.path.with_name("elsewhere"))
            if how == "replaced":
                folder.path.mkdir()
                folder.lock.write_text("{}")
            with pytest.raises(run_folder.RunFolderError, match="removed, moved or replaced"):
                lock.check_held()
        # What is not its own is left alone.
        assert folder.lock.exists() == (how == "replaced")

    def test_a_lock_that_is_not_held_is_not_there(self, folder):
        with pytest.raises(run_folder.RunFolderError, match="removed, moved or replaced"):
            run_lock.RunLock(folder).check_held()


def test_a_file_system_without_locks_is_said_and_used(folder, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(run_lock._NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", no_locks)
    first = run_lock.RunLock(folder)
    with first.held():
        assert capsys.readouterr().out.count("this file system has no locks") == 1
        with run_lock.RunLock(folder).held():
            pass
        first.check_held()  # a second one has not taken the first one's file away


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder, tmp_path):
    folder.path.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    folder.lock.symlink_to(precious)
    with pytest.raises(run_folder.RunFolderError, match="--train_dir=.*cannot be written: Too man"):
        run_lock.RunLock(folder).held().__enter__()
    assert precious.read_text() == "years of work"
