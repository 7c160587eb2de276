"""A run of one's own model and data: what it does on its way, how it goes on, what it refuses."""

import csv
import json
import os
import shutil
import signal
import threading
import types

import combinations
import keras
import numpy as np
import pytest
import reused
import tensorflow as tf
import toys
from tensorboard.backend.event_processing import event_accumulator

import towers
from input_pipeline import arrays, streams
from towers import worker
from towers.runs import (
    checkpoints,
    definition,
    evaluated,
    run_errors,
    run_folder,
    run_plan,
)
from towers.runs import every as every_module
from towers.support import machine

X = np.linspace(-1, 1, 26, dtype=np.float32).reshape(26, 1)
Y = 3 * X + 1
BATCH = 8


def new_trainer(rate=0.05, **arguments):
    given = {"loss": "mse", "metrics": ["mae"], "num_microbatches": 4} | arguments
    return toys.trainer(
        toys.linear(0.5), keras.optimizers.SGD(rate, momentum=0.9), global_batch_size=BATCH, **given
    )


def trainer_of(**arguments):
    """As `new_trainer`; one that an earlier run has had, if there is one."""
    return reused.trainer(new_trainer, **arguments)


def run_in(folder, trainer=None, **arguments):
    given = {"train": arrays.batches(X, Y), "test": (X, Y), "epochs": 4} | arguments
    return towers.Run(folder, trainer or trainer_of(), **given)


def logged(folder) -> list[dict]:
    return run_folder.read_lines(folder / "metrics.jsonl")


def scalars(folder) -> set:
    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return set(found.Tags()["tensors"])


class Dies(Exception):
    """What ends a program in the middle of a run."""


def dies_at(step):
    def look(event):
        if event.step == step and event.result is not None:
            raise Dies

    return look


class TestOnTheWay:
    def test_is_done_as_often_as_it_was_asked_for(self, tmp_path):
        seen, at_epochs, at_steps = [], [], []
        outcome = run_in(tmp_path).train(
            [
                towers.evaluate(epochs=1),
                towers.checkpoint(steps=5, keep=2),
                towers.log(steps=4),
                towers.verify(steps=6),
                towers.histograms(steps=10),
                seen.append,
                towers.call(lambda event: at_epochs.append(event.step), epochs=2),
                towers.call(lambda event: at_steps.append(event.step), steps=6),
            ]
        )
        assert outcome.step == 13  # of 8 examples: 4 epochs of 26
        evaluated = [line["step"] for line in logged(tmp_path) if "split" in line]
        assert evaluated == [4, 7, 10, 13]  # the first steps behind 26, 52, 78 and 104 examples
        assert at_epochs == [7, 13]
        assert at_steps == [6, 12]
        of_steps = [line["step"] for line in logged(tmp_path) if "step_seconds" in line]
        assert of_steps == [1, 4, 8, 12, 13]
        hashed = [line["step"] for line in logged(tmp_path) if "state_sha256" in line]
        assert hashed == [0, 6, 12, 13]
        assert list(checkpoints.by_step(tmp_path / "checkpoints")) == [10, 13]
        assert [event.step for event in seen] == list(range(1, 14))
        assert [event.step for event in seen if event.evaluation] == evaluated
        assert [event.examples_seen for event in seen][:2] == [8, 16]
        assert seen[3].epoch == 32 / 26
        assert [len(event.evaluations) for event in seen][-1] == 4
        assert all(event.result.losses["total"].shape == [4] for event in seen)
        assert outcome.evaluation == seen[-1].evaluation

    def test_is_shown_under_the_names_of_losses_and_metrics(self, tmp_path):
        run_in(tmp_path, settings={"rate": 0.05}).train([towers.histograms(steps=10)])
        line = logged(tmp_path)[0]
        assert line["learning_rate"] == pytest.approx(0.05)
        assert "mean_squared_error" in line
        assert "accuracy" not in line
        of_training, of_test = scalars(tmp_path / "train"), scalars(tmp_path / "eval")
        assert {"loss/mean_squared_error", "loss/total", "learning_rate", "epoch"} <= of_training
        assert {"loss/mean_squared_error", "mae"} <= of_test
        assert not {tag for tag in of_training | of_test if "accuracy" in tag or "cross" in tag}

    def test_evaluates_each_example_once_by_its_weight(self, tmp_path):
        weight = np.arange(26) % 3
        test = (X, Y, weight)
        outcome = run_in(tmp_path, test=test).train()
        errors = np.abs(outcome.final["mae"] - 0)
        trained = keras.saving.load_model(tmp_path / "final_model.keras")
        expected = np.average(np.abs(trained.predict(X, verbose=0) - Y)[:, 0], weights=weight)
        assert errors == pytest.approx(expected, rel=1e-5)
        assert outcome.final["count"] == (weight > 0).sum()

    def test_needs_no_test_data_and_no_epochs(self, tmp_path):
        outcome = run_in(tmp_path, test=None, epochs=None, steps=5).train()
        assert (outcome.step, outcome.evaluation) == (5, None)
        assert "loss" not in outcome.final
        assert (tmp_path / "final_model.keras").exists()

    def test_takes_weights_and_structures(self, tmp_path):
        source = arrays.batches({"a": X}, [Y], np.arange(26) % 2)
        inputs = keras.Input((1,), name="a")
        model = keras.Model({"a": inputs}, [keras.layers.Dense(1, name="y")(inputs)])
        made = toys.trainer(model, global_batch_size=BATCH, loss=["mse"], num_microbatches=4)
        batches = [({"a": X}, [Y])]
        outcome = run_in(tmp_path, made, train=source, test=batches, steps=3).train()
        assert outcome.final["count"] == 26

    def test_runs_outside_the_main_thread(self, tmp_path):
        run, found = run_in(tmp_path, steps=2), []
        thread = threading.Thread(target=lambda: found.append(run.train()))
        thread.start()
        thread.join()
        assert found[0].step == 2


class TestGoingOn:
    def test_after_a_signal_gives_the_same_bits(self, tmp_path):
        def interrupts(event):
            if event.step == 6 and event.result is not None:
                os.kill(os.getpid(), signal.SIGINT)

        whole = run_in(tmp_path / "whole").train([towers.evaluate(steps=3)])
        seen = []
        with pytest.raises(towers.Stopped) as stopped:
            run_in(tmp_path / "stopped").train([towers.evaluate(steps=3), interrupts])
        assert stopped.value.code == 130
        assert stopped.value.outcome.step == 7
        again = run_in(tmp_path / "stopped", trainer_of(num_towers=4)).train(
            [towers.evaluate(steps=3), seen.append]
        )
        assert again.final == whole.final
        # The step that it goes on from comes first, without a result.
        assert [(e.step, e.result is None) for e in seen[:2]] == [(7, True), (8, False)]
        assert [len(e.evaluations) for e in seen[:3]] == [2, 2, 3]

    @pytest.mark.parametrize("last", [5, 12])
    def test_in_the_program_that_was_stopped(self, tmp_path, last):
        """Somebody presses Ctrl-C in a notebook, at the last step even, and runs the cell again."""
        interrupted = []

        def interrupts(event):
            if event.step == last and not interrupted:
                interrupted.append(event.step)
                os.kill(os.getpid(), signal.SIGINT)

        whole = run_in(tmp_path / "whole").train()
        run = run_in(tmp_path / "stopped")
        with pytest.raises(towers.Stopped) as stopped:
            run.train([interrupts])
        assert stopped.value.outcome.step == last + 1
        assert run.train([interrupts]).final == whole.final

    def test_a_finished_run_is_not_made_again(self, tmp_path, capsys):
        first = run_in(tmp_path).train()
        asked = []
        again = run_in(tmp_path).train([asked.append])
        assert again.final == first.final
        assert asked == []
        assert "the run has finished already, at step 13" in capsys.readouterr().out
        longer = run_in(tmp_path, epochs=5).train()
        assert longer.step == 17

    def test_a_finished_run_gives_its_weights(self, tmp_path):
        """And what a layer has computed of its state, such as the scale of a normalization."""
        made = []
        for adapts in (True, False):
            normalization = keras.layers.Normalization()
            normalization.build([None, 1])
            if adapts:
                normalization.adapt(2 * X + 1)
            with keras.device("cpu:0"):
                model = keras.Sequential([keras.Input([1]), normalization, keras.layers.Dense(1)])
            trainer = toys.trainer(
                model, keras.optimizers.SGD(0.05), global_batch_size=BATCH, loss="mse"
            )
            outcome = run_in(tmp_path, trainer).train()
            made.append((trainer.state.sha256(), model.predict(X).tolist()))
        assert (outcome.step, outcome.evaluation) == (13, None)
        assert made[0] == made[1]

    def test_a_finished_run_without_its_last_checkpoint_is_refused(self, tmp_path):
        """In place of weights that are not those of the run."""
        run_in(tmp_path).train()
        (data,) = (tmp_path / "checkpoints" / "step-13").glob("*.data*")
        whole = data.read_bytes()
        data.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(checkpoints.CheckpointError, match="step-13 cannot be restored"):
            run_in(tmp_path).train()
        data.write_bytes(whole)
        with pytest.raises(Dies):
            run_in(tmp_path, epochs=8).train([towers.checkpoint(steps=15, keep=1), dies_at(16)])
        for _ in range(2):
            with pytest.raises(checkpoints.CheckpointError, match="is not that of step 13"):
                run_in(tmp_path).train()
            shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)

    def test_on_another_number_of_threads_is_said(self, tmp_path, monkeypatch, capsys):
        threads = machine.intra_op_threads()
        run_in(tmp_path, steps=2).train()
        monkeypatch.setattr(machine, "intra_op_threads", lambda: threads + 1)
        run_in(tmp_path, steps=4).train()
        said = f"from step 2 on, intra-op threads {threads + 1} (before: {threads}): the last bits"
        assert said in capsys.readouterr().out

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"trainer": lambda: trainer_of(rate=0.1)}, "optimizer SGD .*0.1.*the run has SGD"),
            (
                {"trainer": lambda: trainer_of(loss="mae")},
                "loss mean_absolute_error .the run has mea",
            ),
            (
                {"trainer": lambda: trainer_of(num_microbatches=2)},
                "num_microbatches 2 .the run has 4",
            ),
            ({"train": lambda: arrays.batches(X, Y + 1)}, "data "),
            ({"train": lambda: arrays.batches(X, Y, seed=1)}, "data "),
        ],
    )
    def test_with_another_definition_is_refused(self, tmp_path, arguments, message):
        run_in(tmp_path, steps=2).train()
        before = sorted(tmp_path.rglob("*"))
        given = {name: make() for name, make in arguments.items()}
        with pytest.raises(
            run_folder.RunFolderError, match=f"{tmp_path} holds a run with other .*{message}"
        ):
            run_in(tmp_path, **given).train()
        assert sorted(tmp_path.rglob("*")) == before

    def test_without_a_checkpoint_starts_over(self, tmp_path, capsys):
        with pytest.raises(Dies):
            run_in(tmp_path).train([dies_at(2)])
        outcome = run_in(tmp_path, trainer_of(rate=0.1)).train()
        assert outcome.step == 13
        assert "has no checkpoint yet and starts over: optimizer SGD" in capsys.readouterr().out

    def test_in_a_folder_of_something_else_is_refused(self, tmp_path):
        (tmp_path / "letter.txt").write_text("dear reader")
        with pytest.raises(run_folder.RunFolderError, match=f"{tmp_path}: holds files but no run"):
            run_in(tmp_path).train()
        assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]

    def test_in_a_folder_of_the_command_is_refused(self, tmp_path):
        (tmp_path / "config.json").write_text('{"settings": {}, "resolved": {}}')
        with pytest.raises(run_folder.RunFolderError, match="holds a run of the command train.py"):
            run_in(tmp_path).train()

    def test_beside_another_process_is_refused(self, tmp_path):
        def begins_another(event):
            with pytest.raises(run_folder.RunFolderError, match="is training in it"):
                run_in(tmp_path, new_trainer()).train()

        run_in(tmp_path, steps=1).train([begins_another])


class TestEarlyStop:
    """Of a rate that is too high the loss is best after the first evaluation."""

    EVERY = (towers.evaluate(steps=2), towers.checkpoint(steps=3))

    def test_comes_after_so_many_evaluations_and_is_the_end(self, tmp_path, capsys):
        stop = towers.stop_early(patience=2)
        outcome = run_in(tmp_path, trainer_of(rate=1.2)).train([*self.EVERY, stop])
        losses = [line["loss"] for line in logged(tmp_path) if "split" in line]
        best = int(np.argmin(losses))
        assert len(losses) == best + 3
        assert outcome.step == 2 * len(losses) < 13
        assert outcome.final["stopped_early"] == (
            f"loss was no better than {losses[best]:.4g} in 2 evaluations"
        )
        again = run_in(tmp_path, trainer_of(rate=1.2)).train([*self.EVERY, stop])
        assert again.step == outcome.step

    def test_comes_where_it_would_have_come_without_an_end_on_the_way(self, tmp_path):
        """The evaluation at the end of five steps is none of those that a longer run counts."""
        every, ends = [towers.evaluate(steps=2), towers.stop_early(patience=2)], {}
        for name, ends_at in (("whole", [13]), ("longer", [5, 13])):
            for steps in ends_at:
                run = run_in(tmp_path / name, trainer_of(rate=1.2), epochs=None, steps=steps)
                ends[name] = run.train([*every, towers.keep_best()]).final
        evaluated = [line["step"] for line in logged(tmp_path / "longer") if "split" in line]
        assert evaluated == [2, 4, 5, 6, 8]
        assert ends["longer"] == ends["whole"]
        best = [
            keras.saving.load_model(tmp_path / name / "best_model.keras").get_weights()
            for name in ("whole", "longer")
        ]
        tf.nest.map_structure(np.testing.assert_array_equal, *best)

    @pytest.mark.parametrize(
        ("step", "checkpoint_at"),
        [
            pytest.param(step, at, marks=() if (step, at) == (3, 3) else pytest.mark.long)
            for step in range(2, 7)
            for at in (1, 2, 3)
        ],
    )
    def test_does_not_forget_what_was_before_a_kill(self, tmp_path, step, checkpoint_at):
        """Wherever it comes: among the evaluation, the checkpoint and the stop of one step."""
        every = [towers.evaluate(steps=2), towers.checkpoint(steps=checkpoint_at)]
        after, ends = [towers.stop_early(patience=1), towers.keep_best()], []
        for folder, dying in ((tmp_path / "whole", 0), (tmp_path / "killed", step)):
            if dying:
                with pytest.raises(Dies):
                    run_in(folder, trainer_of(rate=1.2)).train([*every, dies_at(dying), *after])
            ends.append(run_in(folder, trainer_of(rate=1.2)).train([*every, *after]).final)
        assert ends[0] == ends[1]
        assert ends[0]["step"] == 6
        values = [
            keras.saving.load_model(tmp_path / name / "best_model.keras").get_weights()
            for name in ("whole", "killed")
        ]
        tf.nest.map_structure(np.testing.assert_array_equal, *values)

    def test_on_the_step_of_a_signal_is_the_end_all_the_same(self, tmp_path):
        def stops(event):
            if event.step == 6:
                event.stop("it is step 6")

        def interrupts(event):
            if event.step == 5 and event.result is not None:
                os.kill(os.getpid(), signal.SIGTERM)

        whole = run_in(tmp_path / "whole").train([stops])
        with pytest.raises(towers.Stopped):
            run_in(tmp_path / "stopped").train([stops, interrupts])
        again = run_in(tmp_path / "stopped").train([stops, interrupts])
        assert (again.step, again.final) == (6, whole.final)

    def test_has_a_last_evaluation_that_may_be_the_best(self, tmp_path):
        every = [towers.evaluate(steps=4), towers.keep_best()]
        outcome = run_in(tmp_path).train([*every, lambda e: e.step == 6 and e.stop()])
        best = keras.saving.load_model(tmp_path / "best_model.keras")
        expected = np.mean((best.predict(X, verbose=0) - Y) ** 2)
        assert outcome.final["loss"] == pytest.approx(expected, rel=1e-5)

    def test_at_the_last_step_is_none(self, tmp_path):
        outcome = run_in(tmp_path, steps=3).train([lambda e: e.step == 3 and e.stop()])
        assert "stopped_early" not in outcome.final
        assert run_in(tmp_path, steps=5).train().step == 5

    @pytest.mark.parametrize(
        "values, best", [([np.nan, 0.5, 0.1], 2), ([0.5, np.nan, 0.4], 2), ([np.nan, np.nan], 0)]
    )
    def test_anything_is_better_than_nan(self, values, best):
        assert every_module._best(values, every_module._better("loss", "auto")) == best

    def test_the_best_model_is_kept(self, tmp_path):
        every = [towers.evaluate(steps=1), towers.keep_best(metric="mae")]
        run_in(tmp_path, trainer_of(rate=0.3)).train(every)
        values = [line["mae"] for line in logged(tmp_path) if "split" in line]
        assert min(values) < values[-1]  # so that there is something to keep
        best = keras.saving.load_model(tmp_path / "best_model.keras")
        found = np.abs(best.predict(X, verbose=0) - Y).mean()
        assert found == pytest.approx(min(values), rel=1e-5)

    def test_of_a_metric_that_is_not_there_is_refused(self, tmp_path):
        with pytest.raises(
            ValueError, match="metric='auc': the evaluations have no such number; they have .*mae"
        ):
            run_in(tmp_path).train(
                [towers.evaluate(steps=2), towers.stop_early(metric="auc", mode="max", patience=1)]
            )


class TestKerasCallbacks:
    def test_see_epochs_as_in_fit(self, tmp_path):
        path = tmp_path / "log.csv"
        called = []
        each = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: called.append("begin"),
            on_epoch_begin=lambda epoch, logs: called.append(epoch),
            on_train_end=lambda logs: called.append("end"),
        )
        run_in(tmp_path / "run", epochs=3).train(
            [towers.evaluate(epochs=1), keras.callbacks.CSVLogger(path), each]
        )
        rows = list(csv.DictReader(path.open()))
        lines = [line for line in logged(tmp_path / "run") if "split" in line]
        assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
        assert [float(row["val_mae"]) for row in rows] == [line["mae"] for line in lines]
        assert all(float(row["loss"]) > 0 for row in rows)
        assert called == ["begin", 0, 1, 2, "end"]

    def test_may_stop_the_run(self, tmp_path):
        stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=1e9)
        outcome = run_in(tmp_path, epochs=6).train([towers.evaluate(epochs=1), stop])
        assert outcome.final["stopped_early"] == "a Keras callback stopped it"
        assert outcome.step == 7  # two epochs


class OfMyOwn(keras.Model):
    """A subclass whose constructor takes a layer."""

    def __init__(self, dense, **arguments):
        super().__init__(**arguments)
        self.dense = dense

    def call(self, inputs):
        return self.dense(inputs)

    def get_config(self):
        return super().get_config() | {"dense": keras.saving.serialize_keras_object(self.dense)}

    @classmethod
    def from_config(cls, config):
        dense = keras.saving.deserialize_keras_object(config.pop("dense"))
        return cls(dense, **config)


class OfNoConfig(keras.Model):
    """Keras cannot save it."""

    def __init__(self, function):
        super().__init__()
        self.function, self.dense = function, keras.layers.Dense(1)

    def call(self, inputs):
        return self.function(self.dense(inputs))


def trainer_for(model, **arguments):
    model(X[:1])
    given = {"global_batch_size": BATCH, "num_microbatches": 4, "loss": "mse"} | arguments
    return toys.trainer(toys.on_cpu(lambda: model), keras.optimizers.SGD(0.05), **given)


class TestModelsOfOnesOwn:
    @pytest.mark.parametrize("moving_average_decay", [0.0, 0.9])
    def test_are_saved_with_the_weights_that_are_evaluated(self, tmp_path, moving_average_decay):
        made = trainer_for(
            OfMyOwn(keras.layers.Dense(1)), moving_average_decay=moving_average_decay
        )
        outcome = run_in(tmp_path, made, epochs=2).train([towers.histograms(steps=2)])
        objects = {"OfMyOwn": OfMyOwn}
        loaded = keras.saving.load_model(tmp_path / "final_model.keras", custom_objects=objects)
        found = np.mean((loaded.predict(X, verbose=0) - Y) ** 2)
        assert found == pytest.approx(outcome.final["loss"], rel=1e-5)
        trained = np.mean((made.state.model.predict(X, verbose=0) - Y) ** 2)
        assert (trained == pytest.approx(found, rel=1e-5)) == (moving_average_decay == 0)

    def test_that_keras_cannot_save_are_refused_before_the_first_step(self, tmp_path):
        made = trainer_for(OfNoConfig(lambda outputs: 2 * outputs))
        with pytest.raises(ValueError, match="Keras cannot save the model: .* needs a get_conf"):
            run_in(tmp_path / "run", made).train()
        assert list(tmp_path.iterdir()) == []


GENERATOR = (batch for batch in [(X, Y)])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"train": (X, Y)}, "train is a tuple of 2: must be a source of batches by step, such as"),
        (
            {
                "train": types.SimpleNamespace(
                    num_examples=9, fingerprint="", batches=lambda first, last, *, index, count: []
                )
            },
            r"train.batches must take \(first_step, last_step, \*, global_batch_size, share\): ",
        ),
        ({"train": None}, "train is None: must be a source"),
        ({"test": X}, r"test is float32 \[26, 1\]: must be \(inputs, labels\)"),
        ({"test": (X, Y[:3])}, "test: its arrays must all have the same number.*26, 1.*3, 1"),
        ({"test": (X[:0], Y[:0])}, "test: its arrays must all have the same number"),
        ({"test": (X,)}, "test is a tuple of 1: must be .inputs, labels."),
        (
            {"test": (X, Y, -np.ones(26))},
            "sample_weight: every weight must be finite and at least 0",
        ),
        ({"test": "cifar10"}, "test is 'cifar10': must be"),
        ({"test": GENERATOR}, "test can be iterated over only once"),
        ({"epochs": None}, "epochs and steps are both None: give one"),
        ({"epochs": 0}, "epochs=0: must be above 0"),
        ({"epochs": -1}, "epochs=-1: must be finite and at least 0"),
        ({"epochs": "3"}, "epochs is '3': must be a number"),
        ({"steps": 2.5}, "steps is 2.5: must be an integer"),
        ({"steps": -2}, "steps=-2: must be above 0"),
        ({"folder": 3}, "folder is 3: must be a path"),
        ({"export": "final.keras"}, "export is 'final.keras': must be a function of a model"),
        (
            {"trainer": keras.Sequential()},
            "tower_trainer is of type Sequential: must be a towers.T",
        ),
    ],
)
def test_a_run_of_something_else_is_refused_at_once(tmp_path, arguments, message):
    given = {"folder": tmp_path / "run"} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        run_in(given.pop("folder"), given.pop("trainer", None), **given)
    assert list(tmp_path.iterdir()) == []


class Endless:
    """A source that does not know how long an epoch is."""

    num_examples, fingerprint = None, "endless"

    def batches(self, first_step, last_step, **_):
        return [(X[:BATCH], Y[:BATCH])] * (last_step - first_step)


def without_epochs():
    return {"train": Endless(), "epochs": None, "steps": 9}


def test_epochs_need_not_be_known(tmp_path):
    outcome = run_in(tmp_path, **without_epochs()).train([towers.evaluate(steps=4)])
    assert outcome.step == 9
    assert "epoch" not in outcome.final
    assert all("epoch" not in line for line in logged(tmp_path))


class TestEvaluatingACheckpoint:
    def test_gives_what_the_run_found_there(self, tmp_path):
        run_in(tmp_path).train([towers.evaluate(steps=4), towers.checkpoint(steps=4, keep=9)])
        lines = {line["step"]: line for line in logged(tmp_path) if "split" in line}
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        run = run_in(tmp_path)
        for name, step in (
            (None, 13),
            ("8", 8),
            (8, 8),
            (str(tmp_path / "checkpoints" / "step-4"), 4),
        ):
            found = run.evaluate(name)
            assert (found.loss, found.metrics["mae"]) == (lines[step]["loss"], lines[step]["mae"])
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    def test_is_done_while_the_run_is_at_work(self, tmp_path):
        found = []

        def look(event):
            if event.step == 5:
                found.append(run_in(tmp_path, new_trainer()).evaluate("4").loss)

        every = [towers.evaluate(steps=4), towers.checkpoint(steps=4), look]
        run_in(tmp_path, steps=5).train(every)
        [loss] = [
            line["loss"] for line in logged(tmp_path) if line["step"] == 4 and "split" in line
        ]
        assert found == [loss]

    def test_of_a_run_that_took_weights_needs_them_no_more(self, tmp_path):
        keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="line")]
        ).save(tmp_path / "line.keras")
        run = run_in(tmp_path / "run", init_from=tmp_path / "line.keras", steps=3)
        outcome = run.train([towers.evaluate(steps=3)])
        (tmp_path / "line.keras").unlink()
        assert run_in(tmp_path / "run", steps=3).evaluate().loss == outcome.final["loss"]

    def test_that_is_not_there_is_refused(self, tmp_path):
        with pytest.raises(run_folder.RunFolderError, match="holds no run yet"):
            run_in(tmp_path / "none").evaluate()
        assert not (tmp_path / "none").exists()
        run_in(tmp_path / "run", steps=2).train()
        with pytest.raises(towers.runs.checkpoints.CheckpointError, match="^checkpoint=77: not f"):
            run_in(tmp_path / "run").evaluate(77)
        with pytest.raises(run_folder.RunFolderError, match="holds a run with other settings"):
            run_in(tmp_path / "run", trainer_of(rate=0.5)).evaluate()
        with pytest.raises(ValueError, match="the run has no test data"):
            run_in(tmp_path / "run", test=None).evaluate()


def test_the_types_that_layers_compute_in_are_a_part_of_a_model():
    """They have names, too, and those of layers do not count."""

    def layers(dtype):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype=dtype)])
        return definition.layers(model)["sha256"]

    types = ("float32", "mixed_bfloat16", "mixed_float16")
    assert len({layers(dtype) for dtype in types}) == 3
    assert layers("mixed_float16") == layers("mixed_float16")


@pytest.mark.parametrize(
    "change", ["activation", pytest.param("rate", marks=pytest.mark.long), "frozen"]
)
def test_a_run_of_another_model_is_not_continued(tmp_path, change):
    """Of the same shapes: what Keras saves of the layers is compared."""

    def trainer(changed=""):
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(3, activation="tanh" if changed == "activation" else "relu"),
                keras.layers.BatchNormalization(center=False, scale=False),
                keras.layers.Dropout(0.5 if changed == "rate" else 0.2),
                keras.layers.Dense(1),
            ]
        )
        model.layers[1].trainable = changed != "frozen"
        return toys.trainer(model, loss="mse", global_batch_size=BATCH)

    run_in(tmp_path, trainer(), epochs=1).train()
    with pytest.raises(run_folder.RunFolderError, match="holds a run of another model"):
        run_in(tmp_path, trainer(change), epochs=2).train()
    assert run_in(tmp_path, trainer(), epochs=2).train().step == 7


@pytest.mark.parametrize(
    "export, message",
    [
        (lambda model: None, "export returned None: must be a Keras model"),
        (keras.models.clone_model, "export returned a model without the weight .*line/kernel"),
        (lambda model: model.no_such_thing, "no_such_thing"),
    ],
)
def test_a_model_to_save_that_is_another_is_refused_before_the_first_step(
    tmp_path, export, message
):
    with pytest.raises((AttributeError, TypeError, ValueError), match=message):
        run_in(tmp_path / "run", export=export).train()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "every, message",
    [
        ("evaluate", "every is 'evaluate': must be a list"),
        (towers.log(steps=1), "every is of type Every: must be a list"),
        ([3], "every has 3: must be towers.evaluate"),
        ([keras.callbacks.CSVLogger], "every has the class CSVLogger: must be"),
        ([towers.log(steps=2), towers.log(steps=3)], r"every has log\(...\) twice"),
        ([keras.callbacks.BackupAndRestore("x")], "a run has checkpoints of its own"),
        ([keras.callbacks.ReduceLROnPlateau()], "ReduceLROnPlateau: give the Trainer learning_ra"),
        ([keras.callbacks.TensorBoard("x")], "TensorBoard: a run writes its files"),
        ([keras.callbacks.EarlyStopping(restore_best_weights=True)], "every has restore_best_w"),
        ([towers.keep_best(), towers.keep_best()], r"every has keep_best\(...\) twice"),
        ([towers.stop_early(patience=1)], r"every has stop_early\(...\) but no evaluate"),
        ([towers.profile(first=10, last=99)], r"profile\(last=99\): must be at most 13, the last"),
    ],
)
def test_other_things_to_do_are_refused_before_the_first_step(tmp_path, every, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run_in(tmp_path / "run").train(every)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: towers.checkpoint(steps=0), r"checkpoint\(steps=0\): must be at least 1"),
        (lambda: towers.checkpoint(steps=1, keep=0), r"checkpoint\(keep=0\): must be at least 1"),
        (lambda: towers.log(steps=1.5), r"log\(steps=...\) is 1.5: must be an integer"),
        (lambda: towers.evaluate(epochs=1, steps=2), r"evaluate\(epochs=1, steps=2\): one of the"),
        (lambda: towers.evaluate(epochs=-1), r"evaluate\(epochs=...\)=-1: must be finite and"),
        (lambda: towers.evaluate(steps=-1), r"evaluate\(epochs=0, steps=-1\): one of the two"),
        (lambda: towers.call(print), r"call\(epochs=0, steps=0\): one of the two must be above 0"),
        (lambda: towers.call("print", steps=1), "call: hook is 'print': must be a function of an"),
        (lambda: towers.profile(first=3, last=2), r"profile\(last=2\): must be at least first=3"),
        (lambda: towers.stop_early(patience=0), r"stop_early\(patience=0\): must be at least 1"),
        (lambda: towers.stop_early(patience=1, mode="up"), "mode='up': must be one of auto, min"),
        (lambda: towers.keep_best(metric="iou"), "metric='iou': give mode='min' or 'max'"),
        (lambda: towers.keep_best(mode="best"), "mode='best': must be one of auto, min, max"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    "every, message",
    [
        (towers.evaluate(epochs=1), r"every has evaluate\(epochs=...\), but train does not know"),
        (towers.call(print, epochs=1), r"every has call\(epochs=...\), but train does not know"),
        (keras.callbacks.CSVLogger("x"), "every has Keras callbacks, which need epochs"),
    ],
)
def test_epochs_of_unknown_size_are_refused(tmp_path, every, message):
    with pytest.raises(ValueError, match=message):
        run_in(tmp_path / "run", **without_epochs()).train([every])
    with pytest.raises(ValueError, match="epochs=2: train does not know how many examples"):
        run_in(tmp_path / "run", **without_epochs() | {"epochs": 2})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("every", [towers.evaluate(steps=1), towers.keep_best()])
def test_evaluations_without_test_data_are_refused(tmp_path, every):
    with pytest.raises(ValueError, match="but the run has no test data: give test="):
        run_in(tmp_path, test=None).train([every])


def as_dataset():
    found = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(26, seed=5)
    return streams.of_dataset(found.batch(BATCH))


class AsPyDataset(keras.utils.PyDataset):
    """Shuffled by itself after every epoch."""

    def __init__(self):
        super().__init__()
        self.rng, self.order = np.random.default_rng(0), np.arange(26)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        own = self.order[index * BATCH : (index + 1) * BATCH]
        return X[own], Y[own]

    def on_epoch_end(self):
        self.order = self.rng.permutation(26)


STREAMS = {
    "function": lambda: streams.of_function(
        lambda step: (X[: 8 - step % 3], Y[: 8 - step % 3]), batches_per_epoch=4
    ),
    "dataset": as_dataset,
    "pydataset": lambda: streams.of_pydataset(AsPyDataset()),
}


@pytest.mark.parametrize(
    ("name",), combinations.crossed(STREAMS, often=[("function",), ("dataset",)])
)
def test_a_stream_goes_on_where_it_stood(tmp_path, name):
    """With last batches that are not full, whose filling leaves no trace."""
    every, ends = [towers.evaluate(epochs=1), towers.checkpoint(steps=3), towers.log(steps=1)], []
    for folder, step in ((tmp_path / "whole", 0), (tmp_path / "killed", 8)):
        if step:
            tf.random.set_seed(1)
            with pytest.raises(Dies):
                run_in(folder, train=STREAMS[name]()).train([*every, dies_at(step)])
        tf.random.set_seed(1)  # as in a program that starts over
        ends.append(run_in(folder, train=STREAMS[name](), epochs=3).train(every).final)
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 12


def test_a_data_set_whose_shuffle_has_no_seed_does_not_go_on(tmp_path):
    for seed in (1, 2):
        tf.random.set_seed(seed)  # as two programs without one begin
        source = streams.of_dataset(
            tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(26).batch(BATCH)
        )
        if seed == 1:
            run_in(tmp_path, train=source, steps=2).train()
    with pytest.raises(run_folder.RunFolderError, match="data .* .the run has"):
        run_in(tmp_path, train=source).train()


def test_a_hook_sees_the_evaluation_of_the_step_that_a_run_goes_on_from(tmp_path):
    def shown(event):
        losses.append((event.step, event.evaluation.loss))

    losses, every = [], [towers.evaluate(steps=2), towers.checkpoint(steps=2)]
    every.append(towers.call(shown, steps=2))
    with pytest.raises(Dies):
        run_in(tmp_path, steps=6).train([*every, dies_at(5)])
    run_in(tmp_path, steps=6).train(every)
    assert [step for step, _ in losses] == [2, 4, 4, 6]
    assert losses[1] == losses[2]


def test_a_trainer_that_has_trained_begins_no_run(tmp_path):
    made = trainer_of()
    run_in(tmp_path / "a", made, steps=2).train()
    with pytest.raises(Exception, match="the Trainer has made 2 steps already, and the run in .*b"):
        run_in(tmp_path / "b", made).train()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda: {"test": [X, Y]}, "test: a batch is float32"),
        (lambda: {"test": (np.zeros([26, 3]), Y)}, r"test: inputs: float64 .*; the model takes .n"),
        (
            lambda: {"test": tf.data.Dataset.from_tensors((X, Y)).repeat()},
            "test is an infinite tf.data.Dataset",
        ),
        (lambda: {"class_names": "cat"}, "class_names is 'cat': must be a list of names"),
    ],
)
def test_test_data_that_do_not_fit_are_found_before_the_first_step(tmp_path, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        run_in(tmp_path / "run", **arguments()).train()
    assert list(tmp_path.iterdir()) == []


def test_names_of_classes_are_as_many_as_outputs(tmp_path):
    images, labels = toys.batch(16, [3])
    run = towers.Run(
        tmp_path / "run",
        toys.trainer(toys.classifier(), global_batch_size=8),
        train=arrays.batches(images, labels),
        test=(images, labels),
        epochs=1,
        class_names=["ant", "bee"],
    )
    with pytest.raises(ValueError, match=f"class_names has 2 names, and the model {toys.CLASSES}"):
        run.train()


def test_a_source_is_known_by_all_of_its_fingerprint(tmp_path):
    class Named(Endless):
        fingerprint = "/a/long/path/to/the/first"

    arguments = without_epochs() | {"train": Named()}
    run_in(tmp_path, **arguments).train()
    Named.fingerprint = "/a/long/path/to/the/second"
    with pytest.raises(run_folder.RunFolderError, match="data .* .the run has"):
        run_in(tmp_path, **arguments | {"steps": 12}).train()


def test_a_loss_of_the_name_of_a_field_leaves_it_alone(tmp_path):
    def loss(labels, outputs):
        return tf.square(labels - outputs)

    made = trainer_of(loss=loss, weight_decay=0.5, weight_filter="kernels")
    run_in(tmp_path, made, steps=1).train()
    line = logged(tmp_path)[0]
    data = np.mean([np.mean((0.5 * x - y) ** 2) for x, y in first_batch()])
    assert line["loss"] == pytest.approx(data + 0.5 * 0.5**2 / 2, rel=1e-5)


def first_batch():
    ((inputs, labels),) = arrays.batches(X, Y).batches(0, 1, global_batch_size=BATCH)
    return zip(inputs.numpy(), labels.numpy(), strict=True)


def test_a_stream_that_ends_early_is_named(tmp_path):
    class Short(arrays.Arrays):
        def batches(self, first_step, last_step, **shares):
            return super().batches(first_step, min(6, last_step), **shares)

    with pytest.raises(Exception, match="train ended after 6 of 13 batches; it must have one"):
        run_in(tmp_path, train=Short(X, Y, None, None, None, 0, True)).train([towers.log(steps=1)])
    assert [line["step"] for line in logged(tmp_path)] == list(range(1, 7))


def test_what_a_run_leaves_says_what_it_was(tmp_path):
    run_in(tmp_path, class_names=["a"], settings={"width": 3}).train()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"] == {"width": 3}
    assert config["resolved"]["last_step"] == 13
    assert config["defining"]["loss"] == "mean_squared_error"
    assert (
        config["defining"]["model"].startswith("2 variables")
        or "1 variables" in (config["defining"]["model"])
    )
    assert config["defining"]["examples of an epoch"] == 26


class Masked(keras.layers.Layer):
    """Keeps a constant that is not finite, and a count of calls that may become so."""

    def __init__(self, grows: bool):
        super().__init__()
        self.grows = grows

    def build(self, _):
        given = {"shape": (), "trainable": False}
        self.mask = self.add_weight(name="mask", initializer=_minus_infinity, **given)
        self.count = self.add_weight(name="count", initializer="ones", **given)

    def call(self, inputs):
        if self.grows:
            self.count.assign(self.count * 1e30)
        return tf.maximum(inputs, self.mask)


def _minus_infinity(shape, dtype=None):
    return tf.fill(shape, tf.constant(-np.inf, dtype))


class TestWhatIsSaved:
    def trainer(self, grows):
        with keras.device("cpu:0"):
            model = keras.Sequential([keras.Input([1]), Masked(grows), keras.layers.Dense(1)])
        return toys.trainer(model, keras.optimizers.SGD(0.05), global_batch_size=BATCH, loss="mse")

    def test_may_have_constants_that_are_not_finite(self, tmp_path):
        run_in(tmp_path, self.trainer(grows=False), steps=2).train()
        on = run_in(tmp_path, self.trainer(grows=False), steps=3).train()
        assert on.step == 3

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_must_have_statistics_that_are_finite(self, tmp_path, value):
        """Even if they were not when the run began: a step changes them."""
        norm = keras.layers.BatchNormalization()
        with keras.device("cpu:0"):
            model = keras.Sequential([keras.Input([1]), norm, keras.layers.Dense(1)])
        norm.moving_variance.assign([value])
        trainer = toys.trainer(
            model, keras.optimizers.SGD(0.05), global_batch_size=BATCH, loss="mse"
        )
        with pytest.raises(run_errors.TrainingError, match="has left NaN or Inf in .*/moving_var"):
            run_in(tmp_path, trainer, test=None, steps=3).train()

    def test_must_not_have_become_so(self, tmp_path):
        with pytest.raises(run_errors.TrainingError, match="has left NaN or Inf in .*/count;"):
            run_in(tmp_path, self.trainer(grows=True), steps=3).train()
        assert not checkpoints.by_step(tmp_path / "checkpoints")


def test_a_weighted_run_traces_its_step_once(tmp_path):
    trainer = new_trainer()
    weighted = arrays.batches(X, Y, sample_weight=np.linspace(0.0, 1.0, len(X)))
    run_in(tmp_path, trainer, train=weighted, steps=2).train()
    assert trainer._train_step.function.experimental_get_tracing_count() == 1


def test_weights_that_do_not_fit_are_named_before_the_first_step(tmp_path):
    class OfAnotherSize:
        num_examples, fingerprint = len(X), "of another size"

        def batches(self, first_step, last_step, *, global_batch_size, share):
            for _ in range(first_step, last_step):
                yield X[:BATCH], Y[:BATCH], np.ones(BATCH - 1)

    with pytest.raises(ValueError, match=r"sample_weight of shape \[7\]: must be one weight per"):
        run_in(tmp_path, train=OfAnotherSize(), steps=2).train()


@pytest.mark.parametrize("counts", [True, False])
def test_workers_look_at_the_test_data_together(tmp_path, monkeypatch, counts):
    """Of the first batch, all that this worker has is padding; the other may have more."""
    looked = []
    monkeypatch.setattr(
        worker.SingleWorker,
        "exchange",
        lambda self, what, message: [message, counts if "test batch" in what else message],
    )

    def evaluate(self, batches):
        looked.append(batches)
        return types.SimpleNamespace(confusion=None)

    monkeypatch.setattr(towers.Trainer, "evaluate", evaluate)
    run = run_in(tmp_path, test=[(X[:BATCH], Y[:BATCH], np.zeros(BATCH))])
    run._look_at_test(set())
    assert len(looked) == counts


class TestFolders:
    """TensorFlow reads some characters in a path as patterns."""

    @pytest.mark.parametrize("name", ["lr?", "lr*", "lr[1]", "gs://bucket/run"])
    def test_that_are_patterns_are_refused(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match="must be a local path without the characters"):
            run_in(name)
        assert list(tmp_path.iterdir()) == []


class TestSources:
    @pytest.mark.parametrize("on", [1, 2])
    def test_that_go_on_are_cut_off_at_the_end(self, tmp_path, on):
        class Longer:
            num_examples, fingerprint = None, "longer"

            def batches(self, first_step, last_step, **_):
                for _ in range(9):
                    yield X[:BATCH], Y[:BATCH]

        outcome = run_in(tmp_path, trainer_of(num_towers=on), train=Longer(), epochs=None, steps=3)
        assert outcome.train([towers.evaluate(steps=2)]).step == 3
        assert [line["step"] for line in logged(tmp_path) if "split" in line] == [2, 3]


class TestTestData:
    def test_are_the_same_when_a_run_goes_on(self, tmp_path):
        run_in(tmp_path, epochs=1).train()
        with pytest.raises(run_folder.RunFolderError, match="`test` has other arrays .* cannot be"):
            run_in(tmp_path, epochs=2, test=(X, Y + 1)).train()
        run_in(tmp_path, epochs=2).train()

    def test_may_come_later_or_be_evaluated_apart(self, tmp_path):
        run_in(tmp_path, epochs=1, test=None).train()
        run_in(tmp_path, epochs=2).train()
        apart = run_in(tmp_path, epochs=2, test=(X, Y + 1)).evaluate()
        assert apart.loss != run_in(tmp_path, epochs=2).evaluate().loss

    def test_may_go_when_a_hook_looks_at_a_step_that_was_evaluated(self, tmp_path):
        with pytest.raises(Dies):
            run_in(tmp_path).train(
                [towers.evaluate(steps=2), towers.checkpoint(steps=2), dies_at(3)]
            )
        seen = []
        run_in(tmp_path, test=None).train([lambda event: seen.append(event.evaluation)])
        assert set(seen) == {None}

    def test_with_a_mask_are_refused(self, tmp_path):
        with pytest.raises(TypeError, match="test: a masked array"):
            run_in(tmp_path, test=(np.ma.masked_array(X, X > 0), Y))


class TestWhichIsBetter:
    @pytest.mark.parametrize(
        ("metric", "better"),
        [
            ("loss", min),
            ("loss/acceleration", min),
            ("acceleration_mae", min),
            ("vaccine_mse", min),
            ("mean_absolute_percentage_error", min),
            ("binary_crossentropy_1", min),
            ("accuracy", max),
            ("acc", max),
            ("loss_accuracy", min),
            ("sparse_categorical_accuracy", max),
            ("kind_accuracy_1", max),
        ],
    )
    def test_is_known_by_the_last_word(self, metric, better):
        is_better = every_module._better(metric, "auto")
        assert is_better(1.0, 2.0) == (better is min)

    @pytest.mark.parametrize("metric", ["iou", "acceleration", "error_rate", "top5"])
    def test_is_asked_for_where_it_is_not_known(self, metric):
        with pytest.raises(ValueError, match="give mode='min' or 'max'"):
            towers.keep_best(metric=metric)

    @pytest.mark.parametrize("make", [towers.keep_best, towers.stop_early])
    def test_of_a_metric_that_is_not_there_is_said_before_the_first_step(self, tmp_path, make):
        arguments = {"patience": 1} if make is towers.stop_early else {}
        every = [towers.evaluate(epochs=1), make(metric="mse", **arguments)]
        with pytest.raises(ValueError, match="metric='mse': the evaluations have no such number"):
            run_in(tmp_path / "run").train(every)
        assert not (tmp_path / "run").exists()

    def test_is_not_looked_at_without_evaluations(self, tmp_path):
        with pytest.raises(ValueError, match="no evaluate\\(epochs=...\\) or evaluate\\(steps="):
            run_in(tmp_path).train([towers.evaluate(), towers.stop_early(patience=1)])


class TestSignalsAtTheEnd:
    def test_end_the_program_once_the_run_is_finished(self, tmp_path):
        """In a program of two runs, Ctrl-C in the end of the first does not begin the second."""

        def interrupts(event):
            if event.is_last:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(towers.Stopped) as stopped:
            run_in(tmp_path, epochs=1).train([interrupts])
        assert stopped.value.code == 143 and stopped.value.outcome.final["step"] == 4
        assert run_in(tmp_path, epochs=1).train().exit_code == 0


class TestHistograms:
    def test_of_a_layer_with_several_outputs(self, tmp_path):
        def build():
            tokens = keras.Input((4, 1))
            sequence, *_ = keras.layers.LSTM(
                3, return_sequences=True, return_state=True, name="encoder"
            )(tokens)
            return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.Flatten()(sequence)))

        made = toys.trainer(
            toys.on_cpu(build), global_batch_size=BATCH, num_microbatches=2, loss="mse"
        )
        inputs = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4, 1)
        train = arrays.batches(inputs, inputs[:, 0])
        run = towers.Run(tmp_path, made, train=train, steps=2)
        run.train([towers.histograms(steps=1)])
        assert "activations/encoder" in scalars(tmp_path / "train")


def test_a_metric_named_accuracy_may_have_several_values(tmp_path, capsys):
    class OfEach(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="accuracy")
            self.sums = self.add_weight(shape=(2,), initializer="zeros", name="sums")

        def update_state(self, labels, outputs, sample_weight=None):
            weight = sample_weight[:, None]
            self.sums.assign_add([keras.ops.sum(labels * weight), keras.ops.sum(outputs * weight)])

        def result(self):
            return self.sums

    made = new_trainer(metrics=[OfEach()])
    run_in(tmp_path, made, epochs=1, test=(X[:8], Y[:8])).train()
    assert len(run_folder.RunFolder(tmp_path).read_final_summary()["accuracy"]) == 2
    run_in(tmp_path, made, epochs=1, test=(X[:8], Y[:8])).train()
    assert "the run has finished already" in capsys.readouterr().out


def test_hooks_do_not_ask_again_which_steps_were_due(tmp_path, monkeypatch):
    """In a long run with many evaluations that took longer than its steps."""
    asked = []
    real = run_plan.Plan.is_evaluated

    def counted(self, at_step, batch):
        asked.append(at_step)
        return real(self, at_step, batch)

    monkeypatch.setattr(run_plan.Plan, "is_evaluated", counted)
    run_in(tmp_path, steps=12, epochs=None).train([towers.evaluate(steps=1), lambda event: None])
    assert len(asked) <= 3 * 12


def test_a_callback_that_saves_other_weights_than_are_evaluated_is_refused(tmp_path):
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    with pytest.raises(ValueError, match="ModelCheckpoint: use towers.keep_best"):
        run_in(tmp_path / "run").train([towers.evaluate(epochs=1), saves])


def test_a_checkpoint_that_goes_while_it_is_read_is_not_the_newest(tmp_path, monkeypatch):
    """The run may be training in another process, and keep one checkpoint."""
    with pytest.raises(Dies):
        run_in(tmp_path).train([towers.checkpoint(steps=2, keep=2), dies_at(5)])
    real, gone = checkpoints.newest, []

    def newest(folder):
        found = real(folder)
        if not gone:
            gone.append(found)
            return found.replace("step-4", "step-3")  # which another process has deleted
        return found

    monkeypatch.setattr(checkpoints, "newest", newest)
    assert run_in(tmp_path).evaluate().count == len(X)
    assert gone


def test_words_that_are_evaluated_are_known_by_what_they_are(tmp_path):
    def hashed(words):
        made = evaluated.Arrays((np.array(words, object), np.zeros(2)), new_trainer().shares)
        return made.sha256()

    assert hashed(["a" + "b", "c"]) == hashed(["".join("ab"), "c"]) != hashed(["ab", "d"])


def test_a_hook_may_have_a_metric_of_its_own(tmp_path):
    class Hook(keras.callbacks.Callback):
        metric = "mine"

    assert run_in(tmp_path, epochs=1).train([towers.evaluate(epochs=1), Hook()]).step == 4
