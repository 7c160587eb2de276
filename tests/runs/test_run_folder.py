"""The run's folder: when a run may use it, and files that are whole or not there."""

import fcntl
import json
import os
import threading

import pytest

from towers.runs import run_folder

CONFIG = {"settings": {"seed": 0}, "resolved": {}}


@pytest.fixture
def folder(tmp_path):
    return run_folder.RunFolder(str(tmp_path / "new" / "run"), "--train_dir")


class TestReadConfig:
    def test_no_folder_is_no_run(self, folder):
        assert folder.read_config() is None
        assert not folder.path.parent.exists()

    def test_an_empty_folder_is_no_run(self, folder):
        folder.path.mkdir(parents=True)
        assert folder.read_config() is None

    def test_reads_what_create_wrote(self, folder):
        config = CONFIG | {"defining": {}, "stretches": [{}]}
        folder.create(config)
        assert folder.read_config() == config
        assert os.listdir(folder.path) == ["config.json"]

    @pytest.mark.pitfall(11)
    def test_a_folder_of_other_files_is_refused(self, folder):
        folder.path.mkdir(parents=True)
        (folder.path / "thesis.tex").write_text("years of work")
        with pytest.raises(run_folder.RunFolderError, match=r"run: holds files but no run"):
            folder.read_config()

    @pytest.mark.parametrize("text", ["", "{", "[1]", '{"model": "bert"}'])
    def test_another_config_is_refused(self, folder, text):
        folder.path.mkdir(parents=True)
        folder.config.write_text(text)
        with pytest.raises(run_folder.RunFolderError, match=r"--train_dir=.*run: .*config.json"):
            folder.read_config()

    @pytest.mark.parametrize("name", ["file", "file/run"])
    def test_a_file_in_the_way_is_refused(self, tmp_path, name):
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(run_folder.RunFolderError, match=f"{name}: .*Not a directory"):
            run_folder.RunFolder(str(tmp_path / name)).read_config()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    folder = run_folder.RunFolder(str(tmp_path / "file" / "run"), "--train_dir")
    with pytest.raises(run_folder.RunFolderError, match="--train_dir=.*cannot be written: Not a d"):
        folder.create(CONFIG)


def test_json_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    run_folder.write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        run_folder.write_json(path, {"new": object()})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run_folder.write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_run_has_finished_when_model_and_summary_are_there(folder):
    folder.path.mkdir(parents=True)
    assert folder.read_final_summary() is None
    summary = {"step": 7, "weights_sha256": "abc", "accuracy": 0.5}
    run_folder.write_json(folder.final_summary, summary)
    assert folder.read_final_summary() is None
    folder.final_model.write_bytes(b"a model")
    assert folder.read_final_summary() == summary


NO_SUMMARY = [
    "",
    "{",
    "[7]",
    "\x00",
    '{"step": 7}',
]


@pytest.mark.parametrize("text", NO_SUMMARY)
def test_a_summary_that_no_run_wrote_is_none(folder, text):
    folder.path.mkdir(parents=True)
    folder.final_model.write_bytes(b"a model")
    folder.final_summary.write_text(text)
    assert folder.read_final_summary() is None


def test_what_a_training_killed_in_its_first_moments_leaves_is_no_other_persons(folder):
    folder.path.mkdir(parents=True)
    folder.lock.write_text("{}")
    (folder.path / "config.json.partial").write_text("{")
    assert folder.read_config() is None
    (folder.path / "thesis.tex").write_text("years of work")
    with pytest.raises(run_folder.RunFolderError, match="holds files but no run"):
        folder.read_config()


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_folder.RunFolder("~/run").path == tmp_path / "run"
    assert str(run_folder.RunFolder("~nobody-of-this-name/run").path) == "~nobody-of-this-name/run"


class TestLines:
    def test_a_torn_last_line_is_left_out(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        for step in (1, 2):
            run_folder.append_line(path, {"step": step})
        with open(path, "a") as file:
            file.write('{"step": 3, "lo')
        assert run_folder.read_lines(path) == [{"step": 1}, {"step": 2}]

    @pytest.mark.parametrize("torn", ['{"step": 3, "lo', "[3]", "3", "\xff", "\n\n{"])
    def test_a_line_is_added_behind_the_last_whole_one(self, tmp_path, torn):
        path = tmp_path / "metrics.jsonl"
        run_folder.append_line(path, {"step": 1})
        with open(path, "ab") as file:
            file.write(torn.strip("\n").encode("latin-1"))
        run_folder.append_line(path, {"step": 2})
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'

    def test_a_last_line_that_lacks_its_end_alone_is_kept(self, tmp_path):
        path = tmp_path / "eval.jsonl"
        path.write_text('{"step": 1}\n{"step": 2}')
        assert run_folder.read_lines(path) == [{"step": 1}, {"step": 2}]
        run_folder.append_line(path, {"step": 3})
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'

    def test_of_two_writers_one_waits_for_the_other(self, tmp_path):
        path = tmp_path / "eval.jsonl"
        with open(path, "ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            other.write(b'{"step": 1, "half')
            other.flush()
            writer = threading.Thread(target=run_folder.append_line, args=(path, {"step": 2}))
            writer.start()
            writer.join(0.2)
            assert writer.is_alive()
            other.write(b'": 1}\n')
        writer.join()
        assert run_folder.read_lines(path) == [{"step": 1, "half": 1}, {"step": 2}]

    def test_a_first_line_that_is_torn_is_dropped(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"st')
        assert run_folder.read_lines(path) == []
        run_folder.append_line(path, {"step": 1})
        assert run_folder.read_lines(path) == [{"step": 1}]

    @pytest.mark.parametrize(
        "damaged", [b'{"step": 2, "lo', b"", b"\xff\xfe", b"[2]", b'{"stop": 2}', b'{"step": "2"}']
    )
    def test_a_damaged_line_among_whole_ones_is_named_and_nothing_is_dropped(self, folder, damaged):
        folder.path.mkdir(parents=True)
        whole = b'{"step": 1}\n' + damaged + b'\n{"step": 3}\n'
        folder.metrics.write_bytes(whole)
        for read in (
            lambda: run_folder.read_lines(folder.metrics),
            lambda: folder.drop_metrics_after(9),
        ):
            with pytest.raises(
                run_folder.RunFolderError, match=r"metrics.jsonl: line 2 is not one"
            ):
                read()
        assert folder.metrics.read_bytes() == whole

    def test_lines_after_the_checkpoint_are_dropped(self, folder):
        folder.path.mkdir(parents=True)
        lines = [{"step": 1}, {"step": 2}, {"step": 2, "split": "test"}, {"step": 3}]
        for line in lines:
            run_folder.append_line(folder.metrics, line)
        with open(folder.metrics, "a") as file:
            file.write('{"step": 4')
        assert folder.drop_metrics_after(2) == lines[:3]
        assert folder.metrics.read_text() == "".join(json.dumps(line) + "\n" for line in lines[:3])
        assert folder.drop_metrics_after(0) == []
        assert folder.metrics.read_text() == ""

    def test_no_lines_are_no_problem(self, folder):
        assert folder.drop_metrics_after(0) == []
        assert not folder.path.exists()


class TestDifferences:
    def test_have_the_name_and_both_values(self):
        old = {"seed": 0, "decay_epochs": [82.0, 123.0], "clip_norm": 0.0}
        new = {"seed": 1, "decay_epochs": (82.0,), "clip_norm": 0.0}
        assert run_folder.differences(old, new) == [
            "seed 1 (the run has 0)",
            "decay_epochs 82.0 (the run has 82.0,123.0)",
        ]
        assert run_folder.differences({"a": 1}, {"a": 2}, "it", "<{}>".format) == [
            "<a>2 (it has 1)"
        ]

    def test_a_tuple_and_the_list_it_was_read_back_as_are_the_same(self):
        assert run_folder.differences({"decay_epochs": [1.0]}, {"decay_epochs": (1.0,)}) == []

    def test_a_setting_that_only_one_side_has_is_named(self):
        assert run_folder.differences({}, {"seed": 1}) == ["seed 1 (the run has None)"]
        assert run_folder.differences({"train_epochs": 5.0}, {}) == [
            "train_epochs None (the run has 5.0)"
        ]
