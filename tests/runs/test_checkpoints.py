"""Checkpoints: the whole state comes back, whatever the process built before; the newest few."""

import gc
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from towers import errors
from towers.runs import checkpoints, fit_state

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


def test_what_a_kill_leaves_is_removed_before_the_run_goes_on(tmp_path, saved):
    (tmp_path / "step-14.partial").mkdir()
    (tmp_path / "step-14.partial" / DATA).write_bytes(b"half")
    (tmp_path / "step-best").mkdir()  # not ours
    assert checkpoints.newest(tmp_path) == str(tmp_path / "step-12")
    checkpoints.restore(saved[0], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-12", "step-best"}
