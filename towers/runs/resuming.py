"""Trains a run in its folder, from its start or its newest checkpoint, and prints how it ended."""

import contextlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from towers.runs import (
    checkpoints,
    console,
    definition,
    loop,
    run_errors,
    run_folder,
    stretches,
    warm_start,
)
from towers.support import adapted

_IS_FINISHED = "whether the run has finished"


def train(
    run: loop.Loop, defined: definition.Definition, *, needs_weights: bool = True
) -> loop.Outcome:
    """Trains or continues a run and prints how it ended.

    Args:
      run: its loop.
      defined: what the run is.
      needs_weights: whether a run that has finished already is restored: what comes after it uses
        the model.

    Raises:
      RunFolderError: another training is at work in the folder, it cannot be written, or it was
        taken away; or it holds another run.
      WorkerError: another worker is gone or has ended.
      CheckpointError: the newest checkpoint cannot be restored, or one cannot be written.
      TrainingError: a loss, a gradient or a weight is not finite, or the run is past its end.
    """
    if not run.workers.is_chief:
        return _train_with_chief(run, defined.config, needs_weights)
    with run.lock.held():
        # It may have begun only since this process first looked.
        earlier = defined.earlier(run.folder)
        if earlier is not None and is_begun(run.folder, earlier):
            defined.check_same(earlier, run.folder)
            definition.check_same_layers(earlier, defined.config, run.folder)
            return _train_as_chief(run, defined, earlier, needs_weights)
        return _train_as_chief(run, defined, None, needs_weights)


def is_begun(folder: run_folder.RunFolder, config: Mapping) -> bool:
    """Whether a run has something to continue from; else it starts over, with any settings."""
    return bool(
        run_folder.FIRST_CHECKPOINT in config
        or checkpoints.by_step(folder.checkpoints)
        or folder.final_summary.exists()
    )


def _train_with_chief(run: loop.Loop, config: Mapping, needs_weights: bool) -> loop.Outcome:
    finished = run.workers.from_chief(_IS_FINISHED, lambda: None)
    if finished is not None:
        if needs_weights:
            _share_state(run)
        print("the run has finished already")
        return loop.Outcome(finished, run.plan.last_step)
    _share_state(run)
    outcome = run.train(config)
    how = "stopped" if outcome.final is None else "finished"
    print(f"{how} at step {outcome.step}; {run.workers.name(0)} has the run")
    return outcome


def _share_state(run: loop.Loop) -> None:
    """Gives the chief's state to all workers, which call it together."""
    run.trainer.broadcast_state()
    adapted.refresh(run.trainer.state.model)


def _train_as_chief(
    run: loop.Loop, defined: definition.Definition, earlier: Mapping | None, needs_weights: bool
) -> loop.Outcome:
    folder, last_step, config = run.folder, run.plan.last_step, defined.config
    finished = folder.read_final_summary()
    if finished and (finished["step"] >= last_step or "stopped_early" in finished):
        if needs_weights:
            run.restore_step(finished["step"])
        run.workers.from_chief(_IS_FINISHED, lambda: finished)
        if needs_weights:
            _share_state(run)
        print(f"the run has finished already, at step {finished['step']}")
        if "stopped_early" in finished:
            print(
                f"it was stopped early: {finished['stopped_early']}; a longer run needs another "
                "folder"
            )
        _say_finished(folder, finished)
        return loop.Outcome(finished, finished["step"])
    restored = run.restore(earlier and earlier.get(run_folder.FIRST_CHECKPOINT))
    if restored is None:
        definition.check_untrained(run.trainer.state, folder)
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
    figures = {"accuracy": ".2%", "loss": ".4f"}
    named = next((name for name in figures if isinstance(final.get(name), float)), None)
    known = named is not None and final.get("split") is not None
    figure = f"{final['split']} {named} {final[named]:{figures[named]}}, " if known else ""
    print(
        f"finished: {figure}{folder.final_model}, weights sha256 {final['weights_sha256'][:16]}\n"
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
