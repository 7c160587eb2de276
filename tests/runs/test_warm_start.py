"""Beginning with weights that are there: which layer finds which, and what that makes of a run."""

import json
import shutil

import keras
import numpy as np
import pytest
import scripts
import toys

import towers
from input_pipeline import arrays
from towers.runs import callbacks as run_callbacks
from towers.runs import run_folder, warm_start

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def dense(units, **arguments):
    return keras.layers.Dense(units, **arguments)


def sequential(*layers, width=6, **arguments):
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input((width,)), *layers], **arguments))
    for weight in model.trainable_variables:  # none is zero, as biases are
        weight.assign(RNG.normal(size=weight.shape))
    return model


def usual(classes=2):
    layers = dense(8, activation="relu"), keras.layers.BatchNormalization()
    return sequential(*layers, dense(classes, name="head"))


def run_in(folder, model, epochs=2, callbacks=(), **arguments):
    """A run of three steps an epoch, with checkpoints after each other one and each epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    towers.distribute(model, 1, microbatch_size=4)
    run = towers.Run(folder, model, **arguments)
    run.fit(
        arrays.batches(X, Y), batch_size=16, epochs=epochs, callbacks=[*callbacks], verbose=0,
        checkpoint_every_steps=2,
    )  # fmt: skip
    return run


def assert_same(these, those):
    np.testing.assert_equal([*map(np.asarray, these)], [*map(np.asarray, those)])


def saved(folder, model):
    """The file of a model that is saved in a folder."""
    model.save(folder / "saved.keras")
    return folder / "saved.keras"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that has finished, and the weights that are evaluated."""
    folder, model = tmp_path_factory.mktemp("warm") / "step-7", usual()  # named as a checkpoint is
    average = run_callbacks.MovingAverages(model, 0.5)
    run_in(folder, model, callbacks=[average])
    with average.averaged():
        return folder, model.get_weights()


@keras.saving.register_keras_serializable("warm")
class Own(keras.Model):
    """A subclass, whose layers are found by attribute."""

    def __init__(self, count, **arguments):
        super().__init__(**arguments)
        self.begin, self.end = dense(6), [dense(6) for _ in range(count)]
        self.scale = self.add_weight(shape=(6,), initializer="ones", name="scale")
        self(np.zeros((1, 6), np.float32))
        for weight in self.trainable_variables:
            weight.assign(RNG.normal(size=weight.shape))

    def call(self, x):
        x = self.begin(x) * self.scale
        for layer in self.end:
            x = layer(x)
        return x

    def get_config(self):
        return {"count": len(self.end)}


def named(*names, **arguments):
    return sequential(*(dense(6, name=name) for name in names), **arguments)


def around_a_base(is_nested):
    """The same layers, in a functional model around the base's own or in a Sequential."""
    base = sequential(dense(8, name="c1"), dense(5, name="c2"), name="base")
    colours = dense(3, name="colours")
    if is_nested:
        return sequential(base, colours)
    return keras.Model(base.inputs, colours(base.outputs[0]))


def two_parts(*names):
    """Models of layers whose names Keras makes up, in this order."""
    return sequential(*(sequential(dense(6), dense(6), name=name) for name in names))


def made_up():
    """Two layers whose names Keras makes up, before one with a name."""
    return sequential(dense(5), dense(5), dense(2, name="head"))


def exported(model):
    """As a run's final model has the one that was trained."""
    inputs = keras.Input(model.input_shape[1:])
    return keras.Model(inputs, keras.layers.Softmax()(model(inputs)))


def in_two_places(first, second, *more):
    """A layer, or two of them, in two models with names; and what follows these."""
    parts = [keras.Sequential([one], name=name) for one, name in ((first, "p1"), (second, "p2"))]
    return sequential(*parts, *more)


# The model in the file, the one that takes from it, and the layers that keep their own weights.
TAKEN = {
    "the same": (usual, usual, []),
    "made-up names": (*[lambda: sequential(dense(5), dense(5), dense(5), width=5)] * 2, []),
    "by kind and number `head` would be another": (
        lambda: named("trunk", "head"), lambda: named("trunk", "new", "head"),
        ["new (there nothing, here float32 [6, 6], float32 [6])"],
    ),
    "another shape": (
        usual, lambda: usual(3),
        ["head (there float32 [8, 2], float32 [2], here float32 [8, 3], float32 [3])"],
    ),
    "a subclass": (lambda: Own(1), lambda: Own(1), []),
    "within the exported one": (lambda: exported(made_up()), made_up, []),
    "an exported one within another": (lambda: exported(exported(made_up())), made_up, []),
    "a base here": (lambda: around_a_base(False), lambda: around_a_base(True), []),
    "a base there": (lambda: around_a_base(True), lambda: around_a_base(False), []),
}  # fmt: skip


class TestLayers:
    @pytest.mark.parametrize("which", TAKEN)
    def test_take_those_of_the_same_name_and_shape(self, tmp_path, which):
        make_source, make_model, keep = TAKEN[which]
        source, model = make_source(), make_model()
        before = model.get_weights()
        result = warm_start.take(saved(tmp_path, source), model)
        assert result["kept"] == keep
        left = source.get_weights()
        if which == "another shape":
            left[-2:] = before[-2:]
        elif keep:
            new = model.get_layer("new")
            place = next(n for n, v in enumerate(model.weights) if v is new.weights[0])
            left[place:place] = before[place : place + 2]
        assert_same(model.get_weights(), left)

    @pytest.mark.parametrize(
        ("source", "model"),
        [
            # One of two layers without a name of its own could be either of them.
            (lambda: named("dense_1", "dense_2"), lambda: named("dense_2")),
            (lambda: sequential(dense(6)), lambda: sequential(dense(6), dense(6))),
            (lambda: sequential(named("c", name="a"), named("c", name="b")), lambda: named("c")),
            # And a layer that is used twice here any of two there.
            (lambda: in_two_places(dense(6), dense(6)), lambda: in_two_places(*[dense(6)] * 2)),
        ],
    )
    def test_that_could_go_in_several_ways_go_nowhere(self, tmp_path, source, model):
        path, model = saved(tmp_path, source()), model()
        before = model.get_weights()
        with pytest.raises(warm_start.WarmStartError, match="no layer of the model"):
            warm_start.take(path, model)
        assert_same(model.get_weights(), before)

    def test_that_are_one_here_and_two_there_keep_their_own(self, tmp_path):
        source = in_two_places(dense(6), dense(6), named("c", name="a"))
        model = in_two_places(*[dense(6)] * 2, named("c", name="a"))
        before = model.get_weights()
        assert len(warm_start.take(saved(tmp_path, source), model)["kept"]) == 1
        assert_same(model.get_weights(), [*before[:2], *source.get_weights()[4:]])

    def test_that_changed_places_are_not_confused(self, tmp_path):
        """By kind and order each would get the weights of another, of the same shapes."""
        names = ("encoder", "decoder")
        source, model = two_parts(*names), two_parts(*reversed(names))
        warm_start.take(saved(tmp_path, source), model)
        for name in names:
            assert_same(model.get_layer(name).get_weights(), source.get_layer(name).get_weights())

    def test_that_have_the_made_up_names_of_others_keep_their_own(self, tmp_path):
        """By name they would be others than by their place."""
        model = named("dense_2", "dense_1", "last")
        before = model.get_weights()[:4]
        result = warm_start.take(saved(tmp_path, named("dense_1", "dense_2", "last")), model)
        assert len(result["kept"]) == 2
        assert_same(model.get_weights()[:4], before)

    def test_within_a_model_that_gained_layers_without_names_keep_their_own(self, tmp_path):
        source, model = Own(1), Own(2)
        before = model.begin.get_weights() + model.end[0].get_weights()
        result = warm_start.take(saved(tmp_path, source), model)
        assert len(result["kept"]) == 3
        np.testing.assert_array_equal(model.scale.value, source.scale.value)
        assert_same(model.begin.get_weights() + model.end[0].get_weights(), before)

    def test_of_classes_that_only_the_program_has_are_known(self, tmp_path):
        class Unregistered(keras.layers.Dense):
            pass

        source, model = (sequential(Unregistered(6), dense(2)) for _ in range(2))
        assert warm_start.take(saved(tmp_path, source), model)["kept"] == []
        assert_same(model.get_weights(), source.get_weights())

    def test_whose_code_is_in_the_file_are_refused(self, tmp_path):
        source = sequential(keras.layers.Lambda(lambda x: 2 * x), dense(2))
        with pytest.raises(warm_start.WarmStartError, match="saved.keras cannot be read"):
            warm_start.take(saved(tmp_path, source), sequential(dense(2)))


class TestState:
    def test_begins_at_the_weights_but_for_draws_and_optimizer(self, tmp_path):
        source, model = toys.dropout_classifier(), toys.dropout_classifier()
        source.get_layer("norm").moving_mean.assign(np.full(16, 7.0))
        model.get_layer("drop").seed_generator.state.assign([3, 4])
        warm_start.take(saved(tmp_path, source), model)
        assert_same(model.trainable_variables, source.trainable_variables)
        np.testing.assert_array_equal(model.get_layer("norm").moving_mean, np.full(16, 7.0))
        assert list(model.get_layer("drop").seed_generator.state.numpy()) == [3, 4]

    def test_what_a_normalization_learned_is_taken_too(self, tmp_path):
        """Graphs have it as constants; the first loss is by those that were taken."""

        def model(data):
            layer = keras.layers.Normalization()
            layer.adapt(data)
            return toys.on_cpu(
                lambda: keras.Sequential([keras.Input((6,)), layer, dense(2, name="head")])
            )

        source, new, again, other = model(3 * X + 1), model(X), model(X), model(X)
        run_in(tmp_path / "run", new, 1, init_from=saved(tmp_path, source))
        first, *_ = run_folder.read_lines(tmp_path / "run" / "metrics.jsonl")
        source.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        [(inputs, labels)] = arrays.batches(X, Y).batches(0, 1, global_batch_size=16)
        assert first["loss"] == pytest.approx(source.evaluate(inputs, labels, verbose=0), rel=1e-5)
        run_in(tmp_path / "run", again)  # goes on
        warm_start.take(tmp_path / "run" / "checkpoints" / "step-6", other)
        final = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
        for one in (again, other):
            np.testing.assert_allclose(one(X), final(X), rtol=1e-5, atol=1e-6)


class TestARun:
    @pytest.mark.parametrize("within", ["", "checkpoints/step-6"])
    def test_gives_the_weights_that_were_evaluated(self, finished, within):
        folder, evaluated = finished
        warm_start.take(folder / within, model := usual())
        assert_same(model.get_weights(), evaluated)

    def test_whose_summary_is_damaged_gives_its_newest_checkpoint(self, finished, tmp_path):
        folder = shutil.copytree(finished[0], tmp_path / "run")
        (folder / "final_model.json").write_text('{"weights_sha256": ""}')
        assert warm_start.locate(folder).endswith("checkpoints/step-6")

    def test_that_has_no_names_gives_all_or_nothing(self, finished):
        before = (model := usual(3)).get_weights()
        with pytest.raises(warm_start.WarmStartError, match="have no names"):
            warm_start.take(finished[0] / "checkpoints" / "step-4", model)
        assert_same(model.get_weights(), before)

    def test_s_weights_are_where_its_averages_begin(self, finished, tmp_path):
        average = run_callbacks.MovingAverages(model := usual(), 0.999999)
        rate = run_callbacks.LearningRate(lambda seen: 0.0)
        run_in(tmp_path / "run", model, 1, [average, rate], init_from=finished[0])
        assert_same(average.averages, model.trainable_variables)

    @pytest.mark.parametrize("frozen", [(), (1,)])
    def test_with_frozen_layers_gives_them_to_one_with_others(self, tmp_path, frozen):
        """In the checkpoint the order is another; by shapes all of them would fit."""

        def model(*frozen):
            made = sequential(dense(6), dense(6), dense(6), dense(2))
            for place in frozen:
                made.layers[place].trainable = False
            return made

        source = model(1)
        run_in(tmp_path, source, 1)
        warm_start.take(tmp_path / "checkpoints" / "step-3", new := model(*frozen))
        assert_same(new.get_weights(), source.get_weights())


@pytest.mark.parametrize(
    "name", ["", "none", "a.weights.h5", "none.keras", "checkpoints/step-9", "broken.keras"]
)
def test_what_gives_no_weights_is_refused(tmp_path, name):
    for file in ("a.weights.h5", "broken.keras"):
        (tmp_path / file).write_text("text")
    with pytest.raises(warm_start.WarmStartError) as refused:
        warm_start.take(tmp_path / name, usual())
    assert str(refused.value).startswith(f"init_from={tmp_path / name}: ")


@pytest.fixture
def first(run_of, tmp_path):
    """A copy of a run of one step."""
    return shutil.copytree(run_of("--max_steps=1", "--summary_every_steps=0"), tmp_path / "first")


class TestTheCommand:
    def test_begins_with_a_run_and_goes_on_where_it_is_gone(self, first, tmp_path):
        given = [f"--init_from={first}"]
        done = scripts.trained(tmp_path / "new", *given, "--max_steps=1")
        assert str(first / "final_model.keras") in done.stdout
        config = json.loads((tmp_path / "new" / "config.json").read_text())
        recorded = config["resolved"]["init_from"]
        assert (recorded["path"], recorded["kept"]) == (str(first), [])
        first.rename(tmp_path / "elsewhere")
        done = scripts.trained(tmp_path / "new", *given, "--max_steps=2")
        assert "continuing at step 1" in done.stdout
        done = scripts.train(tmp_path / "new", f"--init_from={tmp_path}", "--max_steps=4")
        assert done.returncode == 1
        assert f"--init_from={tmp_path} (the run has {first})" in done.stderr

    @pytest.mark.parametrize(
        "flags", [["--init_from=none"], ["--init_from=none", "--dry_run"], ["--model=resnet"]]
    )
    def test_refuses_what_it_cannot_begin_with(self, first, tmp_path, flags):
        done = scripts.train(tmp_path / "new", f"--init_from={first}", *flags)
        assert done.returncode == 2
        assert "error: --init_from=" in done.stderr or "error: init_from=" in done.stderr
        assert not (tmp_path / "new" / "config.json").exists()
