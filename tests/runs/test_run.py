"""Keras's fit in a folder: the same run, whatever happens to it."""

import contextlib
import itertools
import json
import os
import socket
import sys

import fit_program
import forked
import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

import towers
from input_pipeline import arrays
from towers.runs import callback_state, run_errors, run_folder, sources, warm_start
from towers.runs import callbacks as run_callbacks

PROGRAM = fit_program.__file__


def process(folder, towers_=1, environment=None, **wanted):
    """The program in a process of its own; started, not waited for."""
    told = json.dumps({"folder": str(folder), "towers": towers_} | wanted)
    pipes = {"stdout": forked.subprocess.PIPE, "stderr": forked.subprocess.PIPE, "text": True}
    return forked.Popen([sys.executable, PROGRAM, told], env=environment or os.environ, **pipes)


def ended(started) -> tuple[int, dict | None]:
    """Its exit code, and what it printed last."""
    out, error = started.communicate(timeout=240)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert started.returncode or lines, error
    return started.returncode, json.loads(lines[-1]) if lines else None


def result(folder, towers_=1, **wanted) -> dict:
    """What the program comes to."""
    code, printed = ended(process(folder, towers_, **wanted))
    assert code == 0
    return printed


def log(folder) -> list[dict]:
    """The lines of metrics.jsonl without times."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in one.items() if "second" not in k} for one in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to: its folder, and what it came to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, result(folder)


# Step 4 ends the first epoch; after step 5 the newest checkpoint is a step old.
@pytest.mark.parametrize("kills", [(5,), (4, 3)], ids=str)
def test_a_killed_run_ends_as_if_it_had_not_been_on_any_number_of_towers(whole, kills, tmp_path):
    for towers_, kill_at in enumerate(kills, start=2):
        code, _ = ended(process(tmp_path / "run", towers_, kill_at=kill_at))
        assert code == -9
    assert result(tmp_path / "run", 3) == whole[1]
    assert log(tmp_path / "run") == log(whole[0])


def test_a_signal_saves_and_ends_with_its_code(whole, tmp_path):
    code, _ = ended(process(tmp_path / "run", 2, kill_at=5, signal="SIGTERM"))
    assert code == 128 + 15
    assert (tmp_path / "run" / "checkpoints" / "step-5").is_dir()
    assert result(tmp_path / "run") == whole[1]


def test_data_that_cannot_be_read_at_any_position_are_read_on_from_the_start_of_the_epoch(tmp_path):
    expected = result(tmp_path / "whole", arrays=True)
    code, _ = ended(process(tmp_path / "killed", 2, arrays=True, kill_at=7))
    assert code == -9
    assert result(tmp_path / "killed", 3, arrays=True) == expected


def test_a_finished_run_is_not_trained_again(whole):
    before = log(whole[0])
    assert result(whole[0], 2) == whole[1]
    assert log(whole[0]) == before


@pytest.mark.parametrize(
    "task",
    [
        name if name == "two_by_two" else pytest.param(name, marks=pytest.mark.long)
        for name in models.TASKS | models.LARGE
    ],
)
def test_so_does_one_of_any_model_and_the_command_compares_them(task, tmp_path):
    """Of several inputs and outputs, with the rows of an embedding, a subclass, an application."""
    expected = result(tmp_path / "whole", task=task)
    code, _ = ended(process(tmp_path / "killed", 2, task=task, kill_at=6))
    assert code == -9
    assert result(tmp_path / "killed", 3, task=task) == expected
    assert log(tmp_path / "killed") == log(tmp_path / "whole")
    program = [sys.executable, "-m", "towers_cli.compare", "whole", "killed"]
    compared = forked.run(program, timeout=100, cwd=tmp_path)
    assert compared.returncode == 0, compared.stdout
    assert "hashes of the state: the same at all " in compared.stdout


def of_two_workers(tmp_path, *given) -> list[tuple[int, dict | None]]:
    """How two workers ended, of which each is given its own."""
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as b:
        addresses = [f"localhost:{server.getsockname()[1]}" for server in (one, b)]
    started = []
    for index, own in enumerate(given):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        folder, environment = tmp_path / f"run-{index}", os.environ | {"TF_CONFIG": config}
        started.append(process(folder, 2 - index, environment, **own))
    return [*map(ended, started)]


@pytest.mark.parametrize("kill_at", [0, pytest.param(7, marks=pytest.mark.long)])
def test_two_workers_are_one_and_a_lost_one_costs_nothing(whole, kill_at, tmp_path):
    """Step 7 ends the second epoch: the chief then waits for the other in its evaluation."""
    given = {"kill_at": kill_at, "worker": 1}
    (code, printed), (other_code, _) = of_two_workers(tmp_path, given, given)
    if kill_at:
        assert (other_code, code) == (-9, 138)
        printed = result(tmp_path / "run-0", 3)
    assert printed == whole[1]
    assert not (tmp_path / "run-1").exists()


@pytest.mark.long
def test_the_chief_alone_has_the_weights_that_two_workers_begin_with(whole, tmp_path):
    given = [{"init_from": str(whole[0])}, {"init_from": "nowhere"}]
    (_, printed), _ = of_two_workers(tmp_path, *given)
    assert printed == result(tmp_path / "alone", **given[0]) != whole[1]


def test_workers_that_train_differently_are_told(tmp_path):
    for code, printed in of_two_workers(tmp_path, {}, {"decay": 0.8}):
        assert (code, printed) == (1, None)
    assert not (tmp_path / "run-0" / "config.json").exists()


def compiled(seed=0, optimizer=None):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return towers.distribute(model, 2, microbatch_size=16)


def fit(folder, model=None, epochs=2, callbacks=(), shuffle=True, **given):
    x, y = fit_program.data()
    run = towers.Run(folder, model or compiled(), **given)
    return run, run.fit(
        x, y, batch_size=64, epochs=epochs, verbose=0, callbacks=callbacks, shuffle=shuffle,
        validation_data=(x[:70], y[:70]),
    )  # fmt: skip


def test_is_what_keras_s_fit_is(tmp_path):
    x, y = fit_program.data()
    run, done = fit(tmp_path / "run", shuffle=False)
    plain = compiled()
    expected = plain.fit(
        x, y, batch_size=64, epochs=2, verbose=0, shuffle=False, validation_data=(x[:70], y[:70])
    )
    assert done.history == expected.history
    for weight, other in zip(run.model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())
    loaded = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
    np.testing.assert_allclose(
        loaded.predict(x[:5], verbose=0), plain.predict(x[:5], verbose=0), 1e-6
    )


@pytest.mark.parametrize("weights", ["class_weight", "sample_weight"])
def test_takes_what_keras_s_fit_takes(weights, tmp_path):
    """Weights, evaluations now and then, and an optimizer that has averages at the end."""
    x, y = fit_program.data()
    given = {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "sample_weight": np.linspace(0.1, 2, 200)}
    told = {"batch_size": 64, "epochs": 3, "verbose": 0, weights: given[weights]}
    told |= {"validation_data": (x[:70], y[:70]), "validation_freq": 2}
    model, plain = (
        compiled(optimizer=keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9))
        for _ in range(2)
    )
    told["shuffle"] = False
    done = towers.Run(tmp_path / "run", model).fit(x, y, **told)
    assert done.history == plain.fit(x, y, **told).history
    for weight, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())


def test_arrays_are_shuffled_anew_for_each_epoch(tmp_path):
    x, y = fit_program.data()
    run, plain = towers.Run(tmp_path, compiled()), compiled()
    run.fit(x, y, batch_size=64, epochs=2, verbose=0)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(x))
        plain.fit(x[order], y[order], batch_size=64, shuffle=False, verbose=0)
    for weight, other in zip(run.model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"epochs": 1.5}, {"max_steps": 0}])
def test_impossible_lengths_are_refused(wrong, tmp_path):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        towers.Run(tmp_path / "run", compiled()).fit(*fit_program.data(), **wrong)
    assert not (tmp_path / "run").exists()


def test_a_rate_is_that_of_the_examples_seen_before_the_step(tmp_path):
    model, used = compiled(), []
    rate = run_callbacks.LearningRate(lambda seen: 0.01 / (1 + seen))
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: used.append(float(model.optimizer.learning_rate))
    )
    fit(tmp_path / "run", model, callbacks=[rate, note])
    seen = [0, 64, 128, 192, 200, 264, 328, 392]
    assert used == pytest.approx([0.01 / (1 + count) for count in seen])


def test_what_a_step_shows_is_without_a_loss_scale(tmp_path):
    gradients = []
    for scale in (None, 8.0):
        optimizer = keras.optimizers.SGD(0.1)
        if scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
        run, _ = fit(tmp_path / str(scale), compiled(optimizer=optimizer), epochs=1)
        gradients.append(run.watched.gradients)
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-7)


def test_a_run_that_a_callback_has_stopped_stays_stopped(tmp_path):
    for _ in range(2):
        stop = keras.callbacks.EarlyStopping("val_loss", patience=1)
        model = compiled(optimizer=keras.optimizers.SGD(0.0))
        _, done = fit(tmp_path / "run", model, epochs=9, callbacks=[stop])
        assert done.step == 8 and len(done.history["val_loss"]) == 2


def test_what_fills_an_evaluation_s_batches_up_does_not_count(tmp_path):
    x, y = fit_program.data()
    rest, mask = np.r_[64:70, 60:64], np.arange(10) < 6
    run = towers.Run(tmp_path / "run", compiled())
    done = run.fit(
        x, y, batch_size=64, verbose=0,
        validation_data=[(x[:64], y[:64]), (x[rest], y[rest], mask)],
    )  # fmt: skip
    expected = run.model.evaluate(x[:70], y[:70], batch_size=64, verbose=0)
    assert [done.history[f"val_{name}"][0] for name in ("loss", "accuracy")] == expected


def test_another_run_is_refused_and_changes_nothing(tmp_path):
    fit(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(run_folder.RunFolderError, match="optimizer"):
        fit(tmp_path / "run", compiled(optimizer=keras.optimizers.Adam(2e-2)))
    after = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.parametrize("what", ["data", "decay", "loss"])
def test_a_run_is_known_by(what, tmp_path):
    x, y = fit_program.data()

    def train(seed=0, decay=0.9, reduction="sum_over_batch_size"):
        model = compiled()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile("adam", loss)
        average = run_callbacks.MovingAverages(model, decay)
        data = arrays.batches(x, y, seed=seed)
        towers.Run(tmp_path, model).fit(data, batch_size=64, callbacks=[average], verbose=0)

    train()
    other = {"data": {"seed": 1}, "decay": {"decay": 0.8}, "loss": {"reduction": "mean"}}
    with pytest.raises(run_folder.RunFolderError, match=f"{what}|decay|reduction"):
        train(**other[what])


class OfEpochs(keras.callbacks.Callback):
    """Notes the steps of each epoch, and begins anew with each; may fail after a step."""

    def __init__(self, fails_after):
        super().__init__()
        self._fails_after, self.all = itertools.repeat(fails_after), []

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch = []

    def on_train_batch_end(self, batch, logs=None):
        self.of_epoch.append([batch, float(logs["loss"])])
        if int(self.model.optimizer.iterations) == next(self._fails_after):
            raise InterruptedError

    def on_epoch_end(self, epoch, logs=None):
        self.all.append(self.of_epoch)


def test_a_callback_that_begins_anew_with_each_epoch_goes_on_within_one(tmp_path):
    x, y = fit_program.data()
    found = {}
    for name, fails in (("whole", 0), ("failed", 7), ("failed", 0)):  # step 7 is the third of 4
        found[name] = OfEpochs(fails)
        with contextlib.suppress(InterruptedError):
            towers.Run(tmp_path / name, compiled()).fit(
                x, y, batch_size=64, epochs=2, callbacks=[found[name]], verbose=0,
                checkpoint_every_steps=1,
            )  # fmt: skip
    assert [len(epoch) for epoch in found["whole"].all] == [4, 4]
    assert found["failed"].all == found["whole"].all


class Fails(keras.callbacks.Callback):
    """Ends the program after a step, or at the end of an epoch, as a kill does."""

    def __init__(self, step=0, epoch=0):
        super().__init__()
        self._at = itertools.repeat((step, epoch))  # no plain data

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == next(self._at)[0]:
            raise InterruptedError

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == next(self._at)[1]:
            raise InterruptedError


CHANGES_AGAIN = {
    "a rate that falls with each epoch": lambda: keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate * 0.5
    ),
    "a plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
    "a stop": lambda: keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5),
}


@pytest.mark.parametrize("what", CHANGES_AGAIN)
def test_a_resumed_run_does_not_do_twice_what_a_callback_does(what, tmp_path):
    x, y = fit_program.data()
    states = {}
    for name, step in (("whole", 0), ("failed", 7), ("failed", 0)):  # in the second epoch
        model = compiled()
        run = towers.Run(tmp_path / name, model)
        with contextlib.suppress(InterruptedError):
            done = run.fit(
                x, y, batch_size=64, epochs=5, verbose=0, checkpoint_every_steps=1,
                callbacks=[CHANGES_AGAIN[what](), Fails(step)],
            )  # fmt: skip
            states[name] = run.state.sha256(), done.history
    assert states["failed"] == states["whole"]


def test_the_rows_of_a_csv_logger_stay(tmp_path):
    x, y = fit_program.data()
    for step in (6, 0, 0):
        csv = keras.callbacks.CSVLogger(tmp_path / "log.csv")
        with contextlib.suppress(InterruptedError):
            towers.Run(tmp_path / "run", compiled()).fit(
                x, y, batch_size=64, epochs=3, verbose=0, callbacks=[csv, Fails(step)]
            )
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


@pytest.mark.parametrize("name", ["y", "sample_weight", "class_weight", "steps_per_epoch"])
def test_what_a_source_has_itself_is_refused_beside_it(name, tmp_path):
    x, y = fit_program.data()
    run = towers.Run(tmp_path / "run", compiled())
    with pytest.raises(ValueError, match=name):
        run.fit(arrays.batches(x, y), batch_size=64, **{name: 1})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("batch_size", [None, 201])
def test_a_source_needs_a_batch_size_within_an_epoch(batch_size, tmp_path):
    run = towers.Run(tmp_path / "run", compiled())
    with pytest.raises(ValueError, match="batch_size"):
        run.fit(arrays.batches(*fit_program.data()), batch_size=batch_size)
    assert not (tmp_path / "run").exists()


def test_what_keras_cannot_save_is_refused_before_the_first_step(tmp_path):
    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    model = compiled(optimizer=keras.optimizers.SGD(Rate()))
    with pytest.raises(ValueError, match="get_config"):
        fit(tmp_path / "run", model)
    assert not int(model.optimizer.iterations)


def test_a_run_says_where_it_goes_on_with_something_else(tmp_path, capsys):
    fit(tmp_path / "run", epochs=1)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["stretches"][0]["runs_on"]["intra-op threads"] = "77"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    fit(tmp_path / "run")
    assert "77" in capsys.readouterr().out
    stretches = json.loads((tmp_path / "run" / "config.json").read_text())["stretches"]
    assert [one["first_step"] for one in stretches] == [0, 4]


def test_data_that_end_early_end_the_run(tmp_path):
    x, y = fit_program.data()
    batches = ((x[:16], y[:16]) for _ in range(6))
    run = towers.Run(tmp_path / "run", compiled())
    with pytest.warns(UserWarning, match="epoch 3"):
        done = run.fit(batches, steps_per_epoch=3, epochs=4, verbose=0)
    assert done.step == 6 and len(done.history["loss"]) == 2
    with pytest.raises(ValueError, match="batches"):
        nothing = tf.data.Dataset.from_tensor_slices((x[:0], y[:0])).batch(16)
        towers.Run(tmp_path / "none", compiled()).fit(nothing, verbose=0)


def test_the_log_of_a_step_counts_a_short_microbatch_by_its_examples(tmp_path):
    x, y = fit_program.data()
    model = compiled(optimizer=keras.optimizers.SGD(0.0))
    towers.Run(tmp_path / "run", model).fit(x[:20], y[:20], batch_size=20, verbose=0)
    (line, _) = log(tmp_path / "run")
    assert line["loss"] == pytest.approx(model.evaluate(x[:20], y[:20], verbose=0)[0], rel=1e-5)


def test_nothing_is_updated_where_a_loss_is_not_finite(tmp_path):
    x, y = fit_program.data()
    x[70, 0] = np.nan  # in the second batch
    model = compiled()
    weights = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(model.get_weights())
    )
    run = towers.Run(tmp_path / "run", model)
    with pytest.raises(run_errors.TrainingError, match="step 2"):
        run.fit(x, y, batch_size=64, verbose=0, callbacks=[keep], shuffle=False)
    for weight, before in zip(model.get_weights(), weights[0], strict=True):
        np.testing.assert_array_equal(weight, before)


def test_averages_follow_the_weights_and_are_what_is_evaluated_and_saved(tmp_path):
    model, steps = compiled(), []
    average = run_callbacks.MovingAverages(model, 0.9)
    expected = [weight.numpy() for weight in model.trainable_variables]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(model.get_weights())
    )
    _, done = fit(tmp_path / "run", model, callbacks=[average, note])
    for step, weights in enumerate(steps):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [a - (1 - decay) * (a - w) for a, w in zip(expected, weights, strict=True)]
    for got, wanted in zip(average.averages, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-6)
    loaded = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
    for got, wanted in zip(loaded.get_weights(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    x, y = fit_program.data()
    found = loaded.evaluate(x[:70], y[:70], verbose=0)
    assert done.history["val_loss"][-1] == pytest.approx(found[0], rel=1e-5)
    for weight, last in zip(model.get_weights(), steps[-1], strict=True):
        np.testing.assert_array_equal(weight, last)


def test_begins_with_weights_from_elsewhere(tmp_path):
    first, _ = fit(tmp_path / "first")
    second, done = fit(tmp_path / "second", compiled(seed=5), init_from=tmp_path / "first")
    config = json.loads((tmp_path / "second" / "config.json").read_text())
    assert len(config["resolved"]["init_from"]["taken"]) == 2
    again, _ = fit(tmp_path / "third", compiled(seed=6), init_from=tmp_path / "first")
    assert again.state.sha256() == second.state.sha256() != first.state.sha256()
    with pytest.raises(warm_start.WarmStartError, match="init_from"):
        fit(tmp_path / "fourth", init_from=tmp_path / "nothing")


def test_logs_what_a_step_shows_and_tensorboard_has_it(tmp_path):
    model = fit_program.model()
    towers.distribute(model, 2, microbatch_size=16)
    kernel = model.trainable_variables[0]
    decays = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: decays.append(1e-3 * np.sum(kernel.numpy() ** 2))
    )
    accuracy = towers.metrics.Accuracy(3)
    model.compile(model.optimizer, model.loss, metrics=[accuracy])
    _, y = fit_program.data()
    confusion = run_callbacks.Confusion(accuracy, ("a", "b", "c"))
    callbacks = [note, run_callbacks.Log(1), run_callbacks.Histograms(3), confusion]
    _, done = fit(tmp_path / "run", model, callbacks=callbacks)
    lines = [line for line in log(tmp_path / "run") if "learning_rate" in line]
    assert [line["weight_decay"] for line in lines] == pytest.approx(decays, rel=1e-5)
    events = event_accumulator.EventAccumulator(
        str(tmp_path / "run" / "train"), size_guidance={event_accumulator.TENSORS: 0}
    ).Reload()
    shown = [tf.make_ndarray(e.tensor_proto).item() for e in events.Tensors("loss")]
    assert shown == pytest.approx([line["loss"] for line in lines], rel=1e-5)
    assert {node.name.split("/")[0] for node in events.Graph().node} >= {"tower_0", "tower_1"}
    kinds = {tag.split("/")[0] for tag in events.Tags()["tensors"]}
    assert kinds >= {"weights", "gradients", "activations", "sparsity", "by_examples_seen"}
    evaluated = event_accumulator.EventAccumulator(
        str(tmp_path / "run" / "eval"), size_guidance={event_accumulator.TENSORS: 0}
    ).Reload()
    shown = [tf.make_ndarray(e.tensor_proto).item() for e in evaluated.Tensors("loss")]
    assert shown == pytest.approx(done.history["val_loss"], rel=1e-5)
    of_classes = [
        tf.make_ndarray(evaluated.Tensors(f"accuracy_per_class/{name}")[-1].tensor_proto).item()
        for name in "abc"
    ]
    shares = np.bincount(y[:70], minlength=3) / 70
    assert np.dot(of_classes, shares) == pytest.approx(done.history["val_accuracy"][-1], abs=1e-6)
    assert "confusion_matrix" in evaluated.Tags()["tensors"]


def test_a_checkpoint_can_be_looked_at(tmp_path):
    x, y = fit_program.data()
    model = compiled()
    average = run_callbacks.MovingAverages(model, 0.9)
    run, done = fit(tmp_path / "run", model, callbacks=[average])
    run.restore(4)  # the end of the first epoch
    found = model.evaluate(x[:70], y[:70], verbose=0)
    assert found == pytest.approx([done.history[f"val_{name}"][0] for name in ("loss", "accuracy")])


def test_callbacks_remember_plain_data():
    class Mine(keras.callbacks.Callback):
        def __init__(self, filled):
            super().__init__()
            self.count, self.best = (3, np.float32(0.5)) if filled else (0, None)
            self.weights = [np.arange(3.0)] if filled else None
            self.by_epoch = {1: [1, "b", None], 2: (3, {4})} if filled else {}
            self.patience = 2  # given by the program, which may give another one later
            self.open = itertools.count()  # no plain data: stays as the program made it

    began, new = Mine(False), Mine(False)
    memory = callback_state.Memory([began])
    vars(began).update(vars(Mine(True)))
    own, new.patience = new.open, 5
    later = callback_state.Memory([new])
    later.restore(json.loads(json.dumps(memory.collect())))
    assert (new.count, new.best) == (3, np.float32(0.5))
    assert new.by_epoch == {1: [1, "b", None], 2: (3, {4})}
    np.testing.assert_array_equal(new.weights[0], np.arange(3.0))
    assert (new.open, new.patience) == (own, 5)
    assert later.collect() == memory.collect()


def test_a_step_belongs_to_the_epoch_in_which_it_begins():
    x, y = fit_program.data()
    source = arrays.batches(x, y)
    data = sources.FromSource(source, 64, epochs=8)
    assert [data.steps(epoch) for epoch in range(8)] == [4, *[3] * 7]  # 1600 examples, 25 steps
    expected = source.batches(5, 7, global_batch_size=64, share=range(64))
    for (found, _), (right, _) in zip(data.batches(1, 1), expected, strict=True):
        np.testing.assert_array_equal(found, right)
