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
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    not_finite,
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
      settings: by which TensorBoard compares runs.
      distribution: what puts the model on towers.
      workers: those that train it together; most often one.
      state: of the run; None before `fit`.
      batch: of the step that is made, or the last.
      watched: what the last step showed of itself before its update (`updating.Watched`).
      seconds_saving: how long checkpoints have taken.
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
          settings: for `config.json` and TensorBoard, which compares runs by them; they decide
            nothing.
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
        if not isinstance(model, keras.Model):
            raise TypeError(f"model is a {type(model).__name__}: must be a keras.Model")
        if not model.compiled:
            raise ValueError("model is not compiled: call model.compile first")
        self.model, self.settings, self._export = model, dict(settings or {}), export
        self._resolved, self._defined = dict(resolved or {}), definition
        self._init_from = init_from
        self._taken: dict | None = None  # what was taken from there
        self.distribution = distribution.distribution(model)
        self.workers = self.distribution.workers
        self.state: fit_state.FitState | None = None
        self.batch: cutting.Structure = None
        self.watched: updating.Watched | None = None
        self._data: sources.FromSource | sources.FromKeras | None = None
        self._asked = interrupts.Interrupts()
        self.seconds_saving = 0.0
        self._unsaved = self._due = False  # whether there are new steps; whether to save
        self._config: dict = {}  # what `config.json` says
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        max_steps: int | None = None,
        steps_per_epoch: int | None = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        shuffle: bool = True,
        validation_data: Any = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: str | int = "auto",
        checkpoint_every_steps: int = 1000,
        checkpoints_to_keep: int = 3,
    ) -> Finished:
        """Trains to the end, or continues from where the run stands.

        Args:
          x: a source that can be read at any position, such as `input_pipeline.arrays.batches(x,
            y)`, with which a run resumes at no cost; or anything that Keras's `fit` takes, which is
            read on from the start of the epoch where a run resumes.
          y: labels of arrays; other data bring theirs.
          batch_size: examples of a step; data sets and generators bring batches.
          epochs: after which the run ends, counted from its beginning.
          max_steps: likewise, where that is earlier; it may be within an epoch, which a run with a
            later end finishes.
          steps_per_epoch, sample_weight, class_weight: as Keras's `fit` takes them; not with a
            source.
          shuffle: arrays, for each epoch, in an order that only its number decides; not of a
            source, which has an order.
          validation_data: as Keras's `fit` takes it; or batches that can be iterated over again and
            again, such as `input_pipeline.images.evaluated`.
          validation_batch_size, validation_freq, verbose: as Keras's `fit` takes them.
          callbacks: Keras's, or your own; `towers.callbacks.Log()` is added where there is no Log.
            When a run resumes, what they have changed among their attributes is as it was, if it is
            numbers, texts, arrays, or lists, tuples, sets and dicts of these.
          checkpoint_every_steps: there is one at the end, too, and of data that are no source at
            the end of each epoch.
          checkpoints_to_keep: the newest few; at least 1.

        Raises:
          Stopped: a signal has stopped the run, and its state is saved.
          RunFolderError, CheckpointError: the folder holds another run, is in use, or cannot be
            read or written.
          TrainingError: a loss or a gradient is not finite, and nothing was updated; or workers
            differ in their weights.
          WarmStartError: no weights can be taken from `init_from`.
          WorkerError: another worker is gone, and the last complete step is saved; or it is about
            to make another run.
        """
        for name, value in (("epochs", epochs), ("max_steps", max_steps)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value}: must be a whole number, at least 1")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        if sources.is_source(x):
            for name, argument in (
                ("y", y), ("sample_weight", sample_weight), ("class_weight", class_weight),
                ("steps_per_epoch", steps_per_epoch),
            ):  # fmt: skip
                if argument is not None:
                    raise ValueError(f"{name}: x is a source, which has its own; leave it out")
            self._data = sources.FromSource(x, batch_size, epochs, max_steps)
        else:
            self._data = sources.FromKeras(
                x, y, batch_size, steps_per_epoch, sample_weight, class_weight, shuffle
            )
        model, is_chief, callbacks = self.model, self.workers.is_chief, list(callbacks)
        self._last_epoch, self._last_step, self._every = epochs, max_steps, checkpoint_every_steps
        self._validation = sources.evaluated(validation_data)
        self._validation_freq = validation_freq
        self._validation_batch_size = validation_batch_size or batch_size
        if not any(isinstance(callback, run_callbacks.Log) for callback in callbacks):
            callbacks.append(run_callbacks.Log())
        if is_chief:
            self.folder.read_config()  # else its lock would be in a folder of another kind
        with self.folder.held() if is_chief else contextlib.nullcontext():
            self._begin(callbacks, checkpoints_to_keep)
            self._callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0 and is_chief,
                verbose=verbose if is_chief else 0,
                epochs=epochs,
                steps=self._data.steps(0),
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
        first = self.state.step
        try:
            return self._epochs()
        except errors.GoneError as error:
            self.state.read()
            if not self.workers.is_chief or self.state.step == first:
                raise
            with interrupts.Interrupts():  # a launcher may send a signal now
                self._note()
                self._checkpoints.save()
            raise type(error)(f"{error}. {self._checkpoints.describe_newest()}") from error

    def _epochs(self) -> dict[str, float]:
        """The epochs that are left; the metrics of the last."""
        state, model, callbacks = self.state, self.model, self._callbacks
        notes = json.loads(state.notes.numpy().decode())
        model.stop_training = False
        for callback in callbacks.callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger) and state.step:
                callback.append = True  # else it would empty the file of the run
        with self._unchanged_if_resumed(state.step):
            callbacks.on_train_begin()
        self._memory = callback_state.Memory(callbacks.callbacks)
        self._memory.restore(notes.get("callbacks", {}))
        if notes.get("stopped"):
            model.stop_training = True  # a callback has, and has not changed its mind
        logs: dict[str, float] = {}
        self._logs = model.get_metrics_result()  # of an epoch with no step left
        with interrupts.Interrupts() as asked:
            self._asked = asked
            for epoch in range(state.epoch, self._last_epoch):
                if model.stop_training or state.step == self._last_step:
                    break
                if not state.step_in_epoch:
                    model.reset_metrics()
                with self._unchanged_if_resumed(state.step_in_epoch):
                    callbacks.on_epoch_begin(epoch)
                if state.step_in_epoch:  # some callbacks begin anew with each epoch
                    self._memory.restore(notes["callbacks"])
                is_whole = self._epoch(epoch)
                if not state.step_in_epoch:
                    warnings.warn(f"x has no batch for epoch {epoch + 1}: it ends", stacklevel=3)
                    break
                logs = pythonify_logs(model._get_metrics_result_or_logs(self._logs))
                logs |= self._evaluate(epoch)
                if is_whole:
                    state.end_epoch()
                callbacks.on_epoch_end(epoch, logs)
                self._unsaved = True
                if self._due or self._data.num_examples is None:
                    self._save()
            if self._unsaved:
                self._save()
        return logs

    def _unchanged_if_resumed(self, steps_made: int) -> contextlib.AbstractContextManager[None]:
        """Takes back what callbacks change that they had changed before the run was resumed.

        A schedule that multiplies the rate at the start of an epoch has done so already.
        """
        parts = self.state.arithmetic().values() if steps_made else ()
        return _kept([variable for part in parts for variable in part])

    def writer(self, part: str) -> tf.summary.SummaryWriter:
        """Of TensorBoard's files of a part, `train` or `eval`, on the chief."""
        if part not in self._writers:
            self._writers[part] = summaries.file_writer(self.folder.path / part)
        return self._writers[part]

    def epochs_made(self) -> float:
        """How many times the data were read, or partly; of data of unknown size whole epochs."""
        state, steps = self.state, self._data.steps(self.state.epoch)
        if self._data.num_examples:
            return state.examples_seen / self._data.num_examples
        return state.epoch + (state.step_in_epoch / steps if steps else 0)

    def _note(self) -> None:
        """Keeps what callbacks remember in the state."""
        notes = {"callbacks": self._memory.collect(), "stopped": bool(self.model.stop_training)}
        self.state.notes.assign(json.dumps(notes))

    def _save(self) -> None:
        """Saves a checkpoint, once all workers are known to have the same weights.

        Raises:
          TrainingError: they do not, or a weight is NaN or Inf, as even finite gradients make it
            where the rate is too high for float32.
          RunFolderError: the folder was removed, moved or replaced.
        """
        began, self._unsaved, self._due = time.perf_counter(), False, False
        if self.workers.count > 1:  # hashing the state of a large network takes a while
            parts = self.workers.exchange("hashes of their states", self.state.parts_sha256())
            for index, other in enumerate(parts):
                if different := [name for name in other if other[name] != parts[0].get(name)]:
                    raise run_errors.TrainingError(
                        f"step {self.state.step}: {self.workers.name(index)} and "
                        f"{self.workers.name(0)} differ in {', '.join(different)}; is one of the "
                        "machines of another kind, or faulty?"
                    )
        if wrong := [v.path for v in self._finite if not np.isfinite(_values(v)).all()]:
            raise run_errors.TrainingError(
                f"step {self.state.step}: the update has left NaN or Inf in "
                f"{', '.join(wrong)}. A lower learning rate, clipped gradients or a wider type may "
                "help"
            )
        self._note()
        if not self.workers.is_chief:
            return
        self.folder.check_held()
        for part in self._writers:
            with summaries.events(self.writer(part), 0):
                self.writer(part).flush()
        self._checkpoints.save(replace=True)
        if run_folder.FIRST_CHECKPOINT not in self._config:
            self._config[run_folder.FIRST_CHECKPOINT] = self.state.step
            run_folder.write_json(self.folder.config, self._config)
        self.seconds_saving += time.perf_counter() - began

    def stop(self, number: int) -> None:
        """Stops the run after the present step, as the signal of that number would."""
        self._asked.received = self._asked.received or number

    def _epoch(self, epoch: int) -> bool:
        """The steps that are left of an epoch; whether it is whole after them.

        Raises:
          Stopped: a signal has come.
        """
        state, callbacks, self._due = self.state, self._callbacks, False
        for batch in self._data.batches(epoch, state.step_in_epoch):
            if state.step == self._last_step:
                return False
            if self._due:  # after the last step of an epoch, its end saves
                self._save()
            place = state.step_in_epoch
            self.batch = batch
            callbacks.on_train_batch_begin(place)
            logs = self._logs = self._step(batch)
            callbacks.on_train_batch_end(place, logs)
            self._unsaved = True
            self.workers.ask_to_stop(self._asked.received)  # several know of it after the next step
            if stopped_by := self.workers.stop_asked():
                self._save()
                if self.workers.is_chief:
                    with contextlib.suppress(OSError):  # the terminal or the pipe is gone
                        io_utils.print_msg(
                            f"stopped at step {state.step}, and saved: the same again continues"
                        )
                raise Stopped(128 + stopped_by)
            if self.model.stop_training:
                break
            self._due = self._every > 0 and state.step % self._every == 0
        is_all = self._data.steps(epoch) in (None, state.step_in_epoch)
        return is_all or state.step != self._last_step

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """Keras's evaluation of the validation data after an epoch, where it is due."""
        if self._validation is None or not self.model._should_eval(epoch, self._validation_freq):
            return {}
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._validation)
        # Whole or cut short by another worker's end, it changes nothing.
        kept = _kept([*self.model.non_trainable_variables, *self.model.metrics_variables])
        with kept, warnings.catch_warnings(), self._averaged():
            # Keras says so of all data whose number of batches is not known before.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            logs = self.model.evaluate(
                x,
                y,
                sample_weight=weight,
                batch_size=self._validation_batch_size,
                return_dict=True,
                callbacks=self._callbacks,
            )
        return {f"val_{name}": value for name, value in logs.items()}

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """While entered, the model has its averages in place of its weights, if there are some."""
        with contextlib.ExitStack() as stack:
            for callback in self._callbacks.callbacks:
                if hasattr(callback, "averaged"):
                    stack.enter_context(callback.averaged())
            yield

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
        if (config := self.folder.read_config()) is not None:
            checkpoints.check_origin(path, config.get("run_sha256", ""))
        warm_start.restore(path, self.model)

    def step_function(self) -> tf.types.experimental.ConcreteFunction:
        """The step as a ConcreteFunction, which has its graph."""
        return self.distribution.program.trace(self.batch, self.distribution.size_of_run())

    def _step(self, batch) -> Mapping[str, tf.Tensor]:
        try:
            with run_errors.explained():
                logs, self.watched = self.distribution.train_step(batch)
            self.state.count_made(cutting.num_examples(batch))
        except tf.errors.InvalidArgumentError as error:
            if not not_finite.is_from_check(error):
                raise
            raise run_errors.TrainingError(
                f"step {self.state.step + 1}: a loss or a gradient is NaN or Inf; the step "
                "was not applied. A lower learning rate, clipped gradients or a wider type may help"
            ) from error
        return logs

    def _definition(self, callbacks) -> dict:
        """What decides the weights that the run ends with, by name."""
        defined = self._defined
        if defined is None:
            optimizer = self.distribution.described_optimizer
            defined = definition.describe_run(
                self.model, optimizer, self._data.definition, callbacks
            )
        return (
            dict(defined)
            | definition.describe_model(self.model)
            | {
                "microbatch_size": self.distribution.size_of_run(),
                "joined_loss": self.distribution.program.joined,
            }
        )

    def _begin(self, callbacks, keep: int) -> None:
        """Restores the run that is in the folder, or begins one; on all workers.

        Raises:
          RunFolderError: the folder holds another run.
          CheckpointError: its checkpoint cannot be restored.
          TrainingError: the run is past its end.
          WorkerError: workers are about to make different runs.
        """
        definition.check_can_be_saved(self.model)
        averages = [a for callback in callbacks for a in getattr(callback, "averages", ())]
        if averages and len(averages) != (count := len(self.model.trainable_variables)):
            raise ValueError(
                f"callbacks keep {len(averages)} moving averages, of {count} trainable weights: "
                "give one MovingAverages, made of the model as it is trained"
            )
        self.state = fit_state.FitState(self.model, averages)
        for callback in callbacks:
            if hasattr(callback, "set_run"):
                callback.set_run(self)
        in_step = [callback.in_step for callback in callbacks if hasattr(callback, "in_step")]
        with run_errors.explained():
            self.distribution.prepare(
                self._data.first_batch(), self._take, [*in_step, self.state.count]
            )
        if self.distribution.described_optimizer is None:  # before a callback changes its rate
            optimizer = definition.describe("optimizer", self.model.optimizer)
            self.distribution.described_optimizer = optimizer
        defined = self._definition(callbacks)
        worker.check_same(self.workers, "what they train", defined)
        notes = self.workers.from_chief("the run", lambda: self._continue(defined, keep))
        self.state.notes.assign(notes)
        parts = self.state.arithmetic().values()
        self.workers.broadcast("the state of the run", [v for part in parts for v in part])
        self.state.read()
        model_state.refresh(self.model)
        variables = [*self.model.variables, *self.model.optimizer.variables]
        # Not those with the -inf of a mask.
        self._finite = [v for v in variables if not np.isinf(_values(v)).any()]
        state, last_step = self.state, self._last_step
        if state.epoch > self._last_epoch or (last_step is not None and state.step > last_step):
            raise run_errors.TrainingError(
                f"the run is at step {state.step}, in epoch {state.epoch + 1}, past its "
                "end; give it a later one"
            )

    def _take(self) -> None:
        """On the chief: gives a new run its first weights, before an optimizer copies them."""
        begun = checkpoints.newest(self.folder.checkpoints)
        if self._init_from and self.workers.is_chief and not begun:
            self._taken = warm_start.take(self._init_from, self.model)
            trained = self.model.trainable_variables
            for average, weight in zip(self.state.averages, trained, strict=False):
                average.assign(weight.value)
            for line in warm_start.report(self._taken):
                io_utils.print_msg(line)

    def _continue(self, defined: dict, keep: int) -> str:
        """On the chief: restores the run, or begins it; what callbacks remember."""
        folder, state = self.folder, self.state
        earlier, newest = folder.read_config(), checkpoints.newest(folder.checkpoints)
        first_saved = (earlier or {}).get(run_folder.FIRST_CHECKPOINT)
        if first_saved is not None and not newest:
            raise checkpoints.CheckpointError(
                f"{folder.shown} holds a run that has saved checkpoints, the first at step "
                f"{first_saved}, but {folder.checkpoints} has none; put them back, or choose "
                "another folder"
            )
        before = earlier if newest else None
        taken = before["resolved"].get("init_from") if before else self._taken
        defined = defined | {"initial weights": taken and taken["sha256"]}
        if before and (different := errors.differences(before["defining"], defined)):
            raise run_folder.RunFolderError(
                f"{folder.shown} holds a run with other settings: {'; '.join(different)}. "
                "Continue it with its own, or choose another folder"
            )
        sha256 = hashlib.sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()
        self._checkpoints = checkpoints.Checkpoints(state, folder.checkpoints, keep, sha256)
        self._checkpoints.restore()
        state.read()
        notes = state.notes.numpy().decode()
        is_stopped = json.loads(notes).get("stopped")
        is_at_end = state.epoch >= self._last_epoch or state.step == self._last_step
        is_complete = before is not None and (is_stopped or is_at_end)
        if is_complete:
            why = "a callback stopped it" if is_stopped else "it is at its end"
            io_utils.print_msg(f"the run is complete at step {state.step}: {why}")
        elif before:
            io_utils.print_msg(f"continuing at step {state.step}")
        elif earlier:
            io_utils.print_msg(f"the run in {folder.path} has no checkpoint yet and starts over")
            with run_folder.writing(folder.shown):
                for events in folder.path.glob("*/events.out.tfevents.*"):
                    events.unlink()
        stretches = before["stretches"] if before else []
        self._config = {
            "settings": self.settings,
            "resolved": {"tower_devices": list(self.distribution.tower_devices)}
            | self._resolved
            | {"init_from": taken},
            "defining": defined,
            "run_sha256": sha256,
            "stretches": stretches if is_complete else self._extended(stretches),
        }
        if first_saved is not None:
            self._config[run_folder.FIRST_CHECKPOINT] = first_saved
        folder.drop_metrics_after(state.step if before else -1)
        run_folder.write_json(folder.config, self._config)
        return notes

    def _extended(self, stretches: list[dict]) -> list[dict]:
        """The stretches of the run from now on; says what has changed."""
        distribution = self.distribution
        runs_on = conditions.environment() | {
            "devices": machine.kinds(distribution.tower_devices),
            "parameters on": machine.kinds([step.parameter_device(self.model)]),
        }
        extended = conditions.extended(stretches, self.state.step, runs_on)
        if stretches and extended[-1]["first_step"] == self.state.step:
            for change in conditions.changes(extended[-2:]):
                io_utils.print_msg(f"{change}: the last bits may differ from a run without this")
        return extended

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
            "step": state.step,
            "examples_seen": state.examples_seen,
            "epoch": self.epochs_made(),
        } | {name: values[-1] for name, values in history.items() if np.isscalar(values[-1])}
        run_folder.write_json(folder.final_summary, summary)
        return Finished(history, state.step, sha256)


@contextlib.contextmanager
def _kept(variables: Sequence) -> Iterator[None]:
    """Gives variables back the values that they had before."""
    values = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _values(variable: keras.Variable) -> np.ndarray:
    return np.asarray(variable, np.float64)
