"""Checkpoints: the whole state comes back, whatever the process built before; the newest few."""

import gc
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from towers import checkpoints, step


def new_state(
    *, units=3, optimizer=None, keep_averages=True, statistics_of_each=2
) -> step.TrainState:
    """A small state with every kind of variable: weights, batch-norm state, slots, averages."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((2,)), *layers])
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    return step.new_state(
        model, optimizer, keep_averages=keep_averages, statistics_of_each=statistics_of_each
    )


def variables_of(state) -> list:
    variables = [*state.model.variables, *state.optimizer.variables]
    return [variable.value for variable in variables] + [
        *state.averages,
        *state.statistics_of_each,
        state.step,
        state.examples_seen,
    ]


def fill(state, at_step: int) -> list[np.ndarray]:
    """Gives every variable values of its own; returns them."""
    for index, variable in enumerate(variables_of(state)):
        values = np.arange(np.prod(variable.shape)).reshape(variable.shape) + index + 0.5
        variable.assign(tf.cast(values, variable.dtype))
    state.step.assign(at_step)
    return [variable.numpy() for variable in variables_of(state)]


def save(state, folder, at_step, keep=5):
    state.step.assign(at_step)
    return checkpoints.Checkpoints(state, folder, keep).save()


def test_everything_comes_back(tmp_path):
    state = new_state()
    expected = fill(state, at_step=12)
    checkpoints.Checkpoints(state, tmp_path, keep=5).save()

    other = new_state()
    path = checkpoints.Checkpoints(other, tmp_path, keep=5).restore_newest()
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
    checkpoints.Checkpoints(other, tmp_path, keep=5).restore_newest()
    np.testing.assert_array_equal(variables_of(other)[0].numpy(), expected[0])


def test_evaluation_reads_its_part_of_the_file(tmp_path):
    state = new_state()
    expected = fill(state, at_step=3)
    path = checkpoints.Checkpoints(state, tmp_path, keep=5).save()
    other = new_state(optimizer=keras.optimizers.Adam())
    parts = checkpoints.of_model(other.model, other.averages, other.statistics_of_each)
    checkpoints.restore(parts, path, partial=True)
    np.testing.assert_array_equal(other.model.variables[0].numpy(), expected[0])
    np.testing.assert_array_equal(other.averages[-1].numpy(), expected[-5])
    np.testing.assert_array_equal(other.statistics_of_each[-1].numpy(), expected[-3])


def test_the_newest_few_are_kept_and_named_by_step(tmp_path):
    state = new_state()
    kept = checkpoints.Checkpoints(state, tmp_path, keep=2)
    for at_step in (2, 4, 10):
        state.step.assign(at_step)
        assert kept.save() == str(tmp_path / f"step-{at_step}")
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "step-10.index",
        "step-4.index",
    ]
    # A process that goes on counts those that it finds.
    save(state, tmp_path, 12, keep=2)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "step-10.index",
        "step-12.index",
    ]
    assert checkpoints.newest(tmp_path) == str(tmp_path / "step-12")


def test_a_step_is_saved_once(tmp_path):
    state = new_state()
    first = save(state, tmp_path, 5)
    written = (tmp_path / "step-5.index").stat().st_mtime_ns
    assert save(state, tmp_path, 5) == first
    assert (tmp_path / "step-5.index").stat().st_mtime_ns == written


def test_an_empty_folder_holds_no_checkpoint(tmp_path):
    kept = checkpoints.Checkpoints(new_state(), tmp_path / "none", keep=5)
    assert kept.restore_newest() is None
    assert kept.describe_newest() == "There is no checkpoint yet."
    assert checkpoints.newest(tmp_path / "none") is None
    assert checkpoints.after(tmp_path / "none", -1) == []
    assert not (tmp_path / "none").exists()


def test_a_folder_that_was_moved_still_works(tmp_path):
    state = new_state()
    expected = fill(state, at_step=4)
    checkpoints.Checkpoints(state, tmp_path / "here", keep=5).save()
    shutil.move(tmp_path / "here", tmp_path / "there")
    other = new_state()
    path = checkpoints.Checkpoints(other, tmp_path / "there", keep=5).restore_newest()
    assert path == str(tmp_path / "there" / "step-4")
    np.testing.assert_array_equal(variables_of(other)[0].numpy(), expected[0])


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        "other",
        [
            {"units": 4},
            {"optimizer": keras.optimizers.Adam},
            {"optimizer": keras.optimizers.SGD},  # no momentum: fewer slots than in the file
            {"keep_averages": False},
            {"statistics_of_each": 0},
            {"statistics_of_each": 3},
        ],
    )
    def test_another_state_is_refused_in_one_line(self, tmp_path, capfd, other):
        fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        if "optimizer" in other:
            other = {"optimizer": other["optimizer"]()}
        with pytest.raises(checkpoints.CheckpointError, match="step-2 cannot be restored") as error:
            checkpoints.Checkpoints(new_state(**other), tmp_path, keep=5).restore_newest()
        assert "\n" not in str(error.value)
        gc.collect()
        assert capfd.readouterr().err == ""  # TensorFlow would warn of each variable

    @pytest.mark.parametrize("name", ["step-2.index", "step-2.data-00000-of-00001"])
    def test_a_damaged_file_is_refused_in_one_line(self, tmp_path, name):
        fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(checkpoints.CheckpointError, match="step-2 cannot be restored") as error:
            checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore_newest()
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three checkpoints, and a file that only looks like one."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    kept = checkpoints.Checkpoints(state := new_state(), folder, keep=5)
    for at_step in (2, 4, 10):
        state.step.assign(at_step)
        kept.save()
    (folder / "step-best.index").write_bytes(b"")
    return folder


class TestFind:
    @pytest.mark.parametrize(
        "name", ["4", "step-4", "step-4.index", "{}/step-4", "{}/step-4.index"]
    )
    def test_by_step_name_or_path(self, folder, name):
        assert checkpoints.find(folder, name.format(folder)) == str(folder / "step-4")

    @pytest.mark.parametrize("name", ["3", "step-3", "/elsewhere/step-4", "best", "..", ""])
    def test_what_is_missing_is_named_beside_what_is_there(self, folder, name):
        with pytest.raises(
            checkpoints.CheckpointError, match=f"--checkpoint={name}: not found; .*steps 2, 4, 10$"
        ):
            checkpoints.find(folder, name)

    def test_no_checkpoints_at_all(self, tmp_path):
        with pytest.raises(checkpoints.CheckpointError, match=r"holds the steps \(none\)"):
            checkpoints.find(tmp_path, "3")

    def test_those_after_a_step_oldest_first(self, folder):
        paths = [str(folder / f"step-{at_step}") for at_step in (2, 4, 10)]
        assert checkpoints.after(folder, -1) == paths
        assert checkpoints.after(folder, 2) == paths[1:]
        assert checkpoints.after(folder, 10) == []

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
        np.testing.assert_array_equal(values["statistics_of_each/1"], expected[-3])
        assert values["step"] == 7
        assert len(values) == len(expected)  # nothing of TensorFlow's own

    @pytest.mark.parametrize("name", ["step-0.index", "step-0.data-00000-of-00001"])
    def test_a_damaged_file_is_refused_in_one_line(self, tmp_path, name):
        path = checkpoints.Checkpoints(new_state(), tmp_path, keep=5).save()
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:8])
        with pytest.raises(checkpoints.CheckpointError, match="step-0 cannot be read") as error:
            checkpoints.read(path)
        assert "\n" not in str(error.value)
