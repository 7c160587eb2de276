"""The run's folder: when a run may use it, its lock, and files that are whole or not there."""

import errno
import json
import shutil

import pytest

from towers.runs import run_folder


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return run_folder.RunFolder(str(path), "--train_dir")


def test_what_a_training_killed_in_its_first_moments_leaves_is_no_other_persons(folder):
    folder.lock.write_text("{}")
    (folder.path / "config.partial.json").write_text("{")
    assert folder.read_config() is None
    folder.lock.unlink()
    (folder.path / "thesis.tex").write_text("years of work")
    with pytest.raises(run_folder.RunFolderError, match="holds files but no run"), folder.held():
        pass
    assert not folder.lock.exists()


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', "[3]", "3", "\xff"])
def test_a_line_is_added_behind_the_last_whole_one(tmp_path, torn):
    path = tmp_path / "eval.jsonl"
    run_folder.append_line(path, {"step": 1})
    with open(path, "ab") as file:
        file.write(torn.encode("latin-1"))
    run_folder.append_line(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("damaged", [b'{"step": 2, "lo', b"", b"\xff\xfe", b"{}", b"5"])
def test_a_damaged_line_among_whole_ones_is_named_and_nothing_is_dropped(folder, damaged):
    whole = b'{"step": 1}\n' + damaged + b'\n{"step": 3}\n'
    folder.metrics.write_bytes(whole)
    for read, given in ((run_folder.read_lines, folder.metrics), (folder.drop_metrics_after, 9)):
        with pytest.raises(run_folder.RunFolderError, match=r"metrics.jsonl: line 2 is"):
            read(given)
    assert folder.metrics.read_bytes() == whole


def test_lines_after_the_checkpoint_are_dropped(folder):
    lines = [{"step": 1}, {"step": 2}, {"step": 2, "split": "test"}, {"step": 3}]
    for line in lines:
        run_folder.append_line(folder.metrics, line)
    with open(folder.metrics, "a") as file:
        file.write('{"step": 4')
    folder.drop_metrics_after(2)
    assert folder.metrics.read_text() == "".join(json.dumps(line) + "\n" for line in lines[:3])
    folder.drop_metrics_after(0)
    assert folder.metrics.read_text() == ""


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_that_goes_away_is_noticed(folder, is_replaced):
    with folder.held():
        shutil.move(folder.path, folder.path.with_name("elsewhere"))
        if is_replaced:
            folder.path.mkdir()
            folder.lock.write_text("{}")
        with pytest.raises(run_folder.RunFolderError, match="removed, moved or replaced"):
            folder.check_held()
    assert folder.lock.exists() == is_replaced  # what is not its own is left alone


def test_a_file_system_without_locks_is_said_and_used(folder, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", no_locks)
    with folder.held():
        assert capsys.readouterr().out.count("cannot be locked (No locks available)") == 1
        with run_folder.RunFolder(folder.path).held():
            pass
        folder.check_held()  # a second one has not taken the first one's file away
