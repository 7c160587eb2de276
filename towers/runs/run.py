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
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from towers import devices, not_finite
from towers.keras_fit import cutting, distribute
from towers.runs import (
    callback_state,
    checkpoints,
    definition,
    export,
    interrupts,
    run_errors,
    run_folder,
    run_lock,
    sources,
    stretches,
    warm_start,
)
from towers.runs import callbacks as run_callbacks
from towers.support import adapted, hashes, worker_errors

from keras.src.utils import io_utils  # isort: skip
from keras.src.utils.python_utils import pythonify_logs  # isort: skip


class FitState:
    """All that a run carries from step to step; `checkpoints` saves and restores it.

    Attributes:
      model: with its optimizer and its metrics.
      averages: moving averages of the trainable weights, in their order; empty if none are kept.
      step, examples_seen: int64 variables, updates made and examples consumed.
      epoch, step_in_epoch: int64 variables, whole epochs made, and updates since.
      notes: string variable, what callbacks remember (`callback_state`).
    """

    statistics_of_each = ()  # which `warm_start` looks for

    def __init__(self, model: keras.Model, averages: Sequence[tf.Variable] = ()):
        self.model, self.averages = model, list(averages)
        with tf.device(devices.HOST):
            names = ("step", "examples_seen", "epoch", "step_in_epoch")
            self.step, self.examples_seen, self.epoch, self.step_in_epoch = (
                tf.Variable(0, dtype=tf.int64, trainable=False, name=name) for name in names
            )
            self.notes = tf.Variable("{}", trainable=False, name="notes")

    def arithmetic(self) -> dict[str, list[tf.Variable]]:
        """The variables by what they are that a hash is taken over: all but the notes."""
        model = self.model
        parts = {
            "weights": model.trainable_variables,
            "model_state": model.non_trainable_variables,
            "optimizer": model.optimizer.variables,
            "metrics": model.metrics_variables,
        }
        return {name: [v.value for v in part] for name, part in parts.items()} | {
            "moving_averages": self.averages,
            "counters": [self.step, self.examples_seen, self.epoch, self.step_in_epoch],
        }

    def parts(self) -> dict[str, list[tf.Variable]]:
        """What a checkpoint holds."""
        parts = self.arithmetic()
        counters = parts.pop("counters")
        return parts | {"place": counters[2:], "notes": [self.notes], "counters": counters[:2]}

    def parts_sha256(self) -> dict[str, str]:
        """A hash for each part that this run has."""
        return {
            name: hashes.sha256(variable.numpy() for variable in part)
            for name, part in self.arithmetic().items()
            if part
        }

    def sha256(self) -> str:
        """One hash over those of `parts_sha256`: of the whole state."""
        return hashes.sha256_of_parts(self.parts_sha256())


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
      watched: what the last step showed of itself before its update (`step.Watched`).
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        model: keras.Model,
        *,
        init_from: str | os.PathLike | None = None,
        settings: Mapping | None = None,
        export: Callable[[keras.Model], keras.Model] | None = None,
    ):
        """
        Args:
          folder: of the run; made if it does not exist. Of several workers, the chief alone uses
            it.
          model: compiled; on towers, or it is put on one for each GPU, or else one.
          init_from: what a new run takes weights from, by name and shape of its layers: a run's
            folder, a checkpoint in one, or a `.keras` or `.weights.h5` file.
          settings: by which TensorBoard compares runs; they decide nothing.
          export: (model) to the model that is saved at the end, with the given one's weights, such
            as one that takes raw images; None saves the model as it is trained.

        Raises:
          TypeError, ValueError: an argument is of the wrong type, or the model is not compiled.
        """
        run_folder.check_path(folder)
        self.folder = run_folder.RunFolder(folder)
        if not isinstance(model, keras.Model):
            raise TypeError(f"model is a {type(model).__name__}: must be a keras.Model")
        if not model.compiled:
            raise ValueError("model is not compiled: call model.compile first")
        self.model, self.settings, self._export = model, dict(settings or {}), export
        self._init_from, self._taken = init_from, None
        self.distribution = distribute.distribution(model)
        self.workers = self.distribution.workers
        self.state: FitState | None = None
        self.batch = self.watched = None

    def fit(
        self,
        x,
        y=None,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        sample_weight=None,
        class_weight: Mapping[int, float] | None = None,
        validation_data=None,
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
          steps_per_epoch, sample_weight, class_weight: as Keras's `fit` takes them; not with a
            source.
          validation_data: as Keras's `fit` takes it; or batches that can be iterated over again and
            again, such as `input_pipeline.images.evaluated`.
          validation_batch_size, validation_freq, verbose: as Keras's `fit` takes them.
          callbacks: Keras's, or your own; `towers.callbacks.Log()` is added where there is no Log.
            When a run resumes, what they have changed among their attributes is as it was, if it is
            numbers, texts, arrays, or lists, tuples, sets and dicts of these.
          checkpoint_every_steps: there is one at the end of each epoch, too.
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
        if sources.is_source(x):
            for name, value in (
                ("y", y), ("sample_weight", sample_weight), ("class_weight", class_weight),
                ("steps_per_epoch", steps_per_epoch),
            ):  # fmt: skip
                if value is not None:
                    raise ValueError(f"{name}: x is a source, which has its own; leave it out")
            data = sources.FromSource(x, batch_size)
        else:
            data = sources.FromKeras(x, y, batch_size, steps_per_epoch, sample_weight, class_weight)
        callbacks, model = list(callbacks), self.model
        if not any(isinstance(callback, run_callbacks.Log) for callback in callbacks):
            callbacks.append(run_callbacks.Log())
        evaluate = functools.partial(
            _evaluate, model, validation_data, validation_batch_size or batch_size, validation_freq
        )
        lock = run_lock.RunLock(self.folder).held()
        with lock if self.workers.is_chief else contextlib.nullcontext():
            self._begin(data, callbacks, checkpoints_to_keep)
            self._callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0 and self.workers.is_chief,
                verbose=verbose if self.workers.is_chief else 0,
                epochs=epochs,
                steps=data.steps(0),
                model=model,
            )
            logs = self._trained(data, epochs, evaluate, checkpoint_every_steps)
            model.optimizer.finalize_variable_values(model.trainable_weights)
            self._callbacks.on_train_end(logs)
            return self._finish(dict(model.history.history))

    def _trained(self, *arguments) -> dict[str, float]:
        """`_epochs`; where another worker is gone, the chief saves the last complete step.

        An update begins when the sums of all workers have come, so it is made whole or not at all.
        """
        first = int(self.state.step)
        try:
            return self._epochs(*arguments)
        except worker_errors.GoneError as error:
            if not self.workers.is_chief or int(self.state.step) == first:
                raise
            self._note()
            self._checkpoints.save()
            raise type(error)(f"{error}. {self._checkpoints.describe_newest()}") from error

    def _epochs(self, data, last_epoch: int, evaluate: Callable, every: int) -> dict[str, float]:
        """The epochs that are left; the metrics of the last."""
        state, model, callbacks = self.state, self.model, self._callbacks
        notes = json.loads(state.notes.numpy().decode())
        model.stop_training = False
        for callback in callbacks.callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger) and int(state.step):
                callback.append = True  # else it would empty the file of the run
        with self._unchanged_if(int(state.step)):
            callbacks.on_train_begin()
        self._memory = callback_state.Memory(callbacks.callbacks)
        self._memory.restore(notes.get("callbacks", {}))
        if notes.get("stopped"):
            model.stop_training = True  # a callback has, and has not changed its mind
        logs: dict[str, float] = {}
        self._logs = model.get_metrics_result()  # of an epoch with no step left
        with interrupts.Interrupts() as asked:
            for epoch in range(int(state.epoch), last_epoch):
                if model.stop_training:
                    break
                if not int(state.step_in_epoch):
                    model.reset_metrics()
                with self._unchanged_if(int(state.step_in_epoch)):
                    callbacks.on_epoch_begin(epoch)
                if int(state.step_in_epoch):  # some callbacks begin anew with each epoch
                    self._memory.restore(notes["callbacks"])
                self._epoch(data, epoch, asked, every)
                if not int(state.step_in_epoch):
                    warnings.warn(f"x has no batch for epoch {epoch + 1}: it ends", stacklevel=3)
                    break
                logs = pythonify_logs(model._get_metrics_result_or_logs(self._logs))
                with self._unchanged_if_it_fails():
                    logs |= evaluate(callbacks, epoch)
                state.epoch.assign(epoch + 1)
                state.step_in_epoch.assign(0)
                callbacks.on_epoch_end(epoch, logs)
                self._save()
        return logs

    @contextlib.contextmanager
    def _unchanged_if(self, resumed: bool) -> Iterator[None]:
        """Where a run resumes, takes back what callbacks change that they had changed before.

        A schedule that multiplies the rate at the start of an epoch has done so already.
        """
        parts = self.state.parts().items() if resumed else ()
        variables = [v for name, part in parts for v in part if name != "notes"]
        values = [variable.numpy() for variable in variables]
        yield
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    @contextlib.contextmanager
    def _unchanged_if_it_fails(self) -> Iterator[None]:
        """Takes back what an evaluation has changed that another worker's end has interrupted.

        It resets metrics, and has averages in place of the weights.
        """
        if self.workers.count == 1:
            yield
            return
        variables = [*self.model.variables, *self.model.metrics_variables]
        values = [variable.numpy() for variable in variables]
        try:
            yield
        except worker_errors.WorkerError:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            raise

    def _note(self) -> None:
        """Keeps what callbacks remember in the state."""
        notes = {"callbacks": self._memory.collect(), "stopped": bool(self.model.stop_training)}
        self.state.notes.assign(json.dumps(notes))

    def _save(self) -> None:
        """Saves a checkpoint, once all workers are known to have the same weights.

        Raises:
          TrainingError: they do not.
        """
        if self.workers.count > 1:  # hashing the state of a large network takes a while
            parts = self.workers.exchange("hashes of their states", self.state.parts_sha256())
            for index, other in enumerate(parts):
                if different := [name for name in other if other[name] != parts[0].get(name)]:
                    raise run_errors.TrainingError(
                        f"step {int(self.state.step)}: {self.workers.name(index)} and "
                        f"{self.workers.name(0)} differ in {', '.join(different)}; is one of the "
                        "machines of another kind, or faulty?"
                    )
        self._note()
        if self.workers.is_chief:
            self._checkpoints.save(replace=True)

    def _epoch(self, data, epoch: int, asked: interrupts.Interrupts, every: int) -> None:
        """The steps that are left of an epoch.

        Raises:
          Stopped: a signal has come.
        """
        state, callbacks, due = self.state, self._callbacks, False
        for batch in data.batches(epoch, int(state.step_in_epoch)):
            if due:  # after the last step of an epoch, its end saves
                self._save()
            place = int(state.step_in_epoch)
            self.batch = batch
            callbacks.on_train_batch_begin(place)
            logs = self._logs = self._step(batch)
            for counter, count in (
                (state.step, 1),
                (state.step_in_epoch, 1),
                (state.examples_seen, cutting.num_examples(batch)),
            ):
                counter.assign_add(count)
            callbacks.on_train_batch_end(place, logs)
            self.workers.ask_to_stop(asked.received)  # several know of it after the next step
            if stopped_by := self.workers.stop_asked():
                self._save()
                raise Stopped(128 + stopped_by)
            if self.model.stop_training:
                break
            due = every and int(state.step) % every == 0

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
        warm_start.take(path or checkpoints.find(folder, str(checkpoint)), FitState(self.model))

    def graph(self) -> tf.Graph:
        """The graph of a step."""
        return self.distribution.program.trace(self.batch, self.distribution.size_of_run()).graph

    def _step(self, batch) -> Mapping[str, tf.Tensor]:
        try:
            logs, self.watched = self.distribution.train_step(batch)
        except tf.errors.InvalidArgumentError as error:
            if not not_finite.is_from_check(error):
                raise
            raise run_errors.TrainingError(
                f"step {int(self.state.step) + 1}: a loss or a gradient is NaN or Inf; the step "
                "was not applied. A lower learning rate, clipped gradients or a wider type may help"
            ) from error
        return logs

    def _definition(self, data, callbacks) -> dict:
        """What decides the weights that the run ends with, by name."""
        model = self.model
        shapes = [(list(v.shape), v.dtype, v.trainable) for v in model.variables]
        return {
            "layers": (definition.layers(model) or {}).get("sha256"),
            "variables": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:12],
            **self.distribution.described_optimizer,
            **_described("loss", model.loss),
            "jit_compile": bool(model.jit_compile),
            "microbatch_size": self.distribution.size_of_run(),
            "joined_loss": self.distribution.program.joined,
            "data": data.fingerprint,
        } | {
            name: value
            for callback in callbacks
            if hasattr(callback, "get_config")
            for name, value in _described(type(callback).__name__, callback).items()
        }

    def _begin(self, data, callbacks, keep: int) -> None:
        """Restores the run that is in the folder, or begins one; on all workers.

        Raises:
          RunFolderError: the folder holds another run.
          CheckpointError: its checkpoint cannot be restored.
          WorkerError: workers are about to make different runs.
        """
        export.check_can_be_saved(self.model)
        averages = [a for callback in callbacks for a in getattr(callback, "averages", ())]
        self.state = FitState(self.model, averages)
        self.distribution.prepare(data.first_batch(), self._take)
        if self.distribution.described_optimizer is None:  # before a callback changes its rate
            self.distribution.described_optimizer = _described("optimizer", self.model.optimizer)
        for callback in callbacks:
            if hasattr(callback, "set_run"):
                callback.set_run(self)
        defined = self._definition(data, callbacks)
        own = defined | stretches.versions() | stretches.kernels()
        for index, other in enumerate(self.workers.exchange("what they train", own)):
            if different := run_folder.differences(other, own, self.workers.name(index)):
                raise worker_errors.WorkerError(
                    f"workers are about to train differently: {'; '.join(different)}"
                )
        notes = self.workers.from_chief("the run", lambda: self._continue(defined, keep))
        self.state.notes.assign(notes)
        variables = [v for name, v in self.state.parts().items() if name != "notes"]
        self.workers.broadcast("the state of the run", [v for part in variables for v in part])
        adapted.refresh(self.model)

    def _take(self) -> None:
        """On the chief: gives a new run its first weights, before an optimizer copies them."""
        begun = checkpoints.newest(self.folder.checkpoints)
        if self._init_from and self.workers.is_chief and not begun:
            self._taken = warm_start.take(self._init_from, self.state).recorded()
            for line in warm_start.said(self._taken):
                io_utils.print_msg(line)

    def _continue(self, defined: dict, keep: int) -> str:
        """On the chief: restores the run, or begins it; what callbacks remember."""
        folder, of_model = self.folder, definition.of_model(self.model)
        earlier, newest = folder.read_config(), checkpoints.newest(folder.checkpoints)
        resolved = {"tower_devices": list(self.distribution.tower_devices)} | of_model
        if newest and earlier is not None:
            resolved["init_from"] = taken = earlier["resolved"].get("init_from")
        else:
            resolved["init_from"] = taken = self._taken
        defined = defined | {"init_from": taken and taken["sha256"]}
        if newest and earlier is not None:
            different = run_folder.differences(earlier.get("defining", {}), defined)
            if different:
                raise run_folder.RunFolderError(
                    f"{folder.shown} holds a run with other settings: {'; '.join(different)}. "
                    "Continue it with its own, or choose another folder"
                )
        sha256 = hashlib.sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()
        self._checkpoints = checkpoints.Checkpoints(self.state, folder.checkpoints, keep, sha256)
        self._checkpoints.restore()
        at_step, towers = int(self.state.step), self.distribution.tower_devices
        so_far = earlier["stretches"] if at_step and earlier is not None else []
        runs_on = stretches.environment() | stretches.on_devices(towers, devices.HOST)
        now = stretches.extended(so_far, at_step, runs_on)
        if so_far and now[-1]["first_step"] == at_step:
            for change in stretches.changes(now[-2:]):
                io_utils.print_msg(f"{change}: the last bits may differ from a run without this")
        folder.create(
            {
                "settings": self.settings,
                "resolved": resolved,
                "defining": defined,
                "stretches": now,
            }
        )
        folder.drop_metrics_after(at_step)
        return self.state.notes.numpy().decode()

    def _finish(self, history: Mapping) -> Finished:
        """Writes the final model, then its summary: where that is, the model is whole."""
        state, folder = self.state, self.folder
        averaged = [c for c in self._callbacks.callbacks if hasattr(c, "averaged")]
        with contextlib.ExitStack() as stack:
            for callback in averaged:
                stack.enter_context(callback.averaged())
            sha256 = hashes.sha256(variable.value for variable in self.model.weights)
            if not self.workers.is_chief:
                return Finished(history, int(state.step), sha256)
            exported = self._export(self.model) if self._export else self.model
            partial = folder.final_model.with_name("final_model.partial.keras")
            with run_folder.writing(folder.final_model):
                exported.save(partial)
                os.replace(partial, folder.final_model)
        summary = {
            "weights_sha256": sha256,
            "state_sha256": state.sha256(),
            "step": int(state.step),
            "examples_seen": int(state.examples_seen),
            "epoch": int(state.epoch),
        } | {name: values[-1] for name, values in history.items() if np.isscalar(values[-1])}
        run_folder.write_json(folder.final_summary, summary)
        return Finished(history, int(state.step), sha256)


def _evaluate(
    model, validation_data, batch_size: int | None, every: int | list, callbacks, epoch: int
) -> dict[str, float]:
    """Keras's evaluation of the validation data after an epoch, where it is due."""
    if validation_data is None or not model._should_eval(epoch, every):
        return {}
    data = sources.evaluated(validation_data)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    logs = model.evaluate(
        x, y, sample_weight=weight, batch_size=batch_size, return_dict=True, callbacks=callbacks
    )
    return {f"val_{name}": value for name, value in logs.items()}


def _described(name: str, thing) -> dict[str, object]:
    """What Keras saves of an object, by name, without names that it numbers by what was built."""
    if isinstance(thing, Mapping):
        parts = thing.items()
    elif isinstance(thing, (list, tuple)):
        parts = enumerate(thing)
    elif thing is None or isinstance(thing, (str, int, float)):
        return {name: thing}
    else:
        config = thing.get_config() if hasattr(thing, "get_config") else {}
        kind = getattr(thing, "__name__", type(thing).__name__)
        return {name: kind} | {
            f"{name} {key}": json.loads(json.dumps(value, default=str))
            for key, value in config.items()
            if key != "name"
        }
    return {k: v for key, part in parts for k, v in _described(f"{name} {key}", part).items()}
