"""The training run: steps, logging, summaries, checkpoints, evaluations, and its end."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from towers import not_finite, prefetch, step, trainer
from towers.runs import (
    activations,
    ahead,
    checkpoints,
    console,
    definition,
    divergence,
    export,
    interrupts,
    run_errors,
    run_folder,
    run_lock,
    run_plan,
    step_metrics,
    summaries,
)
from towers.support import errors, first_layers, hashes, machine, tally, worker_errors


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
      final: what `final_model.json` has: `accuracy`, `loss` and others, by name; None where the run
        was interrupted.
      step: steps made.
      exit_code: that the command should end with: 0, or 128 + the number of a signal.
    """

    final: Mapping | None
    step: int
    exit_code: int = 0


class Loop:
    """The loop of a run in its folder; hold `lock` while it restores and trains.

    With several workers each has one, makes the same steps and takes part in the evaluations; the
    chief alone reads and writes the folder, holds the lock and shows progress.
    """

    def __init__(
        self,
        tower_trainer: trainer.Trainer,
        folder: run_folder.RunFolder,
        plan: run_plan.Plan,
        data: run_plan.Data,
        defined: definition.Definition,
    ):
        """
        Args:
          tower_trainer: makes the steps.
          folder: of the run.
          plan: when it ends, and what it does along the way.
          data: where batches come from.
          defined: what the run is; its checkpoints have a hash of it, and no others are
            restored.
        """
        self.trainer = tower_trainer
        self.workers = tower_trainer.workers
        self.folder = folder
        self.plan = plan
        self.data = data
        self.lock = run_lock.RunLock(folder)
        self._checkpoints = checkpoints.Checkpoints(
            tower_trainer.state,
            folder.checkpoints,
            plan.checkpoints_to_keep,
            defined.sha256(),
        )
        self._defined = defined
        self._is_marked = False  # whether config.json says that there is a checkpoint
        # Of the chief; it makes files: not before train().
        self._summaries: summaries.Summaries | None = None
        self._activations = activations.Activations(tower_trainer)
        self._evaluation: tally.Evaluation | None = None  # the last
        self._infinite: list[keras.Variable] = []  # which no step changes: the -inf of a mask
        self._evaluated_steps: set[int] = set()  # that metrics.jsonl has lines of
        self._hashed_steps: set[int] = set()  # likewise

    def restore(self, first_saved: int | None) -> str | None:
        """Goes back to the newest checkpoint; its path, or None if there is none.

        Args:
          first_saved: the step of the run's first checkpoint, whether or not it was kept; None
            where it never finished saving one.

        Raises:
          CheckpointError: it cannot be restored, or there is none although the run has saved some.
        """
        restored = self._checkpoints.restore()
        self._is_marked = restored is not None
        if restored is None and first_saved is not None:
            raise checkpoints.CheckpointError(
                f"the run has saved checkpoints, the first at step {first_saved}, but "
                f"{self.folder.checkpoints} holds none; put them back, or choose another "
                "folder"
            )
        return restored

    def drop_later_metrics(self, *, starts_over: bool) -> None:
        """Removes what the folder holds of steps that will be repeated: all where it `starts_over`.

        Raises:
          RunFolderError: `metrics.jsonl` is damaged, or a file cannot be written or removed.
        """
        kept = self.folder.drop_metrics_after(-1 if starts_over else int(self.trainer.state.step))
        if starts_over:
            self.folder.remove_events()
        split = self.data.evaluation_split
        self._evaluated_steps = {line["step"] for line in kept if line.get("split") == split}
        self._hashed_steps = {line["step"] for line in kept if "state_sha256" in line}

    def train(self, config: Mapping) -> Outcome:
        """Trains to the plan's last step, or until a signal asks to stop."""
        first_step, is_chief = int(self.trainer.state.step), self.workers.is_chief
        self.workers.if_one_is_gone(self._described)
        others = self.trainer.state.model.non_trainable_variables
        self._infinite = [v for v in others if not _is_finite(v)]
        if is_chief:
            self._summaries = summaries.Summaries(self.folder)
        progress = console.progress(first_step, self.plan.last_step, is_chief)
        # Signals wait until the last step is saved where a worker is gone: a launcher may send one.
        with interrupts.Interrupts() as asked:
            try:
                outcome = self._train(first_step, config, progress, asked)
            except BaseException as error:
                with contextlib.suppress(run_folder.RunFolderError):  # the first error counts
                    self._flush()
                if is_chief and isinstance(error, worker_errors.WorkerError):
                    not_saved = self._save_without_worker(first_step, error)
                    raise type(error)(f"{error}.{not_saved}{self._newest_checkpoint()}") from error
                raise
            finally:
                progress.close()
        self._flush()
        return outcome

    def _flush(self) -> None:
        if self._summaries:
            self._summaries.flush()

    def _train(self, first_step: int, config: Mapping, progress, asked) -> Outcome:
        with contextlib.ExitStack() as profile:
            stopped_by = self._steps(first_step, config, progress, asked, profile)
            at_step = int(self.trainer.state.step)
            self._save()
            if stopped_by:
                return Outcome(None, at_step, exit_code=128 + stopped_by)
            if at_step == first_step == self.plan.last_step:
                self._verify_if_missing(first_step)
            self._evaluate(progress)
            return Outcome(self.workers.from_chief("the final model", self._export), at_step)

    def _export(self) -> dict:
        with self._in_its_folder():
            return export.final_model(
                self.trainer,
                self.folder,
                self.plan.examples_per_epoch,
                self._evaluation,
                self.data.evaluation_split,
                self.plan.exported,
            )

    def _check_same_on_all_workers(self, parts_sha256: Mapping[str, str]) -> None:
        """Workers only ever exchange gradients: this checks that their weights agree."""
        chief, *others = everyone = self.workers.exchange("hashes of their states", parts_sha256)
        for index, message in enumerate(everyone):
            worker_errors.check_fits(isinstance(message, dict), self.workers.name(index))
        for index, parts in enumerate(others, start=1):
            if different := [name for name in chief if parts.get(name) != chief[name]]:
                raise run_errors.TrainingError(
                    f"step {int(self.trainer.state.step)}: {self.workers.name(index)} and "
                    f"{self.workers.name(0)} differ in {', '.join(different)}; is one of the "
                    f"machines of another kind, or faulty?{self._newest_checkpoint()}"
                )

    @contextlib.contextmanager
    def _in_its_folder(self) -> Iterator[None]:
        """Reports that the folder is gone, if it went before or during a write into it.

        TensorFlow makes the folder of a checkpoint again: one that was being written is then in a
        place where nobody looks for it.
        """
        self.lock.check_held()
        try:
            yield
        except (run_folder.RunFolderError, checkpoints.CheckpointError):
            self.lock.check_held()
            raise
        self.lock.check_held()

    def _steps(self, first_step, config, progress, asked, profile) -> int | None:
        """Trains; returns the signal that stopped it, or None at the end."""
        plan, clock = self.plan, step_metrics.Clock(first_step)
        for at_step, batch in enumerate(self._batches(first_step), start=first_step + 1):
            inputs, labels, parts = batch
            if at_step == first_step + 1:
                self._begin(first_step, config, batch, progress)
                clock.restart(first_step)
            shows = self._summaries and plan.is_summarized(at_step)
            with clock.paused():
                self._profile(at_step, first_step, profile)
                shown = self._activations(inputs) if shows else {}

            try:
                with self._enough_memory():
                    result = self.trainer.train_step(inputs, labels, parts=parts)
            except not_finite.NotFiniteError as error:
                raise self._cannot_continue(f"{error}; the step was not applied") from error
            progress.advance()

            if plan.is_logged(at_step):
                self._log(result, at_step, clock, progress)
            with clock.paused():
                if self.plan.is_verified(at_step):
                    self._verify()
                if shows:
                    self._summaries.histograms(
                        self.trainer.state.model, result, shown, inputs, at_step
                    )
                if plan.profile_steps and at_step == plan.profile_steps[1]:
                    profile.close()
                if not progress.is_read:
                    asked.received = asked.received or int(signal.SIGPIPE)
                self.workers.ask_to_stop(asked.received)
                if stopped_by := self.workers.stop_asked():
                    return stopped_by  # train() saves
                if plan.is_saved(at_step):
                    self._save()
                if at_step < plan.last_step and self._evaluation_is_due(at_step):
                    self._evaluate(progress)
        return None

    def _batches(self, first_step: int) -> Iterator[tuple]:
        """(inputs, labels, parts) for each step left."""
        batches = self.data.training(first_step, self.plan.last_step)
        if machine.are_cpus(self.trainer.tower_devices):  # where there is nowhere to copy to
            return ((*batch, None) for batch in batches)
        trainer = self.trainer
        parts_of = trainer.tower_devices, trainer.shares.tower_batch_sizes
        inputs_type = first_layers.inputs_type(trainer.state.model)
        return ahead.taken_ahead(prefetch.to_towers(batches, *parts_of, inputs_type))

    def _begin(self, first_step, config, batch, progress) -> None:
        """Writes what TensorBoard shows of the run as a whole, which traces the step's graph."""
        inputs, labels, parts = batch
        graph = self.trainer.step_graph(inputs, labels, parts=parts)
        self._infinite = [v for v in self._infinite if not _is_assigned(v, graph)]
        if self._summaries:
            self._summaries.start(config, graph)
        self._verify_if_missing(first_step)
        evaluates = self.workers.from_chief(
            "whether an evaluation is missing", lambda: first_step not in self._evaluated_steps
        )
        worker_errors.check_fits(isinstance(evaluates, bool), self.workers.name(0))
        if evaluates and self._evaluation_is_due(first_step):
            self._evaluate(progress)  # the run was stopped before this evaluation

    def _verify_if_missing(self, first_step: int) -> None:
        """Writes the hash of the step that the run is at, if it was stopped before that."""
        if not self.plan.is_verified(first_step):
            return
        is_missing = self.workers.from_chief(
            "whether a hash is missing", lambda: first_step not in self._hashed_steps
        )
        worker_errors.check_fits(isinstance(is_missing, bool), self.workers.name(0))
        if is_missing:
            self._verify()

    def _profile(self, at_step: int, first_step: int, profile: contextlib.ExitStack) -> None:
        """Starts the profile at its first step, or in its middle where a run continues there."""
        if self.plan.profile_steps is None or not self.workers.is_chief:
            return
        first, last = self.plan.profile_steps
        if at_step == max(first, first_step + 1) and at_step <= last:
            profile.enter_context(summaries.profile(self.folder))

    def _verify(self) -> None:
        """Writes the hash of the state, by which two runs are compared step by step."""
        state, parts = self.trainer.state, self.trainer.state.parts_sha256()
        self._check_same_on_all_workers(parts)
        if not self.workers.is_chief:
            return
        line = {
            "step": int(state.step),
            "examples_seen": int(state.examples_seen),
            "state_sha256": hashes.sha256_of_parts(parts),
            "parts_sha256": parts,
        }
        with self._in_its_folder():
            run_folder.append_line(self.folder.metrics, line)

    def _save(self) -> None:
        """Saves a checkpoint, unless no run could continue from its weights.

        That is so where workers differ in them; or where they are not finite, as even finite
        gradients make them where the rate is too high for the range of float32.
        """
        if self.workers.count > 1:  # hashing the state of a large network takes a while
            self._check_same_on_all_workers(self.trainer.state.parts_sha256())
        self._check_finite()
        if self.workers.is_chief:
            with self._in_its_folder():
                self._write_checkpoint()

    def _check_finite(self) -> None:
        state = self.trainer.state
        variables = [*state.model.variables, *state.optimizer.variables]
        constants = set(map(id, self._infinite))
        wrong = [v.path for v in variables if id(v) not in constants and not _is_finite(v)]
        if wrong:
            raise self._cannot_continue(
                f"step {int(state.step)}: the update has left NaN or Inf in {', '.join(wrong)}"
            )

    def _write_checkpoint(self) -> None:
        self._checkpoints.save()
        if not self._is_marked:
            self.folder.mark_saved(int(self.trainer.state.step))
            self._is_marked = True

    def _save_without_worker(self, first_step: int, error: worker_errors.WorkerError) -> str:
        """Saves the last complete step where another worker is gone; returns why not, or "".

        An update begins when the sums of all workers have come, so it is made whole or not at all.
        The workers left that have noticed report their step and state; where it is the chief's
        step, the state must be the same.
        """
        state = self.trainer.state
        step = int(state.step)
        if not isinstance(error, worker_errors.GoneError) or step == first_step:
            return ""
        own = self._described()
        for index, of_other in self.workers.survivors(str(error)).items():
            if isinstance(of_other, list) and of_other[:1] == own[:1] and of_other != own:
                name = self.workers.name(index)
                return f" Step {step} is not saved: {name} and worker 0 have different weights."
        try:
            self._check_finite()
            with self._in_its_folder():
                self._write_checkpoint()
        except (errors.UserError, OSError) as problem:
            return f" Step {step} is not saved: {problem}."
        return ""

    def _described(self) -> list:
        """What workers compare where one of them is gone: their step, and hashes of its parts."""
        return [int(self.trainer.state.step), self.trainer.state.parts_sha256()]

    def _cannot_continue(self, what: str) -> run_errors.TrainingError:
        help_ = "a lower learning rate, clipped gradients or a wider compute type may help"
        return run_errors.TrainingError(
            f"{what}; {help_}.{self._newest_checkpoint()}{self._how_to_change()}"
        )

    def _how_to_change(self) -> str:
        """How other settings can be given to this run, on the worker that knows."""
        if not self.workers.is_chief:
            return ""
        return f" {self._defined.how_to_change(self.folder, self._is_marked)}"

    @contextlib.contextmanager
    def _enough_memory(self) -> Iterator[None]:
        try:
            with run_errors.enough_memory():
                yield
        except run_errors.TrainingError as error:
            one_at_once = self.trainer.program.tower_program.at_once == 1
            way = "" if one_at_once else ", or accumulate_gradients"
            raise run_errors.TrainingError(
                f"{error}{way}.{self._newest_checkpoint()}{self._how_to_change()}"
            ) from error

    def _newest_checkpoint(self) -> str:
        """A sentence for a person whose run has to stop, on the worker that knows."""
        return f" {self._checkpoints.describe_newest()}" if self.workers.is_chief else ""

    def _log(self, result: step.StepResult, at_step, clock: step_metrics.Clock, progress) -> None:
        if not self.workers.is_chief:
            return
        step_seconds = clock.seconds_per_step(at_step)
        losses = {term: values.numpy() for term, values in result.losses.items()}
        metrics = step_metrics.line(
            self.trainer, result, losses, at_step, step_seconds, self.plan.examples_per_epoch
        )
        state = self.trainer.state
        apart = divergence.divergence(state.model, state.statistics_of_each)
        if apart:
            largest = max(figures["moving_mean"] for figures in apart.values())
            metrics["batch_norm_divergence"] = largest
        with self._in_its_folder():
            run_folder.append_line(self.folder.metrics, metrics)
            num_towers = sum(self.trainer.shares.towers_of_workers)
            self._summaries.scalars(metrics, losses, num_towers, apart)
        progress.metrics(metrics, (self.plan.last_step - at_step) * step_seconds)

    def _evaluation_is_due(self, at_step: int) -> bool:
        return self.plan.is_evaluated(at_step, self.trainer.global_batch_size)

    def _evaluate(self, progress) -> None:
        at_step, seen = int(self.trainer.state.step), int(self.trainer.state.examples_seen)
        with self._enough_memory():
            result = self.trainer.evaluate(self.data.evaluation)
        try:
            run_errors.check_evaluation(result, self.data.evaluation_count)
        except run_errors.NotFiniteEvaluationError as error:
            raise self._cannot_continue(f"step {at_step}: {error}") from error
        self._evaluation = result
        split = self.data.evaluation_split
        line = {"step": at_step, "epoch": seen / self.plan.examples_per_epoch, "split": split}
        line |= result.as_metrics()
        shares = result.of_workers if self.plan.eval_of_workers else ()
        if shares:
            counts, accuracies = zip(*shares, strict=True)
            line |= {"count_of_workers": counts, "accuracy_of_workers": accuracies}
        if not self.workers.is_chief:
            return
        with self._in_its_folder():
            if at_step not in self._evaluated_steps:  # a run that continues may evaluate again
                run_folder.append_line(self.folder.metrics, line)
            self._evaluated_steps.add(at_step)
            self._summaries.evaluation(result, self.plan.class_names, at_step, seen)
        progress.say(
            f"{split} at step {at_step}: accuracy {result.accuracy:.2%}, loss {result.loss:.4f} on "
            f"{result.count:,} examples"
        )
        for index, (count, accuracy) in enumerate(shares):
            progress.say(f"  {self.workers.name(index)}: {accuracy:.2%} of its {count:,}")


def _is_finite(variable: keras.Variable) -> bool:
    return bool(np.isfinite(variable.value.numpy()).all())


def _is_assigned(variable: keras.Variable, graph: tf.Graph) -> bool:
    """Whether a step changes a variable."""
    names = {inside.name for outside, inside in graph.captures if outside is variable.value.handle}
    # Of the functions that a step calls, only the update gets variables, and not their values.
    assigning = (
        op for op in graph.get_operations() if op.type.startswith("Assign") or "Call" in op.type
    )
    return any(given.name in names for op in assigning for given in op.inputs)
