"""Checkpoints: the whole state comes back, whatever the process built before; the newest few."""

import gc
import resource
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from towers import train_state
from towers.runs import checkpoints
from towers.support import noise


@pytest.fixture(autouse=True)
def as_in_a_command():
    noise.quiet_loggers()


def new_state(
    *, units=3, optimizer=None, keep_averages=True, statistics_of_each=2
) -> train_state.TrainState:
    """A small state with every kind of variable: weights, batch-norm state, slots, averages."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((2,)), *layers])
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    return train_state.new(
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
    other = train_state.new(new_state().model, None, keep_averages=True, statistics_of_each=2)
    checkpoints.restore(checkpoints.of_state(other), path, partial=True)
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
            pytest.param({"optimizer": keras.optimizers.Adam}, marks=pytest.mark.long),
            {"optimizer": keras.optimizers.SGD},  # no momentum: fewer slots than in the file
            pytest.param({"keep_averages": False}, marks=pytest.mark.long),
            pytest.param({"statistics_of_each": 0}, marks=pytest.mark.long),
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

    def test_is_not_taken_for_damage_that_an_older_one_could_mend(self, tmp_path):
        for at_step in (2, 4):
            save(new_state(units=3), tmp_path, at_step)
        kept = checkpoints.Checkpoints(new_state(units=4), tmp_path, keep=5)
        with pytest.raises(checkpoints.CheckpointError, match="step-4 cannot be restored"):
            kept.restore_newest()
        assert kept.damaged == []


INDEX, DATA = "step-{}.index", "step-{}.data-00000-of-00001"


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def flip_a_bit(path, place=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 16
    path.write_bytes(content)


DAMAGE = [
    *((how, name) for how in (halve, empty, flip_a_bit) for name in (INDEX, DATA)),
    (remove, DATA),
]


class TestDamage:
    @pytest.mark.parametrize(("how", "name"), DAMAGE)
    def test_the_one_before_is_restored_and_the_damage_named(self, tmp_path, capfd, how, name):
        expected = fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        fill(state, at_step=4)
        state.model.variables[0].assign(state.model.variables[0] + 1)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        how(tmp_path / name.format(4))

        kept = checkpoints.Checkpoints(other := new_state(), tmp_path, keep=5)
        assert kept.restore_newest() == str(tmp_path / "step-2")
        for variable, value in zip(variables_of(other), expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        [damage] = kept.damaged
        assert damage.startswith(f"checkpoint {tmp_path / 'step-4'}: ")
        assert "\n" not in damage
        assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-2")
        assert capfd.readouterr().err == ""

    def test_a_file_that_the_system_does_not_open_is_not_damaged(self, tmp_path):
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)
        index = tmp_path / INDEX.format(4)
        index.unlink()
        index.symlink_to(index)  # a loop, as nothing else keeps root out
        kept = checkpoints.Checkpoints(new_state(), tmp_path, keep=5)
        with pytest.raises(checkpoints.CheckpointError, match="step-4 cannot be read: Too many"):
            kept.restore_newest()
        assert kept.damaged == []

    @pytest.mark.parametrize("said", ["Too many open files", "Input/output error"])
    def test_nor_is_one_that_it_does_not_open_for_tensorflow(self, tmp_path, monkeypatch, said):
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)

        def load_checkpoint(path):
            raise tf.errors.DataLossError(None, None, f"Unable to open table file {path}: {said}")

        monkeypatch.setattr(tf.train, "load_checkpoint", load_checkpoint)
        kept = checkpoints.Checkpoints(new_state(), tmp_path, keep=5)
        with pytest.raises(checkpoints.CheckpointError, match=f"step-4: .*{said}"):
            kept.restore_newest()
        assert kept.damaged == []

    def test_all_of_them_is_an_error_that_names_each(self, tmp_path):
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)
            halve(tmp_path / DATA.format(at_step))
        with pytest.raises(
            checkpoints.CheckpointError, match="every checkpoint in .* is damaged: .*step-4.*step-2"
        ) as error:
            checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore_newest()
        assert "\n" not in str(error.value)

    def test_a_damaged_one_is_rewritten_when_the_run_comes_to_it_again(self, tmp_path):
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)
        empty(tmp_path / DATA.format(4))
        kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=5)
        kept.restore_newest()
        state.step.assign(4)
        assert kept.save() == str(tmp_path / "step-4")
        other = checkpoints.Checkpoints(new_state(), tmp_path, keep=5)
        assert other.restore_newest() == str(tmp_path / "step-4")
        assert other.damaged == []

    def test_a_damaged_one_is_the_first_to_be_deleted(self, tmp_path):
        for at_step in (2, 4, 6):
            save(new_state(), tmp_path, at_step)
        empty(tmp_path / DATA.format(6))
        kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=3)
        assert kept.restore_newest() == str(tmp_path / "step-4")
        state.step.assign(5)
        kept.save()
        assert list(checkpoints.by_step(tmp_path)) == [2, 4, 5]
        assert not (tmp_path / DATA.format(6)).exists()

    @pytest.mark.parametrize(
        "text",
        [
            None,
            pytest.param(b"", marks=pytest.mark.long),
            pytest.param(b"model_checkpoint_path: ", marks=pytest.mark.long),
            pytest.param(b"\xff\xfe", marks=pytest.mark.long),
            pytest.param(
                b'model_checkpoint_path: "abc" all_model_checkpoint_paths: "abc"',
                marks=pytest.mark.long,
            ),
            b'model_checkpoint_path: "../step-3" all_model_checkpoint_paths: "../step-3"',
        ],
    )
    def test_without_tensorflows_list_the_files_are_found(self, tmp_path, text, capfd):
        for at_step in (2, 10, 4):
            save(new_state(), tmp_path, at_step)
        remove(tmp_path / "checkpoint")
        if text is not None:
            (tmp_path / "checkpoint").write_bytes(text)
        assert checkpoints.finished(tmp_path) == [str(tmp_path / f"step-{n}") for n in (2, 4, 10)]
        kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=3)
        assert kept.restore_newest() == str(tmp_path / "step-10")
        state.step.assign(12)
        kept.save()
        assert list(checkpoints.by_step(tmp_path)) == [4, 10, 12]
        assert capfd.readouterr().err == ""

    def test_a_bit_anywhere_is_noticed_or_makes_no_difference(self, tmp_path):
        """Every hundredth byte or so of both files; TensorFlow never takes the process with it."""
        expected = fill(state := new_state(), at_step=2)
        checkpoints.Checkpoints(state, tmp_path, keep=5).save()
        other, noticed = new_state(), 0
        for name in (INDEX, DATA):
            path = tmp_path / name.format(2)
            whole = path.read_bytes()
            places = range(0, len(whole), max(1, len(whole) // 40))
            for place in places:
                flip_a_bit(path, place)
                try:
                    checkpoints.Checkpoints(other, tmp_path, keep=5).restore_newest()
                except checkpoints.CheckpointError:
                    noticed += 1
                else:
                    for variable, value in zip(variables_of(other), expected, strict=True):
                        np.testing.assert_array_equal(variable.numpy(), value)
                path.write_bytes(whole)
        assert noticed > 60


def test_a_list_that_cannot_be_mended_is_said(tmp_path, monkeypatch):
    for at_step in (2, 4):
        save(new_state(), tmp_path, at_step)
    (tmp_path / "checkpoint").unlink()

    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.compat.v1.train, "update_checkpoint_state", full)
    with pytest.raises(checkpoints.CheckpointError, match="/checkpoint cannot be written: No spac"):
        checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore_newest()


def test_what_tensorflow_could_not_remove_of_its_own_is_removed(tmp_path, monkeypatch):
    """After a save that went well otherwise, as where a network disk fails once."""
    written = tf.train.CheckpointManager.save

    def leaves_a_folder(manager, **given):
        path = written(manager, **given)
        (tmp_path / "step-2_temp").mkdir()
        return path

    monkeypatch.setattr(tf.train.CheckpointManager, "save", leaves_a_folder)
    assert save(new_state(), tmp_path, 2) == str(tmp_path / "step-2")
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint", DATA.format(2), INDEX.format(2)
    }  # fmt: skip


def test_a_save_went_well_even_where_such_a_folder_stays(tmp_path, monkeypatch):
    def stale(_):
        raise OSError("Stale file handle")

    monkeypatch.setattr(checkpoints, "_remove_unfinished", stale)
    assert save(new_state(), tmp_path, 2) == str(tmp_path / "step-2")


class TestWhatAKillLeaves:
    def test_is_removed_before_the_run_goes_on(self, tmp_path):
        save(new_state(), tmp_path, 2)
        (tmp_path / "step-4_temp").mkdir()
        (tmp_path / "step-4_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
        (tmp_path / DATA.format(4)).write_bytes(b"no index yet")
        (tmp_path / "checkpoint.tmp0123").write_text("half of a list")
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "step-best.data-00000-of-00001").write_bytes(b"mine")
        before = {path.name for path in tmp_path.iterdir()}
        checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore_newest()
        assert before - {path.name for path in tmp_path.iterdir()} == {
            "step-4_temp", "checkpoint.tmp0123", DATA.format(4)
        }  # fmt: skip

    def test_data_without_an_index_is_not_removed_where_nothing_else_is_left(self, tmp_path):
        """As in a copy that has come half of its way."""
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)
            remove(tmp_path / INDEX.format(at_step))
        (tmp_path / "step-best.data-00000-of-00001").write_bytes(b"mine")
        before = {path.name for path in tmp_path.iterdir()}
        with pytest.raises(checkpoints.CheckpointError, match="step-2.* has no .index; .*step-4"):
            checkpoints.Checkpoints(new_state(), tmp_path, keep=5).restore_newest()
        assert {path.name for path in tmp_path.iterdir()} == before

    def test_a_checkpoint_that_is_not_in_the_list_yet_is_used_and_counted(self, tmp_path):
        for at_step in (2, 4):
            save(new_state(), tmp_path, at_step)
        listed = (tmp_path / "checkpoint").read_bytes()
        save(new_state(), tmp_path, 6)
        (tmp_path / "checkpoint").write_bytes(listed)
        kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=3)
        assert kept.restore_newest() == str(tmp_path / "step-6")
        state.step.assign(8)
        kept.save()
        assert list(checkpoints.by_step(tmp_path)) == [4, 6, 8]


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(tmp_path):
    """The system's own limit on the size of a file stands for a full disk."""
    save(new_state(), tmp_path, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = checkpoints.Checkpoints(state := new_state(), tmp_path, keep=5)
    state.step.assign(4)
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
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert kept.save() == str(tmp_path / "step-4")


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

    def test_the_runs_own_comes_before_one_in_the_current_folder(
        self, folder, tmp_path, monkeypatch
    ):
        here = tmp_path / "here"
        here.mkdir()
        (here / "step-4.index").write_bytes((folder / "step-4.index").read_bytes())
        monkeypatch.chdir(here)
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
