"""The lock of a run's folder: one training at a time, a dead one's lock is no lock."""

import shutil

import pytest

from towers.runs import run_folder


@pytest.fixture
def folder(tmp_path):
    return run_folder.RunFolder(str(tmp_path / "run"), "--train_dir")


def test_a_folder_in_which_a_run_left_nothing_is_removed(folder):
    with folder.held():
        pass
    assert not folder.path.exists()


class TestAFolderThatGoesAway:
    @pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
    def test_is_noticed(self, folder, how):
        with folder.held():
            shutil.move(folder.path, folder.path.with_name("elsewhere"))
            if how == "removed":
                shutil.rmtree(folder.path.with_name("elsewhere"))
            if how == "replaced":
                folder.path.mkdir()
                folder.lock.write_text("{}")
            with pytest.raises(run_folder.RunFolderError, match="removed, moved or replaced"):
                folder.check_held()
        # What is not its own is left alone.
        assert folder.lock.exists() == (how == "replaced")


def test_a_file_system_without_locks_is_said_and_used(folder, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(run_folder._NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", no_locks)
    with folder.held():
        assert capsys.readouterr().out.count("this file system has no locks") == 1
        with run_folder.RunFolder(folder.path).held():
            pass
        folder.check_held()  # a second one has not taken the first one's file away


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder, tmp_path):
    folder.path.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    folder.lock.symlink_to(precious)
    with pytest.raises(run_folder.RunFolderError, match="--train_dir=.*cannot be written: Too man"):
        folder.held().__enter__()
    assert precious.read_text() == "years of work"
