"""Keras's fit in a folder: the same run, whatever happens to it."""

import base64
import contextlib
import errno
import io
import json
import shutil
import signal
import sys
import types

import fit_program
import forked
import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf
import toys

import towers
from input_pipeline import arrays
from towers import conditions, errors, updating, weight_decay
from towers.runs import callback_state, checkpoints, interrupts, run_errors, run_folder
from towers.runs import callbacks as run_callbacks

PROGRAM = fit_program.__file__


def ended(folder, towers_=1, **wanted):
    """The program in a process of its own, once it has ended."""
    told = json.dumps({"folder": str(folder), "towers": towers_} | wanted)
    return forked.run([sys.executable, PROGRAM, told], timeout=240)


def result(folder, towers_=1, **wanted) -> dict:
    """What the program comes to."""
    done = ended(folder, towers_, **wanted)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def log(folder) -> list[dict]:
    """The lines of metrics.jsonl without times."""
    return scripts.values_of(scripts.lines_of(folder / "metrics.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to: its folder, and what it came to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, result(folder)


@pytest.mark.parametrize("ends", [[(2, 3)], pytest.param([(2, 4), (3, 3)], marks=pytest.mark.long)])
def test_a_killed_run_ends_as_if_it_had_not_been_on_any_number_of_towers(whole, ends, tmp_path):
    """Step 4 ends the first epoch; after 3 more the newest checkpoint is a step old."""
    for towers_, kill_at in ends:
        assert ended(tmp_path / "run", towers_, kill_at=kill_at).returncode == -9
    assert result(tmp_path / "run", 3) == whole[1]
    assert log(tmp_path / "run") == log(whole[0])


@pytest.mark.parametrize("kill_at", [0, pytest.param(7, marks=pytest.mark.long)])
def test_two_workers_are_one_and_a_lost_one_costs_nothing(whole, several, kill_at, tmp_path):
    """Step 7 ends the second epoch: the chief then waits for the other in its evaluation."""
    two = several()
    for index in range(2):
        told = {"folder": str(tmp_path / f"run-{index}"), "towers": 2 - index}
        two.start(index, PROGRAM, json.dumps(told | {"kill_at": kill_at, "worker": 1}))
    if kill_at:
        assert [two.ended(index)[0] for index in (1, 0)] == [-9, 138]
        printed = result(tmp_path / "run-0", 3)
    else:
        printed = two.printed(0)
    assert printed == whole[1]
    assert not (tmp_path / "run-1").exists()


def compiled(optimizer=None, dtype=None):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu", dtype=dtype), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return towers.distribute(model, 2, microbatch_size=32)


def fit(folder, model=None, epochs=2, callbacks=(), **given):
    x, y = fit_program.data()
    run = towers.Run(folder, model or compiled())
    return run, run.fit(
        arrays.batches(x, y), batch_size=64, epochs=epochs, verbose=0, callbacks=callbacks,
        validation_data=(x[:64], y[:64]), **given,
    )  # fmt: skip


@pytest.mark.parametrize("is_weighted", [False, True])
def test_is_what_keras_s_fit_is(is_weighted, tmp_path, capfd):
    """Weights, evaluations now and then, and an optimizer that has averages at the end."""
    x, y = (part[:192] for part in fit_program.data())  # three batches
    weight = np.linspace(0.1, 2, 192)
    told = {"batch_size": 64, "epochs": 3, "verbose": int(is_weighted), "validation_freq": 2}
    validation = (x[:70], y[:70], weight[:70])[: 2 + is_weighted]
    batches = [(x[:64], y[:64]), (x[64:70], y[64:70])]  # a list of them is evaluated, too
    model, plain = (
        compiled(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)) for _ in range(2)
    )
    source = arrays.batches(x, y, weight, shuffle=False)
    run, other = towers.Run(tmp_path / "run", model), validation if is_weighted else batches
    done = run.fit(source, validation_data=other, **told)
    told |= {"sample_weight": weight, "shuffle": False, "validation_data": validation}
    assert done.history == plain.fit(x, y, **told).history
    assert capfd.readouterr().out.count("Epoch 1/3\n") == 2 * is_weighted
    for weight, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())
    loaded = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
    for weight, other in zip(loaded.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())


@pytest.mark.parametrize("number, error", [(errno.EPIPE, towers.Stopped), (errno.ENOSPC, OSError)])
def test_lines_that_nobody_reads_stop_a_run(number, error, tmp_path):
    def show(line):
        raise OSError(number, "show")

    with pytest.raises(error):
        fit(tmp_path / "run", callbacks=[run_callbacks.Log(show=show)])


def test_a_run_is_known_by_what_defines_it(tmp_path):
    x, y = fit_program.data()

    def train(seed=0, decay=0.9, reduction="mean", weight=1.0, coefficient=0.1, dtype=None):
        model = compiled(dtype=dtype)
        weight_decay.regularize(weight_decay.kernels(model), coefficient)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        model.compile("adam", loss, loss_weights=[weight])
        average = run_callbacks.MovingAverages(model, decay)
        data = arrays.batches(x, y, seed=seed)
        towers.Run(tmp_path, model).fit(data, batch_size=64, callbacks=[average], verbose=0)

    train()
    before = scripts.contents(tmp_path)
    others = {
        "data": {"seed": 1}, "decay": {"decay": 0.8}, "loss": {"reduction": "sum"},
        "loss_weights": {"weight": 2.0}, "variables": {"coefficient": 0.2},
        "layers": {"dtype": "mixed_bfloat16"},
    }  # fmt: skip
    for what, other in others.items():
        with pytest.raises(run_folder.RunFolderError, match=rf"\b{what}\b"):
            train(**other)
        assert scripts.contents(tmp_path) == before


def interrupt(*_):
    raise InterruptedError


class OfEpochs(keras.callbacks.Callback):
    """Notes the losses of each epoch's steps, and begins anew with each."""

    def on_train_begin(self, logs=None):
        self.all, self.count = [], np.zeros(2)

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch = []

    def on_train_batch_end(self, batch, logs=None):
        self.of_epoch.append([batch, float(logs["loss"])])
        self.count = self.count + [1, 2]

    def on_epoch_end(self, epoch, logs=None):
        self.all.append(self.of_epoch)

    def on_train_end(self, logs=None):
        self.all.append("end")


def test_callbacks_of_a_resumed_run_go_on_as_if_nothing_had_happened(tmp_path):
    """They do not do twice what they have done, and go on within an epoch."""
    ends = {}
    for name, step in (("whole", 0), ("failed", 6), ("failed", 0)):  # within an epoch
        log, own = tmp_path / f"{name}.csv", OfEpochs()
        if not log.exists():
            log.write_text("of another run")
        chain = [
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.5),
            keras.callbacks.CSVLogger(log),
            own,
            fit_program.At(step, interrupt),
        ]
        with contextlib.suppress(InterruptedError):
            run, done = fit(tmp_path / name, epochs=5, callbacks=chain, checkpoint_every_steps=1)
            notes = own.all, own.count.tolist()
            ends[name] = run.state.sha256(), done.history, notes, log.read_text()
    assert ends["failed"] == ends["whole"] and ends["whole"][-1].startswith("epoch,")
    assert len(own.all) == 4 and own.all[-1] == "end"  # stopped early


class Fault(run_callbacks.RunCallback):
    """Loses a worker in the first step of the second epoch, or is told to stop later in it.

    Where it halts, the training itself ends within that epoch.
    """

    def __init__(self, kind, halts):
        super().__init__()
        self.kind, self.halts = kind, halts

    def on_train_batch_begin(self, batch, logs=None):
        if self.kind == "lost" and self.run.state.step == 4:
            raise errors.GoneError

    def on_train_batch_end(self, batch, logs=None):
        if self.kind == "stopped" and self.run.state.step == 7 - self.halts:
            self.run.stop(signal.SIGTERM)
        if self.halts and self.run.state.step == 6:
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("kind", "halts"),
    [("lost", 0), pytest.param("stopped", 0, marks=pytest.mark.long), ("stopped", 1)],
)
def test_what_ends_a_run_at_the_edge_of_an_epoch_costs_nothing(kind, halts, tmp_path):
    """A schedule does not multiply the rate twice, and the last evaluation is made up for."""
    ends = {}
    for name, fault in (("whole", None), ("ended", kind), ("ended", None)):
        halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        ended = pytest.raises((errors.GoneError, towers.Stopped))
        with ended if fault else contextlib.nullcontext():
            run, done = fit(tmp_path / name, callbacks=[halved, Fault(fault, halts)])
            ends[name] = run.state.sha256(), done.history
    assert ends["ended"] == ends["whole"]


def test_a_run_past_its_end_or_without_its_checkpoints_is_refused(tmp_path):
    fit(tmp_path / "run")
    with pytest.raises(run_errors.TrainingError, match=r"\b7\b.*\b4\b"):
        fit(tmp_path / "run", epochs=1)
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(checkpoints.CheckpointError, match=r"\b7\b"):
        fit(tmp_path / "run")


def test_a_run_that_a_callback_has_stopped_is_complete(tmp_path):
    def stop(epoch, logs):
        model.stop_training = epoch == 1

    for callbacks in ([keras.callbacks.LambdaCallback(on_epoch_end=stop)], []):
        _, done = fit(tmp_path / "run", model := compiled(), epochs=5, callbacks=callbacks)
        assert done.step == 7


def test_callbacks_remember_no_clock():
    """The time since a line before a resume is nothing to the one after it."""
    log = run_callbacks.Log()
    log.run = types.SimpleNamespace(state=types.SimpleNamespace(step=0))
    memory = callback_state.Memory([log])
    log.on_train_begin()
    assert "_since" not in str(memory.collect())


def test_what_callbacks_remember_runs_no_code():
    np.save(file := io.BytesIO(), np.array([print], object))  # a pickle
    pickled = {"kept": {"array": base64.b64encode(file.getvalue()).decode()}}
    with pytest.raises(ValueError):
        callback_state.Memory([keras.callbacks.Callback()]).restore({"Callback 0": pickled})


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_of_averages_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match=f"^decay={decay}"):
        run_callbacks.MovingAverages(compiled(), decay)


def test_a_folder_that_is_moved_during_a_save_is_not_written_into(tmp_path, monkeypatch):
    """TensorFlow makes it again; at most the checkpoint is there then."""
    folder, save = tmp_path / "run", checkpoints.save

    def move_and_save(*arguments):
        folder.rename(tmp_path / "elsewhere")
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", move_and_save)
    with pytest.raises(run_folder.RunFolderError, match=str(folder)):
        fit(folder, callbacks=[run_callbacks.Log(1)], checkpoint_every_steps=1)
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "memory"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), "memory"),
        (tf.errors.UnimplementedError(None, None, "no such kernel\nof mine"), "^no such kernel$"),
        (tf.errors.InvalidArgumentError(None, None, "x\nTrying to access resource a\ny"), " a$"),
        (tf.errors.InvalidArgumentError(None, None, "another"), None),
        (ValueError("mine"), None),
    ],
)
def test_errors_of_a_step_are_explained(error, message):
    """Those of a user's own code pass."""
    kind = run_errors.TrainingError if message else type(error)
    with pytest.raises(kind, match=message) as raised, run_errors.explained("step 7"):
        raise error
    assert message or raised.value is error


def test_what_is_not_finite_is_explained_with_its_step():
    with pytest.raises(run_errors.TrainingError, match="^step 7: "), run_errors.explained("step 7"):
        updating.check_finite(tf.constant(False))


def test_no_weight_that_is_not_a_number_is_saved(tmp_path):
    def spoil(batch, logs):
        if batch == 2:
            model.weights[0].assign(model.weights[0] * np.nan)

    model, callback = compiled(), keras.callbacks.LambdaCallback(on_train_batch_end=spoil)
    with pytest.raises(towers.UserError):
        fit(tmp_path / "run", model, callbacks=[callback], checkpoint_every_steps=1)
    assert list(checkpoints.by_step(tmp_path / "run" / "checkpoints")) == [1, 2]


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_callback_that_compiles_or_freezes_is_refused_before_a_step_and_a_save(hook, tmp_path):
    """The run could not go on from the checkpoint, or would show losses of 0."""

    def change(epoch, logs):
        if hook == "on_epoch_end":
            model.trainable = False
        elif epoch:
            model.compile(model.optimizer, model.loss)

    model, chain = compiled(), [keras.callbacks.LambdaCallback(**{hook: change})]
    with pytest.raises(ValueError, match="compile"):
        fit(tmp_path / "run", model, callbacks=chain, checkpoint_every_steps=4)
    assert int(model.optimizer.iterations) == 4
    assert len(checkpoints.by_step(tmp_path / "run/checkpoints")) == (hook == "on_epoch_begin")


@pytest.mark.parametrize(
    "given",
    [{"batch_size": 0}, {"batch_size": 201}, {"epochs": 1.5}, {"max_steps": 0}, {"x": [1, 2]}],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(given, tmp_path):
    source = arrays.batches(*fit_program.data())
    with pytest.raises((TypeError, ValueError), match=next(iter(given))):
        towers.Run(tmp_path / "run", compiled()).fit(**{"x": source, "batch_size": 64} | given)
    assert not (tmp_path / "run").exists()


def test_an_epoch_that_max_steps_cuts_ends_once_for_callbacks_that_count(tmp_path):
    """EarlyStopping would have another `best` than in a run that is not cut."""
    cut, options = {"max_steps": 5}, {"checkpoint_every_steps": 0}
    stop = lambda: [keras.callbacks.EarlyStopping("loss", patience=9)]  # noqa: E731
    for name, callbacks in (("counts", stop), ("whole", list)):
        fit(tmp_path / name, compiled(), callbacks=callbacks(), **cut | options)
    with pytest.raises(towers.UserError, match="EarlyStopping"):
        fit(tmp_path / "counts", compiled(), callbacks=stop(), **options)
    fit(tmp_path / "counts", compiled(), callbacks=stop(), **cut | options)  # as it has ended
    hashes = [fit(tmp_path / name, compiled(), **options)[1] for name in ("whole", "alone")]
    assert hashes[0].weights_sha256 == hashes[1].weights_sha256


def test_a_model_may_have_no_loss_but_its_layers_and_no_labels(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.ActivityRegularization(0.1)])
    model.add(keras.layers.Dense(1, kernel_regularizer="l2"))
    model.compile("sgd")
    towers.distribute(model, 2)
    source = arrays.batches(np.ones((32, 3), np.float32))
    done = towers.Run(tmp_path / "run", model).fit(source, batch_size=1, epochs=2, verbose=0)
    assert done.history["loss"][1] < done.history["loss"][0]


def test_what_keras_cannot_save_is_refused_before_the_first_step(tmp_path):
    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    model = compiled(keras.optimizers.SGD(Rate()))
    with pytest.raises(ValueError, match="get_config"):
        fit(tmp_path / "run", model)
    assert not int(model.optimizer.iterations)


def test_a_run_says_where_it_goes_on_with_something_else(tmp_path, capsys, monkeypatch):
    """Or starts over; a change that lasted no step, as where the run cannot go on, is none."""
    here, stop = conditions.environment(), keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    starts = ("76", 1, [stop]), ("76", 1, []), ("77", 2, [stop]), ("78", 2, []), ("78", 3, [])
    for version, epochs, callbacks in starts:
        monkeypatch.setattr(conditions, "environment", (here | {"keras": version}).copy)
        with contextlib.suppress(InterruptedError):
            fit(tmp_path / "run", epochs=epochs, callbacks=callbacks)
    printed = capsys.readouterr().out
    assert "over at step 0" in printed and "keras 77" in printed
    [change] = json.loads((tmp_path / "run" / "config.json").read_text())["changes"]
    assert change.startswith("from step 4 on, keras 78 ")


def test_the_log_of_a_step_counts_a_short_microbatch_by_its_examples(tmp_path):
    x, y = fit_program.data()
    model = compiled(keras.optimizers.SGD(0.0))
    source = arrays.batches(x[:40], y[:40])
    towers.Run(tmp_path / "run", model).fit(source, batch_size=40, verbose=0)
    (line, _) = log(tmp_path / "run")
    assert line["loss"] == pytest.approx(model.evaluate(x[:40], y[:40], verbose=0)[0], rel=1e-5)


def test_averages_of_other_weights_than_those_that_are_trained_are_refused(tmp_path):
    """A checkpoint would not have them."""
    averages = [run_callbacks.MovingAverages(model := compiled(), decay) for decay in (0.5, 0.9)]
    with pytest.raises(ValueError, match="moving averages, of 4 trainable weights"):
        fit(tmp_path / "run", model, callbacks=averages)


@pytest.mark.pitfall(7)
def test_averages_follow_the_weights_and_are_what_is_evaluated_and_saved(tmp_path):
    model, steps = compiled(), []
    average = run_callbacks.MovingAverages(model, 0.9)
    expected = [weight.numpy() for weight in model.trainable_variables]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(model.get_weights())
    )
    chain = [average, note]
    run, done = fit(tmp_path / "run", model, callbacks=chain, checkpoint_every_steps=4)
    for step, weights in enumerate(steps):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = [a - (1 - decay) * (a - w) for a, w in zip(expected, weights, strict=True)]
    for got, wanted in zip(average.averages, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-6)
    loaded = keras.saving.load_model(tmp_path / "run" / "final_model.keras")
    toys.assert_close(loaded.get_weights(), expected, rtol=1e-4, atol=1e-6)
    x, y = fit_program.data()
    outcome = loaded.evaluate(x[:64], y[:64], verbose=0)
    assert done.history["val_loss"][-1] == pytest.approx(outcome[0], rel=1e-5)
    np.testing.assert_equal(model.get_weights(), steps[-1])
    run.restore(4)  # a checkpoint can be looked at: the end of the first epoch
    ours = model.evaluate(x[:64], y[:64], verbose=0)
    assert ours == pytest.approx([done.history[f"val_{name}"][0] for name in ("loss", "accuracy")])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_remembered_and_its_handler_comes_back(number):
    before = signal.getsignal(number)
    with interrupts.Interrupts() as asked:
        signal.raise_signal(number)
        assert asked.received == number
    assert signal.getsignal(number) == before


def test_a_sighup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.Interrupts() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert asked.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_acts_at_once_and_the_first_after_a_sigterm_does_not():
    """The checkpoint that the SIGTERM asked for may be under way."""
    with interrupts.Interrupts() as asked:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert asked.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
