"""Checkpoints: the whole state comes back, whatever the process built before; the newest few."""

import gc
import os
import resource
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf

from towers import noise
from towers.runs import checkpoints
from towers.runs import run as towers_run

INDEX, DATA = "state.index", "state.data-00000-of-00001"


@pytest.fixture(autouse=True)
def as_in_a_command():
    noise.quiet_loggers()


def new_state(*, units=3, optimizer=None, keep_averages=True) -> towers_run.FitState:
    """A small state with every kind of variable: weights, batch-norm state, slots, averages."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((2,)), *layers])
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer)
    optimizer.build(model.trainable_variables)
    averages = [tf.Variable(w.value) for w in model.trainable_variables] if keep_averages else []
    return towers_run.FitState(model, averages)


def variables_of(state) -> list:
    variables = [*state.model.variables, *state.model.optimizer.variables]
    return [variable.value for variable in variables] + [
        *state.averages,
        *state.counters.values(),
    ]


def fill(state, at_step: int) -> list[np.ndarray]:
    """Gives every variable values of its own; returns them."""
    for index, variable in enumerate(variables_of(state)):
        values = np.arange(np.prod(variable.shape)).reshape(variable.shape) + index + 0.5
        variable.assign(tf.cast(values, variable.dtype))
    state.counters["step"].assign(at_step)
    return [variable.numpy() for variable in variables_of(state)]


def save(state, folder, at_step, keep=5):
    state.counters["step"].assign(at_step)
    return checkpoints.Checkpoints(state, folder, keep).save()


def test_everything_comes_back(tmp_path):
    state = new_state()
    expected = fill(state, at_step=12)
    checkpoints.Checkpoints(state, tmp_path, keep=5).save()

    other = new_state()
    path = checkpoints.Checkpoints(other, tmp_path, keep=5).restore()
    assert path == str(tmp_path / "step-12")
    for variable, value in zip(variables_of(other), expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.pitfall(17)
def test_names_that_keras_counts_up_do_not_matter(tmp_path):
    state = new_state()
    expected = fill(state, at_step=1)
    checkpoints.Checkpoints(state, tmp_path, keep=5).save()
    for _ in range(3):
        other = new_state()
    assert other.model.variables[0].path != state.model.variables[0].path
    checkpoints.Checkpoints(other, tmp_path, keep=5).restore()
    np.testing.assert_array_equal(variables_of(other)[0].numpy(), expected[0])


def test_the_newest_few_are_kept_and_named_by_step(tmp_path):
    state = new_state()
    kept = checkpoints.Checkpoints(state, tmp_path, keep=2)
    for at_step in (2, 4, 10):
        state.counters["step"].assign(at_step)
        assert kept.save() == str(tmp_path / f"step-{at_step}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-4"]
    # A process that goes on counts those that it finds.
    save(state, tmp_path, 12, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-12"]
    assert checkpoints.newest(tmp_path) == str(tmp_path / "step-12")


def test_a_step_is_saved_once(tmp_path):
    state = new_state()
    first = save(state, tmp_path, 5)
    written = (tmp_path / "step-5" / INDEX).stat().st_mtime_ns
    assert save(state, tmp_path, 5) == first
    assert (tmp_path / "step-5" / INDEX).stat().st_mtime_ns == written


def test_an_empty_folder_holds_no_checkpoint(tmp_path):
    kept = checkpoints.Checkpoints(new_state(), tmp_path / "none", keep=5)
    assert kept.restore() is None
    assert kept.describe_newest() == "There is no checkpoint yet."
    assert checkpoints.newest(tmp_path / "none") is None
    assert checkpoints.by_step(tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()


def test_a_folder_that_was_moved_still_works(tmp_path):
    state = new_state()
    expected = fill(state, at_step=4)
    checkpoints.Checkpoints(state, tmp_path / "here", keep=5).save()
    shutil.move(tmp_path / "here", tmp_path / "there")
    other = new_state()
    path = checkpoints.Checkpoints(other, tmp_path / "there", keep=5).restore()
    assert path == str(tmp_path / "there" / "step-4")
    np.testing.assert_array_equal(variables_of(other)[0].numpy(), expected[0])


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        "other",
        [
            {"units": 4},
            pytest.param({"optimizer": keras.optimizers.Adam}, marks=pytest.mark.long),
            {"optimizer": keras.optimizers.SGD},  # no momentum: fewer slots than in the file
            pytest.param({"keep_averages": False}, marks=pytest.mark.long),
        ],
    )
    def test_another_state_is_refused_in_one_line(self, tmp_path, capfd, other):
        fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        if "optimizer" in other:
            other = {"optimizer": other["optimizer"]()}
        with pytest.raises(checkpoints.CheckpointError, match="step-2 cannot be restored") as error:
            checkpoints.Checkpoints(new_state(**other), tmp_path, keep=5).restore()
        assert "\n" not in str(error.value)
        gc.collect()
        assert capfd.readouterr().err == ""  # TensorFlow would warn of each variable

    def test_another_run_s_is_refused(self, tmp_path):
        checkpoints.Checkpoints(new_state(), tmp_path, 5, run_sha256="one").save()
        with pytest.raises(checkpoints.CheckpointError, match="another run"):
            checkpoints.Checkpoints(new_state(), tmp_path, 5, run_sha256="two").restore()


class TestDamage:
    """It is said; no older state is gone on from without a word."""

    @pytest.mark.parametrize("name", [INDEX, DATA])
    @pytest.mark.parametrize("size", [None, 0, 8])
    def test_is_one_line(self, tmp_path, capfd, name, size):
        for at_step in (2, 4):
            path = save(new_state(), tmp_path, at_step)
        file = tmp_path / "step-4" / name
        file.unlink() if size is None else os.truncate(file, size)
        kept = checkpoints.Checkpoints(new_state(), tmp_path, keep=5)
        for use in (kept.restore, lambda: checkpoints.read(path)):
            with pytest.raises(checkpoints.CheckpointError, match="step-4 cannot be") as error:
                use()
            assert "\n" not in str(error.value)
        assert capfd.readouterr().err == ""

    def test_a_bit_anywhere_is_noticed_or_makes_no_difference(self, tmp_path):
        """Every hundredth byte or so of both files; TensorFlow never takes the process with it."""
        expected = fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        other, noticed = new_state(), 0
        for name in (INDEX, DATA):
            path = tmp_path / "step-2" / name
            whole = path.read_bytes()
            places = range(0, len(whole), max(1, len(whole) // 40))
            for place in places:
                path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
                try:
                    checkpoints.Checkpoints(other, tmp_path, keep=5).restore()
                except checkpoints.CheckpointError:
                    noticed += 1
                else:
                    for variable, value in zip(variables_of(other), expected, strict=True):
                        np.testing.assert_array_equal(variable.numpy(), value)
                path.write_bytes(whole)
        assert noticed > 60


def test_what_a_kill_leaves_is_removed_before_the_run_goes_on(tmp_path):
    save(new_state(), tmp_path, 2)
    (tmp_path / "step-4.partial").mkdir()
    (tmp_path / "step-4.partial" / DATA).write_bytes(b"half")
    (tmp_path / "step-best").mkdir()  # not ours
    assert checkpoints.newest(tmp_path) == str(tmp_path / "step-2")
    checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore()
    assert {path.name for path in tmp_path.iterdir()} == {"step-2", "step-best"}


def test_a_checkpoint_has_its_name_only_while_all_of_it_is_there(tmp_path, monkeypatch):
    """A process that is killed while it writes, renames or deletes leaves no half of one."""
    kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=1)
    kept.save()
    state.counters["step"].assign(1)
    whole = {INDEX, DATA}

    def killed(*_, **__):
        raise KeyboardInterrupt

    for module, name in ((os, "fsync"), (Path, "rename"), (shutil, "rmtree")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, killed)
            kept.save()
        for path in checkpoints.by_step(tmp_path).values():
            assert {file.name for file in Path(path).iterdir()} == whole
        assert checkpoints.newest(tmp_path)


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(tmp_path):
    """The system's own limit on the size of a file stands for a full disk."""
    save(new_state(), tmp_path, 2)
    before = scripts.contents(tmp_path)
    kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=5)
    state.counters["step"].assign(4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(checkpoints.CheckpointError) as error:
            kept.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value).startswith(f"checkpoint {tmp_path}/step-4 cannot be written: ")
    assert str(error.value).endswith(f"The newest checkpoint is {tmp_path}/step-2.")
    assert "{{" not in str(error.value)
    assert scripts.contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
    assert kept.save() == str(tmp_path / "step-4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three checkpoints, and a file that only looks like one."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    kept = checkpoints.Checkpoints(state := new_state(), folder, keep=5)
    for at_step in (2, 4, 10):
        state.counters["step"].assign(at_step)
        kept.save()
    (folder / "step-best").mkdir()
    return folder


class TestFind:
    @pytest.mark.parametrize("name", ["4", "step-4", "{}/step-4", "{}/step-4/"])
    def test_by_step_name_or_path(self, folder, name):
        assert checkpoints.find(folder, name.format(folder)) == str(folder / "step-4")

    def test_the_runs_own_comes_before_one_in_the_current_folder(
        self, folder, tmp_path, monkeypatch
    ):
        (tmp_path / "step-4").mkdir()
        monkeypatch.chdir(tmp_path)
        assert checkpoints.find(folder, "step-4") == str(folder / "step-4")

    @pytest.mark.parametrize("name", ["3", "step-3", "/elsewhere/step-4", "best", "..", ""])
    def test_what_is_missing_is_named_beside_what_is_there(self, folder, name):
        with pytest.raises(
            checkpoints.CheckpointError, match=f"^checkpoint={name}: not found; .*steps 2, 4, 10$"
        ):
            checkpoints.find(folder, name)

    def test_no_checkpoints_at_all(self, tmp_path):
        with pytest.raises(checkpoints.CheckpointError, match=r"holds the steps \(none\)"):
            checkpoints.find(tmp_path, "3")

    def test_all_by_their_step_oldest_first(self, folder):
        paths = {at_step: str(folder / f"step-{at_step}") for at_step in (2, 4, 10)}
        assert list(checkpoints.by_step(folder).items()) == list(paths.items())

    def test_the_step_is_in_the_path(self):
        assert checkpoints.step_of("/runs/a-1/checkpoints/step-1200") == 1200


class TestRead:
    def test_gives_the_values_by_their_places(self, tmp_path):
        expected = fill(state := new_state(), at_step=7)
        values = checkpoints.read(checkpoints.Checkpoints(state, tmp_path, keep=5).save())
        np.testing.assert_array_equal(values["weights/0"], expected[0])
        assert values["step"] == 7
        assert not [name for name in values if "CHECKPOINT" in name]  # TensorFlow's own
