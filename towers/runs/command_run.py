"""A run of your own model and data in a folder of its own.

    run = towers.Run("runs/mine", trainer, train=arrays.batches(x, y), test=(x_test, y_test),
                     epochs=10)
    run.train(every=[towers.evaluate(epochs=1), towers.checkpoint(steps=500)])

The same program continues a run that was stopped or killed, on any number of towers, and ends with
the same weights. The command train.py is one such program.
"""

import dataclasses
import hashlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from towers import trainer
from towers.runs import (
    checkpoints,
    definition,
    evaluated,
    every,
    export,
    keras_callbacks,
    loop,
    placement,
    resuming,
    run_folder,
    run_plan,
    warm_start,
)
from towers.support import adapted, checks, errors, tally, worker_errors


class Source(Protocol):
    """Where training batches come from; `input_pipeline` has some.

    Attributes:
      num_examples: of one epoch; None where it is unknown.
      fingerprint: identifies these data.
    """

    num_examples: int | None
    fingerprint: str

    def batches(
        self, first_step: int, last_step: int, *, global_batch_size: int, share: range
    ) -> Iterable:
        """The batches of steps `first_step` to `last_step - 1`, in order.

        They are (inputs, labels) or (inputs, labels, sample_weight), each with the examples at the
        places of `share`, which are this worker's: all where there is one worker. The batch of a
        step is the same whatever `first_step` is.
        """


class Stopped(SystemExit):
    """A signal such as Ctrl-C has stopped a run, which has saved its state. Ends the program.

    A signal that comes when the last step is made ends the program, too, once the run is finished.

    Attributes:
      code: 128 + the signal's number, the shell's convention.
      outcome: how far it came.
    """

    def __init__(self, outcome: loop.Outcome):
        super().__init__(outcome.exit_code)
        self.outcome = outcome


class CommandRun:
    """A run in its folder.

    With several workers each makes one, with the same arguments, after `workers.start`.

    Attributes:
      folder: its files.
      last_step: the step that it ends after.
    """

    @placement.on_host
    def __init__(
        self,
        folder: str | os.PathLike | run_folder.RunFolder,
        tower_trainer: trainer.Trainer,
        *,
        train: Source,
        test: tuple | Iterable | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        class_names: Sequence[str] = (),
        init_from: str | os.PathLike | None = None,
        export: Callable[[keras.Model], keras.Model] | None = None,
        settings: Mapping | None = None,
        test_name: str = "test",
        defined: definition.Definition | None = None,
    ):
        """
        Args:
          folder: of the run; made if it does not exist.
          tower_trainer: makes the steps.
          train: where training batches come from, such as `input_pipeline.arrays.batches(x, y)`.
          test: what is evaluated: arrays (inputs, labels) or (inputs, labels, sample_weight), or
            batches of these that can be iterated over again and again; None for no evaluation.
          epochs: the run ends with the first step that reaches them.
          steps: the run ends after so many; with `epochs` too, after the earlier of the two.
          class_names: of a classifier, for TensorBoard.
          init_from: what a new run takes weights from, by name and shape of its layers: a run's
            folder, a checkpoint in one, or a `.keras` or `.weights.h5` file.
          export: (model) to the model that is saved at the end, with the given one's weights, such
            as one that takes raw images; None saves the model as it is trained.
          settings: by which TensorBoard compares runs; they decide nothing.
          test_name: what the logs call `test`.
          defined: what the run is; None for what the Trainer and the data make it.

        Raises:
          TypeError, ValueError: an argument is of the wrong type or out of range.
        """
        if not isinstance(tower_trainer, trainer.Trainer):
            raise TypeError(
                f"tower_trainer is {checks.described(tower_trainer)}: must be a towers.Trainer"
            )
        if isinstance(folder, run_folder.RunFolder):
            self.folder = folder
        elif isinstance(folder, (str, os.PathLike)):
            run_folder.check_path(folder)
            self.folder = run_folder.RunFolder(folder)
        else:
            raise TypeError(f"folder is {checks.described(folder)}: must be a path")
        self._trainer, self._workers = tower_trainer, tower_trainer.workers
        _check_source(train)
        self._per_epoch = None if train.num_examples is None else int(train.num_examples)
        self.last_step = self._end(epochs, steps)
        if isinstance(class_names, str) or not all(isinstance(one, str) for one in class_names):
            raise TypeError(
                f"class_names is {checks.described(class_names)}: must be a list of names"
            )
        self._class_names = tuple(class_names)
        if not isinstance(init_from, (str, os.PathLike, type(None))):
            raise TypeError(f"init_from is {checks.described(init_from)}: must be a path")
        self._init_from = init_from
        if export is not None and not callable(export):
            raise TypeError(f"export is {checks.described(export)}: must be a function of a model")
        self._export = export
        batch, share = tower_trainer.global_batch_size, tower_trainer.shares.examples
        self._data = run_plan.Data(
            training=lambda first_step, last_step: _checked(
                train.batches(first_step, last_step, global_batch_size=batch, share=share),
                last_step - first_step,
            ),
            evaluation=(tested := self._tested(test)),
            evaluation_count=getattr(tested, "num_counted", None),
            evaluation_split=test_name,
        )
        is_hashed = self._workers.is_chief and isinstance(tested, evaluated.Arrays)
        self._tested_sha256 = tested.sha256() if is_hashed else None
        self._is_commands = defined is not None
        self._defined = defined or definition.Definition(
            tower_trainer,
            data={
                "data": hashlib.sha256(train.fingerprint.encode()).hexdigest()[:12],
                "examples of an epoch": self._per_epoch,
            },
            resolved={
                "last_step": self.last_step,
                "examples_per_epoch": self._per_epoch,
                "class_names": list(self._class_names),
                "tower_devices": list(tower_trainer.tower_devices),
                "num_workers": self._workers.count,
                "test_sha256": self._tested_sha256,
            },
            settings=settings,
        )

    def _end(self, epochs: float | None, steps: int | None) -> int:
        if epochs is None and steps is None:
            raise ValueError("epochs and steps are both None: give one, for the run to end")
        if epochs is not None:
            checks.number("epochs", epochs)
        if steps is not None:
            checks.integer("steps", steps)
        for name, given in (("epochs", epochs), ("steps", steps)):
            if given is not None and given <= 0:
                raise ValueError(f"{name}={given}: must be above 0")
        if epochs is None:
            return int(steps)
        if self._per_epoch is None:
            raise ValueError(
                f"epochs={epochs}: train does not know how many examples an epoch has; give steps"
            )
        return run_plan.last_step(epochs, steps, self._per_epoch, self._trainer.global_batch_size)

    def _tested(self, test) -> Iterable | None:
        if test is None:
            return None
        if isinstance(test, tuple):
            return evaluated.Arrays(test, self._trainer.shares)
        is_array = isinstance(test, (str, bytes, Mapping)) or hasattr(test, "shape")
        if is_array or not isinstance(test, Iterable):
            raise TypeError(
                f"test is {checks.described(test)}: must be (inputs, labels), or batches of these"
            )
        if iter(test) is test:
            raise TypeError(
                "test can be iterated over only once, and a run evaluates more often: give a list, "
                "a tf.data.Dataset, or arrays (inputs, labels)"
            )
        if isinstance(test, tf.data.Dataset) and test.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError("test is an infinite tf.data.Dataset: give a finite one")
        return test

    def _look_at_test(self, metrics: Set[str]) -> None:
        """Evaluates a batch, to find out now, and not after hours, what does not fit.

        Args:
          metrics: names that an evaluation must have.

        Raises:
          TypeError, ValueError: it does not fit the model, its loss or its metrics.
        """
        batch = next(iter(self._data.evaluation), None)
        if batch is None:
            raise ValueError("test has no batches: give at least 1")
        try:
            *_, weight = checks.parts_of(batch)
            weighs = len(batch) < 3 or weight is None or bool(np.any(weight))
            if not any(self._workers.exchange("whether a test batch weighs anything", weighs)):
                return  # the others may
            found = self._trainer.evaluate([batch])
        except (TypeError, ValueError) as error:
            raise type(error)(f"test: {error}") from error
        for metric in metrics:
            every.number_in(found.as_metrics(), metric)
        names, confusion = self._class_names, found.confusion
        if names and confusion is not None and len(names) != len(confusion):
            raise ValueError(
                f"class_names has {len(names)} names, and the model {len(confusion)} outputs: give "
                "one name for each"
            )

    @placement.on_host
    def train(
        self, every: Sequence[every.Every | keras.callbacks.Callback | Callable] = ()
    ) -> loop.Outcome:
        """Trains to the end, or continues from where the run stands.

        Afterwards the Trainer has the state of the run's last step, even if the run had finished
        before.

        Args:
          every: what the run does along the way: `towers.evaluate(epochs=1)` and the like,
            functions of an `Event`, which are called after every step, and Keras callbacks.

        Returns:
          How it ended; its `evaluation` is None if the run had finished before.

        Raises:
          Stopped: a signal such as Ctrl-C has stopped it, and its state is saved.
          TypeError, ValueError: `every` has something else, or the same thing twice.
          WarmStartError: no weights can be taken from `init_from`.
          RunFolderError, CheckpointError, TrainingError, WorkerError: as `resuming.train`.
        """
        plan, of_keras = self._plan(every)
        plan = dataclasses.replace(plan, exported=self._exported())
        export.check_can_be_saved(plan.exported or self._trainer.state.model)
        self._take_weights()  # before the Loop, whose checkpoints have the run's hash
        run = loop.Loop(self._trainer, self.folder, plan, self._data, self._defined)
        if not self._is_commands:
            if self._data.evaluation is not None:
                self._look_at_test(plan.metrics)
            definition.check_alike(self._workers, self._defined)
        try:
            outcome = resuming.train(run, self._defined, needs_weights=not self._is_commands)
        finally:
            if of_keras is not None:
                of_keras.end()
        if outcome.exit_code:
            raise Stopped(outcome)
        return outcome

    @placement.on_host
    def evaluate(self, checkpoint: str | int | None = None) -> tally.Evaluation:
        """Evaluates a checkpoint of the run on its test data; writes nothing.

        It needs no lock: the run may be training in another process. Afterwards the Trainer has
        the state of the checkpoint.

        Args:
          checkpoint: its step or its path; None for the newest.

        Raises:
          ValueError: the run has no test data.
          RunFolderError: the folder holds no run, or another one.
          CheckpointError: there is no such checkpoint, or it cannot be restored.
          WorkerError: another worker is gone or has ended.
        """
        if self._data.evaluation is None:
            raise ValueError("the run has no test data: give Run test=")
        self._workers.from_chief("a checkpoint", lambda: self._restore(checkpoint))
        self._trainer.broadcast_state()
        adapted.refresh(self._trainer.state.model)
        return self._trainer.evaluate(self._data.evaluation)

    def _restore(self, name: str | int | None) -> None:
        defined, folder = self._defined, self.folder
        earlier = defined.earlier(folder)
        if earlier is None:
            raise run_folder.RunFolderError(f"{folder.shown} holds no run yet")
        defined.begin_with(earlier["resolved"].get("init_from"))
        defined.check_same(earlier, folder)
        definition.check_same_layers(earlier, defined.config, folder)
        state = checkpoints.of_state(self._trainer.state, defined.sha256())
        while True:
            if name is not None:
                path = checkpoints.find(folder.checkpoints, str(name))
            elif (path := checkpoints.newest(folder.checkpoints)) is None:
                raise checkpoints.CheckpointError(f"{folder.checkpoints} holds no checkpoint yet")
            try:
                checkpoints.restore(state, path, partial=False, run_sha256=defined.sha256())
            except checkpoints.CheckpointError:
                # A run that trains here deletes the oldest of those that it keeps.
                if name is not None or checkpoints.is_checkpoint(path):
                    raise
            else:
                return

    def _exported(self) -> keras.Model | None:
        """The model that is saved, where it is not the Trainer's.

        Raises:
          TypeError, ValueError: it is not a model, or it has other weights.
        """
        if self._export is None:
            return None
        exported = self._export(self._trainer.state.model)
        if not isinstance(exported, keras.Model):
            raise TypeError(f"export returned {checks.described(exported)}: must be a Keras model")
        there = {id(weight) for weight in exported.weights}
        for weight in self._trainer.state.model.weights:
            if id(weight) not in there:
                raise ValueError(
                    f"export returned a model without the weight {weight.path} of the trained "
                    "model: it must call that model, not a copy of it"
                )
        return exported

    def _take_weights(self) -> None:
        """Takes the weights that the run begins with, unless it continues.

        Raises:
          RunFolderError, WarmStartError: the folder holds something else, or none can be taken.
        """

        def take():
            earlier, before = self._defined.earlier(self.folder), None
            if earlier is not None and resuming.is_begun(self.folder, earlier):
                self._check_same_test(earlier)
                before = earlier["resolved"].get("init_from")
                if before is not None and not warm_start.may_differ(before, self._init_from):
                    return before
            if self._init_from is None:
                return None
            definition.check_untrained(self._trainer.state, self.folder)
            found = warm_start.take(self._init_from, self._trainer.state).recorded()
            return before if before and before["sha256"] == found["sha256"] else found

        taken = self._workers.from_chief("the weights to begin with", take)
        worker_errors.check_fits(warm_start.is_recorded(taken), self._workers.name(0))
        self._defined.begin_with(taken)

    def _check_same_test(self, earlier: Mapping) -> None:
        """Refuses arrays other than those evaluated so far, with which hooks would compare them."""
        before, now = earlier["resolved"].get("test_sha256"), self._tested_sha256
        if before and now and before != now:
            raise run_folder.RunFolderError(
                f"{self.folder.shown}: `test` has other arrays (sha256 {now[:12]}) than the run so "
                f"far ({before[:12]}), and evaluations of the two cannot be compared. Give the run "
                "its own, or another folder"
            )

    def _plan(self, given) -> tuple[run_plan.Plan, keras_callbacks.KerasCallbacks | None]:
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            raise TypeError(f"every is {checks.described(given)}: must be a list")
        asked, hooks, callbacks, done, metrics = {}, [], [], set(), set()
        for one in given:
            if isinstance(one, every.Every):
                self._check_every(one, asked, done)
                done.add(one.what)
                metrics |= {one.metric} - {None}
                hooks += one.plan.get("hooks", ())
                asked |= {name: value for name, value in one.plan.items() if name != "hooks"}
            elif isinstance(one, keras.callbacks.Callback):
                callbacks.append(one)
            elif callable(one) and not inspect.isclass(one):
                hooks.append(one)
            else:
                raise TypeError(
                    f"every has {checks.described(one)}: must be towers.evaluate(...) or the like, "
                    "a function of an event, or a Keras callback"
                )
        interval = asked.get("evaluate_every", run_plan.Interval())
        if "stop_early" in done and not (interval.steps or interval.epochs):
            raise ValueError(
                "every has stop_early(...) but no evaluate(epochs=...) or evaluate(steps=...): "
                "give both"
            )
        if callbacks and self._per_epoch is None:
            raise ValueError(
                "every has Keras callbacks, which need epochs, but train does not know how many "
                "examples an epoch has: leave them out"
            )
        of_keras = keras_callbacks.KerasCallbacks(callbacks, self._trainer) if callbacks else None
        hooks += [of_keras] if of_keras else []
        plan = run_plan.Plan(self.last_step, self._per_epoch, self._class_names, **asked)
        if plan.profile_steps and plan.profile_steps[1] > self.last_step:
            raise ValueError(
                f"profile(last={plan.profile_steps[1]}): must be at most {self.last_step}, the "
                "last step"
            )
        return dataclasses.replace(plan, hooks=tuple(hooks), metrics=frozenset(metrics)), of_keras

    def _check_every(self, one: every.Every, asked: Mapping, done: Set[str]) -> None:
        if twice := [name for name in one.plan if name in asked]:
            raise ValueError(f"every has {one.what}(...) twice: {twice[0]} can be set only once")
        if one.needs_epochs and self._per_epoch is None:
            raise ValueError(
                f"every has {one.what}(epochs=...), but train does not know how many examples an "
                "epoch has; give steps"
            )
        if one.what == "keep_best" and "keep_best" in done:
            raise ValueError("every has keep_best(...) twice: give it once")
        if one.what in ("evaluate", "stop_early", "keep_best") and self._data.evaluation is None:
            raise ValueError(f"every has {one.what}(...), but the run has no test data: give test=")


def _check_source(train) -> None:
    for name in ("batches", "num_examples", "fingerprint"):
        if not hasattr(train, name):
            raise TypeError(
                f"train is {checks.described(train)}: must be a source of batches by step, such as "
                "input_pipeline.arrays.batches(inputs, labels)"
            )
    try:
        inspect.signature(train.batches).bind(0, 1, global_batch_size=1, share=range(1))
    except ValueError:  # the signature is unknown
        pass
    except TypeError as error:
        raise TypeError(
            f"train.batches must take (first_step, last_step, *, global_batch_size, share): {error}"
        ) from error
    if not isinstance(train.fingerprint, str):
        raise TypeError(
            f"train.fingerprint is {checks.described(train.fingerprint)}: must be a string"
        )
    if train.num_examples is not None and train.num_examples < 1:
        raise ValueError(f"train.num_examples={train.num_examples}: must be at least 1")


def _checked(batches: Iterable, expected: int) -> Iterable:
    """So many batches, even if there are more; an error where there are fewer."""
    made = 0
    for batch in itertools.islice(batches, expected):
        yield checks.parts_of(batch)
        made += 1
    if made < expected:
        raise errors.UserError(
            f"train ended after {made} of {expected} batches; it must have one for each step"
        )
