"""The training run: steps, logging, summaries, checkpoints, evaluations, and its end."""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from towers import (
    devices,
    not_finite,
    prefetch,
    schedules,
    step,
    trainer,
    worker,
)
from towers.runs import (
    activations,
    checkpoints,
    console,
    divergence,
    export,
    interrupts,
    run_folder,
    run_lock,
    summaries,
)
from towers.support import errors, hashes, tally


class TrainingError(errors.UserError):
    """The run cannot go on; the message is for the person at the keyboard."""


class NotFiniteEvaluationError(TrainingError):
    """The loss of an evaluation is NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """When a run ends, and what it does on the way.

    Attributes:
      last_step: the step to stop after.
      examples_per_epoch: size of the training split.
      class_names: one per class.
      log_every_steps: between two lines of `metrics.jsonl`; at least 1.
      summary_every_steps: between two sets of histograms and images; 0 for none.
      verify_every_steps: between two hashes of the state in `metrics.jsonl`; 0 for none.
      checkpoint_every_steps: between two checkpoints; at least 1.
      checkpoints_to_keep: the newest few; at least 1.
      eval_every_epochs: between two evaluations; 0 for one at the end.
      profile_steps: (first, last) steps to profile, or None.
      eval_of_workers: whether an evaluation also shows the accuracy of each worker's share.
    """

    last_step: int
    examples_per_epoch: int
    class_names: tuple[str, ...]
    log_every_steps: int
    summary_every_steps: int
    verify_every_steps: int
    checkpoint_every_steps: int
    checkpoints_to_keep: int
    eval_every_epochs: float
    profile_steps: tuple[int, int] | None
    eval_of_workers: bool = False


@dataclasses.dataclass(frozen=True)
class Data:
    """Where batches come from.

    Attributes:
      training: (first_step, last_step) to the batches (images, labels) of those steps.
      evaluation: batches (images, labels, mask) that hold each example of a split once, whenever
        they are iterated over.
      evaluation_count: examples in that split.
      evaluation_split: its name.
    """

    training: Callable[[int, int], Iterable]
    evaluation: Iterable
    evaluation_count: int
    evaluation_split: str = "test"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: its `final_model.json`, or the exit code and step of an interruption."""

    final: Mapping | None
    step: int
    exit_code: int = 0


def last_step(
    train_epochs: float,
    max_steps: int | None,
    examples_per_epoch: int,
    global_batch_size: int,
) -> int:
    """The step a run ends after: the first to reach `train_epochs`, or `max_steps` if earlier.

    Example:
      >>> last_step(5.0, None, 50_000, 128)
      1954
    """
    examples = schedules.exact(train_epochs) * examples_per_epoch
    steps = math.ceil(examples / global_batch_size)
    return steps if max_steps is None else min(steps, max_steps)


class Run:
    """One training run in its folder; `lock` is to be held while it restores and trains.

    With several workers each has one, makes the same steps and takes part in the evaluations; the
    chief alone reads and writes the folder, holds the lock and shows progress.
    """

    def __init__(
        self,
        tower_trainer: trainer.Trainer,
        folder: run_folder.RunFolder,
        plan: Plan,
        data: Data,
        run_sha256: str = "",
        begins_elsewhere: bool = False,
    ):
        """
        Args:
          tower_trainer: makes the steps.
          folder: of the run.
          plan: when it ends, and what it does on the way.
          data: where batches come from.
          run_sha256: a hash of what defines the run; its checkpoints have it, and no other's are
            restored.
          begins_elsewhere: whether it begins from another run's checkpoint.
        """
        self.trainer = tower_trainer
        self.workers = tower_trainer.workers
        self.folder = folder
        self.plan = plan
        self.data = data
        self.lock = run_lock.RunLock(folder)
        self._checkpoints = checkpoints.Checkpoints(
            tower_trainer.state, folder.checkpoints, plan.checkpoints_to_keep, run_sha256
        )
        self._is_marked = False  # whether config.json says that there is a checkpoint
        self._begins_elsewhere = begins_elsewhere
        # Of the chief; it makes files: not before train().
        self._summaries: summaries.Summaries | None = None
        self._activations = activations.Activations(tower_trainer)
        self._evaluation: tally.Evaluation | None = None
        self._evaluated_steps: set[int] = set()  # with a line in metrics.jsonl
        self._hashed_steps: set[int] = set()  # likewise

    @property
    def damaged_checkpoints(self) -> list[str]:
        """What was wrong with each checkpoint that `restore` has passed over."""
        return self._checkpoints.damaged

    def restore(self, first_saved: int | None) -> str | None:
        """Goes back to the newest checkpoint that is whole; its path, or None if there is none.

        Args:
          first_saved: the step of the run's first checkpoint, whether or not it was kept; None
            where it never came to the end of saving one.

        Raises:
          CheckpointError: no checkpoint can be restored, or there is none although the run has
            saved some.
        """
        restored = self._checkpoints.restore_newest(ever_saved=first_saved is not None)
        self._is_marked = restored is not None
        if restored is None and first_saved is not None:
            raise checkpoints.CheckpointError(
                f"the run has saved checkpoints, the first at step {first_saved}, and "
                f"{self.folder.checkpoints} holds none; bring them back, or choose another "
                "--train_dir"
            )
        return restored

    def drop_later_metrics(self, *, anew: bool) -> None:
        """Removes what the folder holds of steps that will be made again.

        Args:
          anew: whether nothing was restored, so that all of it is of an attempt before.

        Raises:
          RunFolderError: `metrics.jsonl` is damaged, or a file cannot be written or removed.
        """
        kept = self.folder.drop_metrics_after(-1 if anew else int(self.trainer.state.step))
        if anew:
            self.folder.remove_events()
        split = self.data.evaluation_split
        self._evaluated_steps = {line["step"] for line in kept if line.get("split") == split}
        self._hashed_steps = {line["step"] for line in kept if "state_sha256" in line}

    def train(self, config: Mapping) -> Outcome:
        """Trains to the plan's last step, or until a signal asks to stop."""
        first_step, is_chief = int(self.trainer.state.step), self.workers.is_chief
        if is_chief:
            self._summaries = summaries.Summaries(self.folder)
        progress = console.progress(first_step, self.plan.last_step, is_chief)
        try:
            outcome = self._train(first_step, config, progress)
        except BaseException as error:
            with contextlib.suppress(run_folder.RunFolderError):  # what went wrong first is said
                self._flush()
            if is_chief and isinstance(error, worker.WorkerError):
                raise worker.WorkerError(f"{error}.{self._newest_checkpoint()}") from error
            raise
        finally:
            progress.close()
        self._flush()
        return outcome

    def _flush(self) -> None:
        if self._summaries:
            self._summaries.flush()

    def _train(self, first_step: int, config: Mapping, progress) -> Outcome:
        with interrupts.Interrupts() as asked, contextlib.ExitStack() as profile:
            self._steps(first_step, config, progress, asked, profile)
            at_step = int(self.trainer.state.step)
            self._save()
            if self.workers.stop_asked():
                return Outcome(None, at_step, exit_code=128 + self.workers.stop_asked())
            self._evaluate(progress)
            return Outcome(self.workers.from_chief(self._export), at_step)

    def _export(self) -> dict:
        with self._in_its_folder():
            return export.final_model(
                self.trainer,
                self.folder,
                self.plan.examples_per_epoch,
                self._evaluation,
                self.data.evaluation_split,
            )

    def _check_same_on_all_workers(self, parts_sha256: Mapping[str, str]) -> None:
        """Workers only ever give each other gradients: that their weights agree is checked."""
        chief, *others = everyone = self.workers.exchange(parts_sha256)
        for index, message in enumerate(everyone):
            worker.check_fits(isinstance(message, dict), self.workers.name(index))
        for index, parts in enumerate(others, start=1):
            if different := [name for name in chief if parts.get(name) != chief[name]]:
                raise TrainingError(
                    f"step {int(self.trainer.state.step)}: {self.workers.name(index)} has other "
                    f"{', '.join(different)} than {self.workers.name(0)}; is one of the machines "
                    f"of another kind, or faulty?{self._newest_checkpoint()}"
                )

    @contextlib.contextmanager
    def _in_its_folder(self) -> Iterator[None]:
        """Says that the folder has gone, where it went before or during what is written in it.

        TensorFlow makes the folder of a checkpoint again: one that was under way is then in a place
        where nobody looks for it.
        """
        self.lock.check_held()
        try:
            yield
        except (run_folder.RunFolderError, checkpoints.CheckpointError):
            self.lock.check_held()
            raise
        self.lock.check_held()

    def _steps(self, first_step, config, progress, asked, profile) -> None:
        plan, clock = self.plan, _Clock(first_step)
        for at_step, batch in enumerate(self._batches(first_step), start=first_step + 1):
            images, labels, parts = batch
            if at_step == first_step + 1:
                self._begin(first_step, config, batch, progress)
                clock.restart(first_step)
            shows = self._summaries and _is_multiple(at_step, plan.summary_every_steps)
            with clock.paused():
                self._profile(at_step, first_step, profile)
                shown = self._activations(images) if shows else {}

            try:
                with self._enough_memory():
                    result = self.trainer.train_step(images, labels, parts=parts)
            except not_finite.NotFiniteError as error:
                raise self._cannot_go_on(f"{error}, and the step was not applied") from error
            progress.advance()

            if _is_multiple(at_step, plan.log_every_steps) or at_step in (1, plan.last_step):
                self._log(result, at_step, clock, progress)
            with clock.paused():
                if _is_multiple(at_step, plan.verify_every_steps) or (
                    plan.verify_every_steps and at_step == plan.last_step
                ):
                    self._verify()
                if shows:
                    self._summaries.histograms(
                        self.trainer.state.model, result, shown, images, at_step
                    )
                if plan.profile_steps and at_step == plan.profile_steps[1]:
                    profile.close()
                if not progress.is_read:
                    asked.received = asked.received or int(signal.SIGPIPE)
                self.workers.ask_to_stop(asked.received)
                if self.workers.stop_asked():
                    return  # train() saves
                if _is_multiple(at_step, plan.checkpoint_every_steps):
                    self._save()
                if at_step < plan.last_step and self._evaluation_is_due(at_step):
                    self._evaluate(progress)

    def _batches(self, first_step: int) -> Iterator[tuple]:
        """(images, labels, parts) for each step that is left."""
        batches = self.data.training(first_step, self.plan.last_step)
        if devices.are_cpus(self.trainer.tower_devices):  # where there is nowhere to copy to
            return ((images, labels, None) for images, labels in batches)
        return prefetch.to_towers(batches, self.trainer.tower_devices)

    def _begin(self, first_step, config, batch, progress) -> None:
        """Writes what TensorBoard shows of the run as a whole, which traces the step's graph."""
        graph = self.trainer.step_graph(*batch)
        if self._summaries:
            self._summaries.start(config, graph)
        due = self.workers.from_chief(
            lambda: [0 not in self._hashed_steps, first_step not in self._evaluated_steps]
        )
        is_two = isinstance(due, list) and [type(one) for one in due] == [bool, bool]
        worker.check_fits(is_two, self.workers.name(0))
        verifies, evaluates = due
        if verifies and self.plan.verify_every_steps and first_step == 0:
            self._verify()
        if evaluates and self._evaluation_is_due(first_step):
            self._evaluate(progress)  # the run was stopped before it came to this

    def _profile(self, at_step: int, first_step: int, profile: contextlib.ExitStack) -> None:
        """Starts the profile at its first step, or in its midst where a run goes on there."""
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
        """Saves a checkpoint, unless its weights are none that a run could go on from.

        That is so where they are not those of all workers; or not finite, as finite gradients make
        them where the rate is too high for the range of float32.
        """
        if self.workers.count > 1:  # hashing the state of a large network takes a while
            self._check_same_on_all_workers(self.trainer.state.parts_sha256())
        state = self.trainer.state
        variables = [*state.model.variables, *state.optimizer.variables]
        wrong = [v.path for v in variables if not np.isfinite(v.value.numpy()).all()]
        if wrong:
            raise self._cannot_go_on(
                f"step {int(state.step)}: what the update left is not finite ({', '.join(wrong)})"
            )
        if not self.workers.is_chief:
            return
        with self._in_its_folder():
            self._checkpoints.save()
            if not self._is_marked:
                self.folder.mark_saved(int(state.step))
                self._is_marked = True

    def _cannot_go_on(self, what: str) -> TrainingError:
        help_ = "a lower --learning_rate, a --clip_norm or a wider --compute_dtype may help"
        return TrainingError(f"{what}; {help_}.{self._newest_checkpoint()}{self._how_to_change()}")

    def _how_to_change(self) -> str:
        """How other settings can be given to this run, of the worker that can know."""
        if not self.workers.is_chief:
            return ""
        if not self._is_marked:
            earlier = " and an earlier checkpoint for --begin_from"
            also = earlier if self._begins_elsewhere else ""
            return f" The same command takes other settings{also}, and begins anew."
        return (
            " To go on from it or from an earlier one with other settings, give them with "
            f"--begin_from={self.folder.path}, or a checkpoint in it, and a new --train_dir."
        )

    @contextlib.contextmanager
    def _enough_memory(self) -> Iterator[None]:
        try:
            with enough_memory():
                yield
        except TrainingError as error:
            raise TrainingError(
                f"{error}, or on GPUs more --num_microbatches.{self._newest_checkpoint()}"
                f"{self._how_to_change()}"
            ) from error

    def _newest_checkpoint(self) -> str:
        """A sentence for a person whose run has to stop, of the worker that can know."""
        return f" {self._checkpoints.describe_newest()}" if self.workers.is_chief else ""

    def _log(self, result: step.StepResult, at_step, clock: "_Clock", progress) -> None:
        if not self.workers.is_chief:
            return
        step_seconds = clock.seconds_per_step(at_step)
        losses = {term: values.numpy() for term, values in result.losses.items()}
        metrics = self._metrics(losses, result, at_step, step_seconds)
        state = self.trainer.state
        apart = divergence.divergence(state.model, state.statistics_of_each)
        if apart:
            largest = max(figures["moving_mean"] for figures in apart.values())
            metrics["batch_norm_divergence"] = largest
        with self._in_its_folder():
            run_folder.append_line(self.folder.metrics, metrics)
            num_towers = len(self.trainer.tower_devices) * self.workers.count
            self._summaries.scalars(metrics, losses, num_towers, apart)
        progress.metrics(metrics, (self.plan.last_step - at_step) * step_seconds)

    def _metrics(self, losses, result: step.StepResult, at_step: int, step_seconds: float) -> dict:
        batch = self.trainer.global_batch_size
        examples_seen = at_step * batch
        return {
            "step": at_step,
            "examples_seen": examples_seen,
            "epoch": examples_seen / self.plan.examples_per_epoch,
            # Of the next update: the schedule at this line's examples_seen.
            "learning_rate": self.trainer.learning_rate(examples_seen),
            "loss": _mean(losses["total"]),
            **{term: _mean(values) for term, values in losses.items() if _is_of_outputs(term)},
            "weight_decay": sum(
                _mean(values) for term, values in losses.items() if term.startswith("weight_decay/")
            ),
            "accuracy": int(result.correct.numpy().sum()) / batch,
            "examples_per_second": batch / step_seconds,
            "step_seconds": step_seconds,
        }

    def _evaluation_is_due(self, at_step: int) -> bool:
        every = schedules.exact(self.plan.eval_every_epochs) * self.plan.examples_per_epoch
        batch = self.trainer.global_batch_size
        before = max(0, at_step - 1)
        return every > 0 and at_step * batch // every > before * batch // every

    def _evaluate(self, progress) -> None:
        at_step = int(self.trainer.state.step)
        with self._enough_memory():
            result = self.trainer.evaluate(self.data.evaluation)
        try:
            check_evaluation(result, self.data.evaluation_count)
        except NotFiniteEvaluationError as error:
            raise self._cannot_go_on(f"step {at_step}: {error}") from error
        self._evaluation = result
        if not self.workers.is_chief:
            return
        examples_seen = int(self.trainer.state.examples_seen)
        epoch = examples_seen / self.plan.examples_per_epoch
        split = self.data.evaluation_split
        line = {"step": at_step, "epoch": epoch, "split": split} | result.as_metrics()
        shares = result.of_workers if self.plan.eval_of_workers else ()
        if shares:
            counts, accuracies = zip(*shares, strict=True)
            line |= {"count_of_workers": counts, "accuracy_of_workers": accuracies}
        with self._in_its_folder():
            if at_step not in self._evaluated_steps:  # a run that goes on may come by here again
                run_folder.append_line(self.folder.metrics, line)
                self._evaluated_steps.add(at_step)
            self._summaries.evaluation(result, self.plan.class_names, at_step)
        progress.say(
            f"{split} at step {at_step}: accuracy {result.accuracy:.2%}, loss {result.loss:.4f} "
            f"on {result.count:,} examples"
        )
        for index, (count, accuracy) in enumerate(shares):
            progress.say(f"  {self.workers.name(index)}: {accuracy:.2%} of its {count:,}")


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turns what Python and TensorFlow say of memory that is not there into a line.

    Raises:
      TrainingError: it was said while this was entered.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise TrainingError(
            "there is not enough memory for a batch; it takes a lower --global_batch_size"
        ) from error


def check_evaluation(result: tally.Evaluation, expected_count: int) -> None:
    """Each example exactly once, not 10,112 for 10,000; and a loss that is a number.

    Raises:
      TrainingError: another number of examples was evaluated.
      NotFiniteEvaluationError: the loss is NaN or infinite.
    """
    if result.count != expected_count:
        raise TrainingError(f"evaluated {result.count} examples of a split of {expected_count}")
    if not math.isfinite(result.loss):
        raise NotFiniteEvaluationError(
            f"the loss of the evaluation is {result.loss}: the model's outputs are not finite"
        )


def _is_multiple(at_step: int, every_steps: int) -> bool:
    return every_steps > 0 and at_step % every_steps == 0


def _is_of_outputs(term: str) -> bool:
    """Whether a term of the loss is that of an output, such as the cross entropy."""
    return term not in ("total", "model") and not term.startswith("weight_decay/")


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64))


class _Clock:
    """Seconds per step since the last log, leaving out what is not training."""

    def __init__(self, at_step: int):
        self.restart(at_step)

    def restart(self, at_step: int) -> None:
        self._since, self._at_step = time.perf_counter(), at_step

    def seconds_per_step(self, at_step: int) -> float:
        seconds = (time.perf_counter() - self._since) / (at_step - self._at_step)
        self.restart(at_step)
        return seconds

    @contextlib.contextmanager
    def paused(self):
        before = time.perf_counter()
        yield
        self._since += time.perf_counter() - before
