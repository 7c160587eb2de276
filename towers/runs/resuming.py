"""Trains a run in its folder, from its start or its newest checkpoint, and prints how it ended."""

import contextlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from towers import train_state, trainer
from towers.runs import (
    checkpoints,
    console,
    definition,
    loop,
    placement,
    run_errors,
    run_folder,
    run_plan,
    stretches,
    warm_start,
)
from towers.support import adapted, worker_errors

_IS_FINISHED = "whether the run has finished"


@placement.on_host
def train(
    tower_trainer: trainer.Trainer,
    folder: run_folder.RunFolder,
    plan: run_plan.Plan,
    data: run_plan.Data,
    defined: definition.Definition,
    init_from: str | None = None,
) -> loop.Outcome:
    """Trains or continues a run and prints how it ended.

    With several workers each calls it, with the same arguments.

    Args:
      tower_trainer: makes the steps.
      folder: of the run; made if it does not exist.
      plan: when it ends, and what it does along the way.
      data: where batches come from.
      defined: what the run is.
      init_from: what a new run takes weights from, as `warm_start.take` has it.

    Raises:
      RunFolderError: another training is at work in the folder, it cannot be written, or it was
        taken away; or it holds another run.
      WarmStartError: no weights can be taken from `init_from`.
      WorkerError: another worker is gone or has ended.
      CheckpointError: the newest checkpoint cannot be restored, or one cannot be written.
      TrainingError: a loss, a gradient or a weight is not finite, or the run is past its end.
    """
    # Before the Loop, whose checkpoints have the run's hash.
    workers = tower_trainer.workers
    taken = workers.from_chief(
        "the weights to begin with",
        lambda: _taken(folder, defined, init_from, tower_trainer.state),
    )
    worker_errors.check_fits(warm_start.is_recorded(taken), workers.name(0))
    defined.begin_with(taken)
    run = loop.Loop(tower_trainer, folder, plan, data, defined)
    if not workers.is_chief:
        return _train_with_chief(run, defined.config)
    with run.lock.held():
        # It may have begun only since this process first looked.
        earlier = defined.earlier(folder)
        if earlier is not None and is_begun(folder, earlier):
            defined.check_same(earlier, folder)
            definition.check_same_layers(earlier, defined.config, folder)
            return _train_as_chief(run, defined, earlier)
        return _train_as_chief(run, defined, None)


def _taken(
    folder: run_folder.RunFolder,
    defined: definition.Definition,
    init_from: str | None,
    state: train_state.TrainState,
) -> dict | None:
    """The weights that a run begins with, or began with, as `warm_start` records them."""
    earlier = defined.earlier(folder)
    if earlier is not None and is_begun(folder, earlier):
        return earlier["resolved"]["init_from"]
    return init_from and warm_start.take(init_from, state).recorded()


def is_begun(folder: run_folder.RunFolder, config: Mapping) -> bool:
    """Whether a run has something to continue from; else it starts over, with any settings."""
    return bool(
        run_folder.FIRST_CHECKPOINT in config
        or checkpoints.by_step(folder.checkpoints)
        or folder.final_summary.exists()
    )


def _train_with_chief(run: loop.Loop, config: Mapping) -> loop.Outcome:
    finished = run.workers.from_chief(_IS_FINISHED, lambda: None)
    if finished is not None:
        print("the run has finished already")
        return loop.Outcome(finished, run.plan.last_step)
    run.trainer.broadcast_state()
    adapted.refresh(run.trainer.state.model)
    outcome = run.train(config)
    how = "stopped" if outcome.final is None else "finished"
    print(f"{how} at step {outcome.step}; {run.workers.name(0)} has the run")
    return outcome


def _train_as_chief(
    run: loop.Loop, defined: definition.Definition, earlier: Mapping | None
) -> loop.Outcome:
    folder, last_step, config = run.folder, run.plan.last_step, defined.config
    finished = folder.read_final_summary()
    if finished and finished["step"] >= last_step:
        run.workers.from_chief(_IS_FINISHED, lambda: finished)
        print(f"the run has finished already, at step {finished['step']}")
        _say_finished(folder, finished)
        return loop.Outcome(finished, finished["step"])
    restored = run.restore(earlier and earlier.get(run_folder.FIRST_CHECKPOINT))
    if restored is None:
        for line in warm_start.said(config["resolved"]["init_from"]):
            print(console.printable(line), flush=True)
    adapted.refresh(run.trainer.state.model)
    at_step = int(run.trainer.state.step)
    if at_step > last_step:
        raise run_errors.TrainingError(
            f"the run is at step {at_step}, past its last step, {last_step}; give it a later end"
        )
    if earlier is None:
        _say_starts_over(folder, defined)
    config = _with_stretches(config, earlier, restored, at_step)
    run.drop_later_metrics(starts_over=restored is None)
    folder.create(config)
    run.workers.from_chief(_IS_FINISHED, lambda: None)
    run.trainer.broadcast_state()
    if restored:
        print(f"continuing at step {at_step}", flush=True)
    outcome = run.train(config)
    if outcome.final is None:
        print(
            f"stopped at step {outcome.step} of {last_step}; checkpoint saved: the same command "
            "continues from there"
        )
    else:
        _say_finished(folder, outcome.final)
    return outcome


def _say_starts_over(folder: run_folder.RunFolder, defined: definition.Definition) -> None:
    """Says that the run in the folder has no checkpoint yet, and which settings change."""
    before = folder.read_config()
    if before is None:
        return
    changed = defined.differences(before, "so far it")
    line = f"the run in {folder.path} has no checkpoint yet and starts over"
    changes = f": {'; '.join(changed)}" if changed else ""
    print(console.printable(line + changes), flush=True)


def _with_stretches(
    config: Mapping, earlier: Mapping | None, restored: str | None, at_step: int
) -> dict:
    """The configuration with what the run has run on so far; prints what has changed."""
    so_far = earlier["stretches"] if earlier and restored else []
    now = stretches.extended(so_far, at_step, config["stretches"][-1]["runs_on"])
    if so_far and now[-1]["first_step"] == at_step:
        for change in stretches.changes(now[-2:]):
            said = f"{change}: the last bits may differ from those of a run without this"
            print(console.printable(said), flush=True)
    if not restored:
        return dict(config) | {"stretches": now}
    first = earlier.get(run_folder.FIRST_CHECKPOINT, checkpoints.step_of(restored))
    return dict(config) | {"stretches": now, run_folder.FIRST_CHECKPOINT: first}


def _say_finished(folder: run_folder.RunFolder, final: Mapping) -> None:
    print(
        f"finished: {final['split']} accuracy {final['accuracy']:.2%}, {folder.final_model}, "
        f"weights sha256 {final['weights_sha256'][:16]}\n"
        f"watch it: {_tensorboard()} --logdir {folder.path}"
    )


def _tensorboard() -> str:
    """The command that opens TensorBoard, from wherever this Python has it."""
    beside_python = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") or not beside_python.exists():
        return "tensorboard"
    with contextlib.suppress(ValueError):  # not below the current folder
        return str(beside_python.relative_to(Path.cwd()))
    return str(beside_python)
