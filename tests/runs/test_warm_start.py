"""Beginning with weights that are there: which layer finds which, and what that makes of a run."""

import json
import shutil

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf
import toys

import towers
from input_pipeline import arrays
from towers.runs import callbacks as run_callbacks
from towers.runs import checkpoints, run_folder, warm_start

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


def usual(classes=2, *between, **arguments):
    layers = dense(8, activation="relu"), keras.layers.BatchNormalization(), *between
    return sequential(*layers, dense(classes, name="head"), **arguments)


def run_in(folder, model, epochs=2, callbacks=(), num_towers=1, **arguments):
    """A run of three steps an epoch, with checkpoints after each other one and each epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    towers.distribute(model, num_towers, microbatch_size=4)
    run = towers.Run(folder, model, **arguments)
    run.fit(
        arrays.batches(X, Y), batch_size=16, epochs=epochs, callbacks=[*callbacks], verbose=0,
        checkpoint_every_steps=2,
    )  # fmt: skip
    return run


taken = warm_start.take


def values(model):
    return [np.array(variable.value) for variable in model.variables]


def assert_same(these, those):
    assert len(these) == len(those)
    for this, that in zip(these, those, strict=True):
        np.testing.assert_array_equal(this, that)


@pytest.fixture
def saved(tmp_path):
    """Saves a model as both kinds of files; returns one."""

    def save(model, ending=".keras"):
        path = tmp_path / f"saved{ending}"
        model.save(path) if ending == ".keras" else model.save_weights(path)
        return path

    return save


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that has finished, and the weights that are evaluated."""
    folder, model = tmp_path_factory.mktemp("warm") / "first", usual()
    average = run_callbacks.MovingAverages(model, 0.5)
    run_in(folder, model, callbacks=[average])
    with average.averaged():
        return folder, values(model)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
class TestLayers:
    def test_of_the_same_model_take_all_as_keras_does(self, saved, ending):
        source, model, oracle = usual(), usual(), usual()
        source.layers[1].moving_mean.assign(np.full(8, 7.0))
        path = saved(source, ending)
        found = taken(path, model)
        assert_same(values(model), values(source))
        if ending == ".weights.h5":
            oracle.load_weights(path)
            assert_same(values(model), values(oracle))
        assert (found.own, found.unused) == ([], [])
        assert found.taken == ["batch_normalization", "dense", "head"]

    def test_are_counted_by_kind_where_keras_has_made_up_their_names(self, saved, ending):
        source = sequential(dense(5), dense(5), dense(5), width=5)
        path = saved(source, ending)
        model = sequential(dense(5), dense(5), dense(5), width=5)
        assert model.layers[0].name not in {layer.name for layer in source.layers}
        taken(path, model)
        assert_same(values(model), values(source))

    def test_with_names_of_their_own_are_found_by_name(self, saved, ending):
        """By kind and number, as Keras counts, `head` would be the third and not the second."""
        source = sequential(dense(6, name="trunk"), dense(6, name="head"))
        model = sequential(dense(6, name="trunk"), dense(6, name="new"), dense(6, name="head"))
        own = values(model)[2:4]
        found = taken(saved(source, ending), model)
        trunk, head = values(source)[:2], values(source)[2:]
        assert_same(values(model), [*trunk, *own, *head])
        assert found.own == ["new (not there)"]

    def test_of_another_shape_keep_their_weights(self, saved, ending):
        source, model = usual(2), usual(3)
        own = values(model.get_layer("head"))
        found = taken(saved(source, ending), model)
        assert_same(values(model)[:-2], values(source)[:-2])
        assert_same(values(model.get_layer("head")), own)
        assert found.own == ["head (there [8, 2] and [2], here [8, 3] and [3])"]
        assert found.unused == ["head"]

    def test_of_a_subclass_are_found_by_attribute(self, saved, ending):
        @keras.saving.register_keras_serializable("warm")
        class Own(keras.Model):
            def __init__(self, count, **arguments):
                super().__init__(**arguments)
                self.begin, self.end = dense(6), [dense(6) for _ in range(count)]
                self.scale = self.add_weight(shape=(6,), initializer="ones", name="scale")

            def call(self, x):
                x = self.begin(x) * self.scale
                for layer in self.end:
                    x = layer(x)
                return x

            def get_config(self):
                return {"count": len(self.end)}

        source, model = Own(1), Own(2)
        for one in (source, model):
            one(np.zeros((1, 6), np.float32))
            for weight in one.trainable_variables:
                weight.assign(RNG.normal(size=weight.shape))
        own = values(model.end[1])
        found = taken(saved(source, ending), model)
        assert found.taken == ["the model itself", "begin", "end/dense"]
        assert found.own == ["end/dense_1 (not there)"]
        assert_same(values(model), [*values(source), *own])

    def test_of_one_kind_with_numbers_of_their_own_are_not_confused(self, saved, ending):
        """By name `dense_2` is the second there, by its place among dense layers the first."""
        source = sequential(dense(6, name="dense_1"), dense(6, name="dense_2"))
        path, model = saved(source, ending), sequential(dense(6, name="dense_2"))
        before = values(model)
        with pytest.raises(warm_start.WarmStartError, match="dense_2 could be dense_2 in the file"):
            taken(path, model)
        assert_same(values(model), before)

    @pytest.mark.parametrize("nested", ["here", "there"])
    def test_within_a_base_are_found_beside_those_around_it(self, saved, ending, nested):
        """The same layers, in a functional model around the base's own or in a Sequential."""

        def model(is_nested):
            base = sequential(dense(8, name="c1"), dense(5, name="c2"), name="base")
            colours = dense(3, name="colours")
            if is_nested:
                return sequential(base, colours)
            return keras.Model(base.inputs, colours(base.outputs[0]))

        source, new = model(nested == "there"), model(nested == "here")
        taken(saved(source, ending), new)
        assert_same(values(new), values(source))

    def test_that_could_go_in_several_ways_go_nowhere(self, saved, ending):
        student, teacher, net = (sequential(dense(6, name="c"), name=n) for n in "abc")
        before = values(net)
        with pytest.raises(warm_start.WarmStartError, match="no layer of the model"):
            taken(saved(sequential(student, teacher), ending), net)
        assert_same(values(net), before)


class TestState:
    def test_begins_at_the_weights_but_for_draws_and_optimizer(self, saved):
        source = toys.dropout_classifier()
        model = toys.dropout_classifier()
        averages = [tf.Variable(weight.value) for weight in model.trainable_variables]
        source.get_layer("norm").moving_mean.assign(np.full(16, 7.0))
        model.get_layer("drop").seed_generator.state.assign([3, 4])
        taken(saved(source), model, averages)
        expected = [np.array(w.value) for w in source.trainable_variables]
        assert_same([average.numpy() for average in averages], expected)
        np.testing.assert_array_equal(model.get_layer("norm").moving_mean, np.full(16, 7.0))
        assert list(model.get_layer("drop").seed_generator.state.numpy()) == [3, 4]

    def test_what_a_normalization_learned_is_taken_too(self, tmp_path, saved):
        """Graphs have it as constants; the first loss is by those that were taken."""

        def model(data):
            layer = keras.layers.Normalization()
            layer.adapt(data)
            return toys.on_cpu(
                lambda: keras.Sequential([keras.Input((6,)), layer, dense(2, name="head")])
            )

        source, new, again, other = model(3 * X + 1), model(X), model(X), model(X)
        run_in(tmp_path / "run", new, 1, init_from=saved(source))
        first, *_ = run_folder.read_lines(tmp_path / "run" / "metrics.jsonl")
        source.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        [(inputs, labels)] = arrays.batches(X, Y).batches(
            0, 1, global_batch_size=16, share=range(16)
        )
        assert first["loss"] == pytest.approx(source.evaluate(inputs, labels, verbose=0), rel=1e-5)
        run_in(tmp_path / "run", again)  # goes on
        taken(tmp_path / "run" / "checkpoints" / "step-6", other)
        final = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
        for one in (again, other):
            np.testing.assert_allclose(one(X), final(X), rtol=1e-5, atol=1e-6)


class TestARun:
    def test_of_a_run_gives_the_weights_that_were_evaluated(self, finished):
        folder, evaluated = finished
        found = taken(folder, model := usual())
        assert_same(values(model), evaluated)
        assert found.file == str(folder / "final_model.keras")

    def test_of_a_checkpoint_gives_the_same(self, finished):
        folder, evaluated = finished
        taken(folder / "checkpoints" / "step-6", model := usual())
        assert_same(values(model), evaluated)

    def test_that_has_no_names_gives_all_or_nothing(self, finished):
        before = values(model := usual(3))
        with pytest.raises(warm_start.WarmStartError, match="have no names"):
            taken(finished[0] / "checkpoints" / "step-4", model)
        assert_same(values(model), before)

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
        checkpoint = tmp_path / "checkpoints" / "step-3"
        found = taken(checkpoint, new := model(*frozen))
        assert_same(values(new), values(source))
        assert len(found.taken) == 4


def test_a_layer_with_lora_takes_a_kernel_as_keras_does(saved):
    source = sequential(dense(6, name="a"), dense(2, name="b"))
    model = sequential(dense(6, name="a"), dense(2, name="b"))
    model.layers[0].enable_lora(2)
    taken(saved(source), model)
    np.testing.assert_allclose(model.predict(X), source.predict(X))


def file_of(folder, text):
    path = folder / "broken.keras"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: folder,
        lambda folder: folder / "none",
        lambda folder: file_of(folder, "text").rename(folder / "a.h5"),
        lambda folder: folder / "none.keras",
        lambda folder: folder / "checkpoints" / "step-9",
        lambda folder: file_of(folder, "text"),
    ],
)
def test_what_gives_no_weights_is_refused(tmp_path, given):
    path = given(tmp_path)
    with pytest.raises(warm_start.WarmStartError) as refused:
        taken(path, usual())
    assert str(refused.value).startswith(f"init_from={path}: ")


class TestWholeRuns:
    @pytest.mark.parametrize("then", ["the same", "left out"])
    def test_go_on_where_what_they_began_with_is_gone(self, finished, tmp_path, then):
        source = shutil.copytree(finished[0], tmp_path / "source")
        run_in(tmp_path / "new", usual(), 1, init_from=source)
        shutil.rmtree(source)
        run = run_in(tmp_path / "new", usual(), init_from=source if then == "the same" else None)
        assert run.state.step == 6
        recorded = json.loads((tmp_path / "new" / "config.json").read_text())["resolved"]
        assert recorded["init_from"]["path"] == str(source)

    def test_have_a_hash_of_their_own_in_their_checkpoints(self, finished, tmp_path, saved):
        """A checkpoint of a run that began with other weights is another run's."""
        for name, source in (("a", finished[0]), ("b", saved(usual()))):
            run_in(tmp_path / name, usual(), 1, init_from=source)
        b = tmp_path / "b" / "checkpoints"
        shutil.rmtree(b)
        shutil.copytree(tmp_path / "a" / "checkpoints", b)
        with pytest.raises(checkpoints.CheckpointError, match="to another run"):
            run_in(tmp_path / "b", usual())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command") / "first"
    scripts.trained(folder, "--moving_average_decay=0.9")
    return folder


class TestTheCommand:
    def test_begins_with_a_run_and_goes_on_without_it(self, first, tmp_path):
        from_it = f"--init_from={first}"
        done = scripts.trained(tmp_path / "new", from_it, "--learning_rate=0.01", "--max_steps=2")
        assert "final_model.keras: 7 of 7 layers with weights" in " ".join(done.stdout.split())
        done = scripts.trained(tmp_path / "new", "--learning_rate=0.01", "--max_steps=3")
        assert "continuing at step 2" in done.stdout
        done = scripts.train(
            tmp_path / "new", f"--init_from={tmp_path}", "--learning_rate=0.01", "--max_steps=4"
        )
        assert done.returncode == 1
        assert f"--init_from={tmp_path} (the run has {first})" in done.stderr

    @pytest.mark.parametrize(
        "flags",
        [["--init_from=none"], ["--init_from=none", "--dry_run"], ["--model=resnet"]],
    )
    def test_refuses_what_it_cannot_begin_with(self, first, tmp_path, flags):
        done = scripts.train(tmp_path / "new", f"--init_from={first}", *flags)
        assert done.returncode == 2
        assert "error: --init_from=" in done.stderr or "error: init_from=" in done.stderr
        assert not (tmp_path / "new").exists()
