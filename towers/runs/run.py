"""Keras's `fit` in a folder: a run that survives kills, and ends with the same weights.

    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    towers.distribute(model, towers=2)
    run = towers.Run("runs/mine", model)
    run.fit(arrays.batches(x, y), batch_size=1024, epochs=10, validation_data=(x_test, y_test))

The same program continues a run that was stopped or killed, on any number of towers. What happens
along the way is a list of Keras callbacks, and nothing else; those of `towers.callbacks` log, write
TensorBoard's files and average weights.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towers import (
    conditions,
    cutting,
    distribution,
    errors,
    hashes,
    machine,
    model_state,
    step,
    updating,
    worker,
)
from towers.runs import (
    callback_state,
    checkpoints,
    definition,
    fit_state,
    interrupts,
    run_errors,
    run_folder,
    sources,
    summaries,
    warm_start,
)
from towers.runs import callbacks as run_callbacks

from keras.src.utils import io_utils  # isort: skip
from keras.src.utils.python_utils import pythonify_logs  # isort: skip

# Of a run's state: what callbacks remember, the epoch that was last begun, the step after which the
# end of one was last dealt with, whether a callback has stopped the run, and what it ran on.
_NEW_NOTES = {
    "callbacks": {}, "epoch": None, "ended_at": 0, "stopped": False, "runs_on": None, "changes": [],
}  # fmt: skip
_CONFIG_OF_STATE = ("run_sha256", "runs_on", "changes")  # a part of `config.json` in the notes, too


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a run ended.

    Attributes:
      history: metric to its value in each epoch, of the whole run, whatever it was resumed from.
      step: updates made.
      weights_sha256: a hash of the model's weights.
    """

    history: Mapping[str, Sequence[float]]
    step: int
    weights_sha256: str


class Stopped(SystemExit):
    """A signal such as Ctrl-C has stopped a run, whose state is saved. Ends the program.

    Attributes:
      code: 128 + the signal's number, the shell's convention.
    """

    code: int


class Run:
    """A run in its folder.

    Attributes:
      folder: its files.
      model: that is trained, compiled.
      settings: what `config.json` says of the run for people.
      distribution: what puts the model on towers.
      workers: those that train it together; most often one.
      state: of the run; None before `fit`.
      batch: of the step that is made, or the last.
      watched: what the last step showed of itself before its update (`updating.Watched`).
    """

    def __init__(
        self,
        folder: str | os.PathLike | run_folder.RunFolder,
        model: keras.Model,
        *,
        init_from: str | os.PathLike | None = None,
        settings: Mapping | None = None,
        resolved: Mapping | None = None,
        definition: Mapping | None = None,
        export: Callable[[keras.Model], keras.Model] | None = None,
    ):
        """
        Args:
          folder: of the run; made if it does not exist. Of several workers, the chief alone uses
            it.
          model: compiled; on towers, or it is put on one for each GPU, or else one.
          init_from: what a new run takes weights from, by name and shape of its layers: a run's
            folder, a checkpoint in one, or a `.keras` file.
          settings: for `config.json`; they decide nothing.
          resolved: what else `config.json` says of the run, such as the names of its classes.
          definition: what decides the weights that the run ends with, by name, where optimizer,
            loss and callbacks are made of something else, such as flags; None for what these are.
          export: (model) to the model that is saved at the end, with the given one's weights, such
            as one that takes raw images; None saves the model as it is trained.

        Raises:
          TypeError, ValueError: an argument is of the wrong type, or the model is not compiled.
        """
        if not isinstance(folder, run_folder.RunFolder):
            run_folder.check_path(folder)
            folder = run_folder.RunFolder(folder)
        self.folder = folder
        self.distribution = distribution.distribution(model)
        if not model.compiled:
            raise ValueError("model is not compiled: call model.compile first")
        self.model, self.settings, self._export = model, dict(settings or {}), export
        self._resolved, self._defined = dict(resolved or {}), definition
        self._init_from = init_from
        self._taken: dict | None = None  # what was taken from there
        self.workers = self.distribution.workers
        self.state: fit_state.FitState | None = None
        self.batch: cutting.Structure = None
        self.watched: updating.Watched | None = None
        self._config: dict = {}  # what `config.json` says
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def fit(
        self,
        x: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        validation_data: Any = None,
        validation_freq: int | list[int] = 1,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: str | int = "auto",
        checkpoint_every_steps: int = 1000,
        checkpoints_to_keep: int = 3,
    ) -> Finished:
        """Trains to the end, or continues from where the run stands.

        Args:
          x: a source that can be read at any position, with its labels, its weights and its order,
            such as `input_pipeline.arrays.batches(x, y)`.
          batch_size: examples of a step.
          epochs: after which the run ends, counted from its beginning.
          max_steps: likewise, where that is earlier; it may be within an epoch, which a run with a
            later end finishes, unless callbacks such as EarlyStopping have seen an end of it.
          validation_data: as Keras's `fit` takes it; or batches that can be iterated over again and
            again, such as `input_pipeline.images.evaluated`.
          validation_freq, verbose: as Keras's `fit` takes them.
          callbacks: Keras's, or your own; `towers.callbacks.Log()` is added where there is no Log.
            When a run resumes, what they have changed among their attributes is as it was, if it is
            numbers, texts, arrays, or lists, tuples, sets and dicts of these.
          checkpoint_every_steps: there is one at the end, too; 0 for this one alone.
          checkpoints_to_keep: the newest few; at least 1.

        Raises:
          Stopped: a signal has stopped the run, and its state is saved.
          TypeError, ValueError: an argument cannot be used.
          RunFolderError, CheckpointError: the folder holds another run, is in use, or cannot be
            read or written.
          TrainingError: a loss or a gradient is not finite, and nothing was updated.
          WarmStartError: no weights can be taken from `init_from`.
          WorkerError: another worker is gone, and the last complete step is saved; or it has other
            weights, or is about to make another run.
        """
        counts = {"batch_size": batch_size, "epochs": epochs, "max_steps": max_steps}
        for name, value in counts.items():
            is_left_out = name == "max_steps" and value is None
            if not is_left_out and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value}: must be a whole number, at least 1")
        model, is_chief, callbacks = self.model, self.workers.is_chief, list(callbacks)
        self._data = sources.Epochs(x, batch_size)
        end = self._data.first_step(epochs)
        self._last_step = min(end, max_steps or end)
        self._validation = sources.evaluated(validation_data)
        self._validation_freq = validation_freq
        self._save_every, self._keep = checkpoint_every_steps, checkpoints_to_keep
        if not any(isinstance(callback, run_callbacks.Log) for callback in callbacks):
            callbacks.append(run_callbacks.Log())
        with self.folder.held() if is_chief else contextlib.nullcontext():
            self._begin(callbacks)
            self._callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0 and is_chief,
                verbose=verbose if is_chief else 0,
                epochs=epochs,
                steps=self._data.first_step(1),
                model=model,
            )
            logs = self._train()
            model.optimizer.finalize_variable_values(model.trainable_weights)
            self._callbacks.on_train_end(logs)
            return self._finish(dict(model.history.history))

    def _train(self) -> dict[str, float]:
        """The epochs that are left; where another worker is gone, the last complete step is saved.

        An update begins when the sums of all workers have come, so it is made whole or not at all.
        """
        with interrupts.Interrupts() as self._asked:
            try:
                return self._make_epochs()
            except errors.GoneError:
                self.state.read()
                saved = checkpoints.by_step(self.folder.checkpoints)
                if self.workers.is_chief and self.state.step not in (0, *saved):
                    self._write_checkpoint()
                raise

    def _make_epochs(self) -> dict[str, float]:
        """Makes the epochs that are left; the metrics of the last."""
        state, model, callbacks, notes = self.state, self.model, self._callbacks, self._notes
        # Where a callback has stopped the run, it has not changed its mind.
        model.stop_training = notes["stopped"]
        for callback in callbacks.callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger) and state.step:
                callback.append = True  # else it would empty the file of the run
        # Callbacks do not change again what they had changed before the run was resumed: a schedule
        # that multiplies the rate at the start of an epoch has done so.
        with fit_state.kept(state.variables() if state.step else ()):
            callbacks.on_train_begin()
        self._memory = callback_state.Memory(callbacks.callbacks)
        self._memory.restore(notes["callbacks"])
        self._batches = self._data.batches(state.step, self._last_step)
        logs: dict[str, float] = {}
        # That of the last step, where its end was not dealt with.
        epoch = self._data.epoch(state.step - (state.step != notes["ended_at"]))
        while not self._is_at_end(model.stop_training):
            is_begun = epoch == notes["epoch"]  # before the run was resumed
            if state.step == self._data.first_step(epoch):
                model.reset_metrics()
            with fit_state.kept(state.variables() if is_begun else ()):
                callbacks.on_epoch_begin(epoch)
            if is_begun:  # some callbacks begin anew with each epoch
                self._memory.restore(notes["callbacks"])
            notes["epoch"] = epoch
            logs = self._make_steps(epoch) | self._evaluate(epoch)
            notes["ended_at"] = state.step
            callbacks.on_epoch_end(epoch, logs)
            if self._is_due() or state.step == self._last_step or model.stop_training:
                self._save()
            epoch += 1
        return logs

    def _is_at_end(self, is_stopped: bool) -> bool:
        """Whether the run has made its last step, and dealt with the end of its epoch."""
        step = self.state.step
        return self._notes["ended_at"] == step and (is_stopped or step == self._last_step)

    def _is_due(self) -> bool:
        return self._save_every > 0 and self.state.step % self._save_every == 0

    def _make_steps(self, epoch: int) -> dict[str, float]:
        """Makes the steps that are left of an epoch; its metrics."""
        self.distribution.program.check_trained()
        state, model, callbacks = self.state, self.model, self._callbacks
        first, end = (self._data.first_step(one) for one in (epoch, epoch + 1))
        end, logs = min(end, self._last_step), model.get_metrics_result()
        while state.step < end and not model.stop_training:
            place, self.batch = state.step - first, next(self._batches)
            callbacks.on_train_batch_begin(place)
            with run_errors.explained(f"step {state.step + 1}"):
                logs, self.watched = self.distribution.train_step(self.batch)
            state.step += 1
            callbacks.on_train_batch_end(place, logs)
            self.workers.ask_to_stop(self._asked.received)  # several know of it after the next step
            if stopped_by := self.workers.stop_asked():
                self._save()
                if self.workers.is_chief:
                    with contextlib.suppress(OSError):  # the terminal or the pipe is gone
                        io_utils.print_msg(f"stopped at step {state.step}, and saved")
                raise Stopped(128 + stopped_by)
            if self._is_due() and state.step < end:  # else the end of the epoch saves
                self._save()
        return pythonify_logs(model._get_metrics_result_or_logs(logs))

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """Keras's evaluation of the validation data after an epoch, where it is due."""
        if self._validation is None or not self.model._should_eval(epoch, self._validation_freq):
            return {}
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._validation)
        # Whole or cut short by another worker's end, it changes nothing.
        kept = fit_state.kept([*self.model.non_trainable_variables, *self.model.metrics_variables])
        with kept, warnings.catch_warnings(), self._averaged():
            # Keras says so of all data whose number of batches is not known before.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            logs = self.model.evaluate(
                x,
                y,
                sample_weight=weight,
                batch_size=self._data.batch_size,
                return_dict=True,
                callbacks=self._callbacks,
            )
        return {f"val_{name}": value for name, value in logs.items()}

    @property
    def examples_seen(self) -> int:
        """How many examples the updates were made of."""
        return self.state.step * self._data.batch_size

    def progress(self) -> dict[str, float]:
        """How far the run is, as files have it: `step`, `examples_seen` and `epoch`, a fraction."""
        epoch = self.examples_seen / self._data.num_examples
        return {"step": self.state.step, "examples_seen": self.examples_seen, "epoch": epoch}

    def writer(self, part: str) -> tf.summary.SummaryWriter:
        """Of TensorBoard's files of a part, `train` or `eval`, on the chief."""
        if part not in self._writers:
            self._writers[part] = summaries.file_writer(self.folder.path / part)
        return self._writers[part]

    def stop(self, number: int) -> None:
        """Stops the run after the present step, as the signal of that number would."""
        self._asked.received = self._asked.received or number

    def _save(self) -> None:
        """Saves a checkpoint, once all workers are known to have the same finite weights.

        Even finite gradients make NaN and Inf of them where the rate is too high for float32.
        """
        self.distribution.program.check_trained()
        if self.workers.count > 1:  # hashing the state of a large network takes a while
            label = f"at step {self.state.step}, sha256 of the {{}} ".format
            worker.check_same(self.workers, "their states", self.state.parts_sha256(), label)
        if wrong := [v.path for v in self._finite if not np.isfinite(_values(v)).all()]:
            raise run_errors.TrainingError(
                f"step {self.state.step}: the update has left NaN or Inf in {', '.join(wrong)}; "
                "a lower learning rate may help"
            )
        if not self.workers.is_chief:
            return
        self._write_checkpoint()
        if self._config[run_folder.FIRST_CHECKPOINT] is None:
            self._config[run_folder.FIRST_CHECKPOINT] = self.state.step
            run_folder.write_json(self.folder.config, self._config)

    def _write_checkpoint(self) -> None:
        """Saves the state, with what callbacks remember, and what the run has run on until now."""
        notes = self._notes | {name: self._config[name] for name in _CONFIG_OF_STATE}
        notes |= {"callbacks": self._memory.collect(), "stopped": bool(self.model.stop_training)}
        notes["end"] = self._last_step
        self.state.notes.assign(json.dumps(notes))
        self.folder.check_held()
        checkpoints.save(self.state, self.folder.checkpoints, self._keep)
        self.folder.check_held()  # TensorFlow has made it again where it was moved meanwhile

    def restore(self, checkpoint: str | int | None = None) -> None:
        """Gives the model the weights of a checkpoint of the run, its averages where it has some.

        It needs no lock: the run may be training in another process. Afterwards evaluate or predict
        with the model.

        Args:
          checkpoint: its step or its path; None for the newest.

        Raises:
          CheckpointError: there is no such checkpoint, or it is not of this model.
        """
        folder = self.folder.checkpoints
        path = checkpoints.newest(folder) if checkpoint is None else None
        path = path or checkpoints.find(folder, str(checkpoint))
        if config := self.folder.read_config():
            checkpoints.check_origin(path, config["run_sha256"])
        warm_start.restore(path, self.model)

    def step_function(self) -> tf.types.experimental.ConcreteFunction:
        """The step as a ConcreteFunction, which has its graph."""
        return self.distribution.program.trace(self.batch, self.distribution.size_of_run())

    def _definition(self, callbacks: Sequence) -> dict:
        """What decides the weights that the run ends with, by name."""
        distribution, defined, model = self.distribution, self._defined, self.model
        layers = definition.describe_model(model)  # first: it says what Keras cannot save
        if distribution.described_optimizer is None:  # before a callback changes its rate
            distribution.described_optimizer = definition.describe("optimizer", model.optimizer)
        if defined is None:
            defined = definition.describe_run(
                model, distribution.described_optimizer, self._data.definition, callbacks
            )
        return {
            **defined,
            **layers,
            "microbatch_size": distribution.size_of_run(),
            "joined_loss": distribution.program.joined,
        }

    def _begin(self, callbacks: Sequence) -> None:
        """Restores the run that is in the folder, or begins one; on all workers."""
        kept = [one for one in callbacks if isinstance(one, run_callbacks.MovingAverages)]
        averages = [average for callback in kept for average in callback.averages]
        if averages and len(averages) != (count := len(self.model.trainable_variables)):
            raise ValueError(
                f"callbacks keep {len(averages)} moving averages, of {count} trainable weights: "
                "give one MovingAverages, made of the model as it is trained"
            )
        # While entered, the model has its averages in place of its weights, if there are some.
        self._averaged = kept[0].averaged if kept else contextlib.nullcontext
        self.state = fit_state.FitState(self.model, averages)
        for callback in callbacks:
            if isinstance(callback, run_callbacks.RunCallback):
                callback.run = self
        after_update = [*(callback.in_step for callback in kept), self.state.count]
        with run_errors.explained():
            first_batch = next(self._data.batches(0, 1))
            self.distribution.prepare(first_batch, self._take, after_update)
        defined = self._definition(callbacks)
        worker.check_same(self.workers, "what they train", defined)
        self._notes = self.workers.from_chief("the run", lambda: self._continue(defined))
        self.workers.broadcast("the state of the run", self.state.variables())
        self.state.read()
        model_state.refresh(self.model)
        variables = [*self.model.variables, *self.model.optimizer.variables]
        # Not those with the -inf of a mask.
        self._finite = [v for v in variables if not np.isinf(_values(v)).any()]
        step, notes = self.state.step, self._notes
        if step > self._last_step:
            raise run_errors.TrainingError(
                f"the run is at step {step}, past its end, {self._last_step}: give a later one"
            )
        is_within = step > self._data.first_step(self._data.epoch(step))
        if step == notes["ended_at"] == notes.get("end") < self._last_step and is_within:
            counted = {key.split()[0] for key, memory in notes["callbacks"].items() if memory}
            others = (c for c in callbacks if not isinstance(c, run_callbacks.RunCallback))
            if wrong := sorted(counted.intersection(type(c).__name__ for c in others)):
                raise run_errors.TrainingError(
                    f"max_steps={step} was within an epoch whose end {', '.join(wrong)} has seen: "
                    "begin another run with the later end"
                )

    def _take(self) -> None:
        """On the chief: gives a new run its first weights, before an optimizer copies them."""
        begun = checkpoints.newest(self.folder.checkpoints)
        if self._init_from and self.workers.is_chief and not begun:
            self._taken = warm_start.take(self._init_from, self.model)
            trained = self.model.trainable_variables
            for average, weight in zip(self.state.averages, trained, strict=False):
                average.assign(weight.value)

    def _continue(self, defined: dict) -> dict:
        """On the chief: restores the run, or begins it; the notes of its state."""
        folder, state = self.folder, self.state
        before, newest = folder.read_config() or {}, checkpoints.newest(folder.checkpoints)
        first_saved = before.get(run_folder.FIRST_CHECKPOINT)
        if first_saved is not None and not newest:
            raise checkpoints.CheckpointError(
                f"{folder.shown} holds a run that has saved checkpoints, the first at step "
                f"{first_saved}, but {folder.checkpoints} has none; put them back, or choose "
                "another folder"
            )
        taken = before["resolved"]["init_from"] if newest else self._taken
        defined = defined | {"initial weights": taken and taken["sha256"]}
        if newest and (different := errors.differences(before["defining"], defined)):
            raise run_folder.RunFolderError(
                f"{folder.shown} holds a run with other settings: {'; '.join(different)}. "
                "Continue it with its own, or choose another folder"
            )
        sha256 = hashlib.sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()
        if newest:
            checkpoints.check_origin(newest, sha256)
        else:  # nothing of a beginning is left, if there was one
            with run_folder.writing(folder.shown):
                for events in folder.path.glob("*/events.out.tfevents.*"):
                    events.unlink()
        checkpoints.restore(state, folder.checkpoints)
        self._notes = _NEW_NOTES | json.loads(state.notes.numpy().decode())
        is_complete = self._is_at_end(self._notes["stopped"])
        if before:
            what = "continuing" if newest else "starting over"
            what = "the run is complete" if is_complete else what
            io_utils.print_msg(f"{what} at step {state.step}")
        runs_on = conditions.environment() | {
            "devices": machine.kinds(self.distribution.tower_devices),
            "parameters on": machine.kinds([step.parameter_device(self.model)]),
        }
        ran_on = self._notes["runs_on"] or runs_on
        if is_complete:
            runs_on = ran_on
        changes = [
            f"from step {state.step} on, {difference}"
            for difference in errors.differences(ran_on, runs_on, "the part before")
        ]
        for change in changes:
            io_utils.print_msg(f"{change}: the last bits may differ from a run without this")
        self._config = {
            "settings": self.settings,
            "resolved": {"tower_devices": list(self.distribution.tower_devices)}
            | self._resolved
            | {"init_from": taken},
            "defining": defined,
            "run_sha256": sha256,
            run_folder.FIRST_CHECKPOINT: first_saved,
            "runs_on": runs_on,
            "changes": self._notes["changes"] + changes,
        }
        folder.drop_metrics_after(state.step if newest else -1)
        run_folder.write_json(folder.config, self._config)
        return self._notes

    def _finish(self, history: Mapping) -> Finished:
        """Writes the final model, then its summary: where that is, the model is whole."""
        state, folder = self.state, self.folder
        with self._averaged():
            sha256 = hashes.sha256(variable.value for variable in self.model.weights)
            if not self.workers.is_chief:
                return Finished(history, state.step, sha256)
            folder.check_held()
            exported = self._export(self.model) if self._export else self.model
            with run_folder.replacing(folder.final_model) as partial:
                exported.save(partial)
        summary = {
            "weights_sha256": sha256,
            "state_sha256": state.sha256(),
            **self.progress(),
            **{name: values[-1] for name, values in history.items() if np.isscalar(values[-1])},
        }
        run_folder.write_json(folder.final_summary, summary)
        return Finished(history, state.step, sha256)


def _values(variable: keras.Variable) -> np.ndarray:
    return np.asarray(variable, np.float64)
