"""The lock of a run's folder: one training at a time, a dead one's lock is no lock."""

import os
import shutil

import pytest

from towers.runs import run_folder, run_lock


@pytest.fixture
def folder(tmp_path):
    return run_folder.RunFolder(str(tmp_path / "run"), "--train_dir")


def test_a_second_training_is_refused(folder):
    second = run_lock.RunLock(folder).held()
    with run_lock.RunLock(folder).held(), pytest.raises(run_folder.RunFolderError, match="another"):
        second.__enter__()


def test_a_lock_that_its_holder_removed_meanwhile_is_not_taken_for_the_lock(folder, monkeypatch):
    """Between the opening of the file and the lock on it, and a third process makes another."""
    folder.path.mkdir()
    opened, real_open = [], os.open

    def open_then_lose(path, *arguments, **options):
        opened.append(real_open(path, *arguments, **options))
        if len(opened) == 1:
            os.unlink(path)
        return opened[-1]

    monkeypatch.setattr(os, "open", open_then_lose)
    with run_lock.RunLock(folder).held():
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
