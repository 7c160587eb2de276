"""Checkpoints: the whole state comes back, whatever the process built before; the newest few."""

import errno
import gc
import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from towers import errors
from towers.runs import checkpoints, fit_state, run_folder

INDEX, DATA = "state.index", "state.data-00000-of-00001"


@pytest.fixture(autouse=True)
def as_in_a_command():
    errors.quiet_loggers()


def new_state(*, units=3, optimizer=None, keep_averages=True) -> fit_state.FitState:
    """A small state with every kind of variable: weights, batch-norm state, slots, averages."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((2,)), *layers])
    optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer)
    optimizer.build(model.trainable_variables)
    averages = [tf.Variable(w.value) for w in model.trainable_variables] if keep_averages else []
    return fit_state.FitState(model, averages)


def variables_of(state) -> list:
    variables = [*state.model.variables, *state.model.optimizer.variables]
    return [variable.value for variable in variables] + [*state.averages, state.counter]


def fill(state, at_step: int) -> list[np.ndarray]:
    """Gives every variable values of its own; returns them."""
    for index, variable in enumerate(variables_of(state)):
        values = np.arange(np.prod(variable.shape)).reshape(variable.shape) + index + 0.5
        variable.assign(tf.cast(values, variable.dtype))
    state.counter.assign(at_step)
    return [variable.numpy() for variable in variables_of(state)]


@pytest.fixture
def saved(tmp_path):
    """A state that is in the folder as step 12, and the values of its variables."""
    values = fill(state := new_state(), at_step=12)
    checkpoints.save(state, tmp_path, keep=5)
    return state, values


def assert_has(state, expected) -> None:
    for variable, value in zip(variables_of(state), expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.pitfall(17)
def test_everything_comes_back_whatever_names_keras_has_counted_up(tmp_path, saved):
    (state, expected), other = saved, new_state()
    assert other.model.variables[0].path != state.model.variables[0].path
    checkpoints.restore(other, tmp_path)
    assert_has(other, expected)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    "other",
    [
        {"units": 4},
        {"optimizer": keras.optimizers.SGD},  # no momentum: fewer slots than in the file
        pytest.param({"keep_averages": False}, marks=pytest.mark.long),
    ],
)
def test_another_state_is_refused_in_one_line(tmp_path, capfd, other):
    with pytest.raises(checkpoints.CheckpointError, match="step-12 cannot be restored") as error:
        checkpoints.restore(new_state(**other), tmp_path)
    assert "\n" not in str(error.value)
    gc.collect()
    assert capfd.readouterr().err == ""  # TensorFlow would warn of each variable


@pytest.mark.parametrize("name", [INDEX, DATA])
@pytest.mark.parametrize("size", [None, 0, 8])
def test_damage_is_said_in_one_line(tmp_path, capfd, saved, name, size):
    """No older state is gone on from without a word."""
    path, (state, _) = tmp_path / "step-14", saved
    state.counter.assign(14)
    checkpoints.save(state, tmp_path, keep=5)
    path.joinpath(name).unlink() if size is None else os.truncate(path / name, size)
    for use in (
        lambda: checkpoints.restore(state, tmp_path), lambda: checkpoints.read_weights(path)
    ):  # fmt: skip
        with pytest.raises(checkpoints.CheckpointError, match="step-14 cannot be") as error:
            use()
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


def test_a_bit_anywhere_is_noticed_or_makes_no_difference(tmp_path, saved):
    """Every hundredth byte or so of both files; TensorFlow never takes the process with it."""
    other, noticed = new_state(), 0
    for name in (INDEX, DATA):
        path = tmp_path / "step-12" / name
        whole = path.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
            try:
                checkpoints.restore(other, tmp_path)
            except checkpoints.CheckpointError:
                noticed += 1
            else:
                assert_has(other, saved[1])
            path.write_bytes(whole)
    assert noticed > 60


def test_what_cannot_be_written_leaves_no_half_of_it(tmp_path, saved):
    saved[0].counter.assign(14)
    (tmp_path / "step-14").touch()  # a file cannot be removed as a folder
    with pytest.raises(checkpoints.CheckpointError, match="step-14 cannot be written"):
        checkpoints.save(saved[0], tmp_path, keep=5)
    assert not (tmp_path / "step-14.partial").exists()


def test_what_a_kill_leaves_is_removed_before_the_run_goes_on(tmp_path, saved):
    (tmp_path / "step-14.partial").mkdir()
    (tmp_path / "step-14.partial" / DATA).write_bytes(b"half")
    (tmp_path / "step-best").mkdir()  # not ours
    assert checkpoints.newest(tmp_path) == str(tmp_path / "step-12")
    checkpoints.restore(saved[0], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-12", "step-best"}


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
