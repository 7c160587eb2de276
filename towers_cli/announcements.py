"""What a training prints about its run: before it starts, and at its end."""

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

from towers import machine, schedules, shares, worker
from towers.runs import run_folder
from towers_cli import settings, system

_NARROWEST = 50  # on a narrower terminal lines are longer than it


def rows(
    config: Mapping,
    learning_rate: schedules.LearningRate,
    num_evaluated_examples: int,
) -> list[tuple[str, str]]:
    """What a run is, in a few lines; warns where the rate does not decay as it was to."""
    chosen, derived = config["settings"], config["resolved"]
    table = {
        "run": str(chosen["train_dir"]),
        "weights from": chosen["init_from"],
        "data": f"{derived['data_source']}: "
                f"{derived['examples_per_epoch']:,} train, "
                f"{num_evaluated_examples:,} {chosen['eval_split']}, "
                f"{len(derived['class_names'])} classes",
        "model": f"{chosen['model']}, {chosen['compute_dtype']}, "
                 f"images {' x '.join(map(str, derived['image_shape']))}"
                 f"{', compiled with XLA' if chosen['jit_compile'] else ''}",
        "workers": ", ".join(derived["workers"]) if len(derived["workers"]) > 1 else "",
        "towers": f"{', '.join(map(str, derived['towers_of_workers']))} on "
                  f"{', '.join(derived['tower_devices'])}",
        "batch": _describe_batch(chosen, derived),
        "same bits": _describe_same_bits(chosen, derived),
        "steps": f"{derived['last_step']:,}, {derived['steps_per_epoch']:.1f} per epoch",
        "optimizer": _describe_optimizer(chosen),
        "learning rate": describe_rate(learning_rate),
        "warning": _warn_of_rate(chosen, derived, learning_rate),
    }  # fmt: skip
    return [(name, value) for name, value in table.items() if value]


def format_table(rows: Sequence[tuple[str, str]]) -> str:
    """Two aligned columns; a value too long for its line continues below its beginning.

    What has no space to break at, such as a path, stays whole.
    """
    indent = 4 + max(len(name) for name, _ in rows)
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    lines = []
    for name, value in rows:
        lines += textwrap.wrap(
            f"  {name:<{indent - 4}}  {value}", width, subsequent_indent=" " * indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(map(system.printable, lines))


def _describe_same_bits(chosen: Mapping, derived: Mapping) -> str:
    on_cpus = machine.are_cpus(derived["tower_devices"])
    if not (on_cpus or chosen["deterministic"]):
        return "not promised on GPUs without --deterministic"
    return (
        f"on any number of towers and workers, with --microbatch_size={chosen['microbatch_size']} "
        f"and --intra_op_threads={chosen['intra_op_threads']}"
    )


def _describe_batch(chosen: Mapping, derived: Mapping) -> str:
    count, towers = derived["num_microbatches"], sum(derived["towers_of_workers"])
    rest = f"; {towers - count} of {towers} towers rest" if count < towers else ""
    of_towers = rest or f", {shares.described(count, towers)}"
    return (
        f"{chosen['global_batch_size']} global, {count} microbatch{'es' if count > 1 else ''} "
        f"of at most {chosen['microbatch_size']}{of_towers}"
    )


def first_decay_epoch(rate: schedules.LearningRate) -> float:
    """The epoch at which the rate first falls; infinity for `constant`."""
    if rate.schedule == "exponential":
        return rate.epochs_per_decay
    if rate.schedule == "piecewise":
        return min(rate.decay_epochs, default=math.inf)
    return math.inf if rate.schedule == "constant" else rate.warmup_epochs


def describe_rate(rate: schedules.LearningRate) -> str:
    """One line for the start table, such as `0.1, x 0.1 every 350 epochs`."""
    epochs = ", ".join(f"{epoch:g}" for epoch in rate.decay_epochs)
    decays = {
        "exponential": f"x {rate.decay_factor:g} every {rate.epochs_per_decay:g} epochs",
        "piecewise": f"x {rate.decay_factor:g} at epochs {epochs}",
        "constant": "constant",
    }
    to_zero = f"{rate.schedule} to 0 at epoch {rate.total_epochs:g}"
    warm_up = f", {rate.warmup_epochs:g} epochs of warm-up" if rate.warmup_epochs else ""
    return f"{rate.initial:g}{warm_up}, {decays.get(rate.schedule, to_zero)}"


def _warn_of_rate(chosen: Mapping, derived: Mapping, learning_rate: schedules.LearningRate) -> str:
    end = derived["last_step"] * chosen["global_batch_size"] / derived["examples_per_epoch"]
    first_decay = first_decay_epoch(learning_rate)
    before = f"the run ends at epoch {end:.4g}, before the learning rate"
    if end <= first_decay < math.inf:
        return f"{before} first decays at epoch {first_decay:g}"
    if learning_rate.schedule in settings.ENDING_SCHEDULES and end < learning_rate.total_epochs:
        return f"{before} has fallen to 0 at epoch {learning_rate.total_epochs:g}"
    return ""


def _describe_optimizer(chosen: Mapping) -> str:
    parts = [chosen["optimizer"]]
    if chosen["momentum"]:
        parts.append(f"{'Nesterov ' if chosen['nesterov'] else ''}momentum {chosen['momentum']:g}")
    if chosen["clip_norm"]:
        parts.append(f"global norm clipped to {chosen['clip_norm']:g} after the reduction")
    if chosen["weight_decay"]:
        parts.append(f"weight decay {chosen['weight_decay']:g} on {chosen['weight_decay_filter']}")
    if chosen["moving_average_decay"]:
        parts.append(f"moving averages {chosen['moving_average_decay']:g}")
    return ", ".join(parts)


def end(folder: run_folder.RunFolder, split: str, workers: worker.Workers) -> int:
    """Says what a run has come to; returns the exit code."""
    if not workers.is_chief:
        print(f"finished; {workers.name(0)} has the run")
        return 0
    summary = folder.read_final_summary()
    print(
        f"finished: {split} accuracy {summary['val_accuracy']:.2%}, {folder.final_model}, "
        f"weights sha256 {summary['weights_sha256'][:16]}\n"
        f"watch it: {os.path.relpath(sys.executable)} -m tensorboard.main --logdir {folder.path}"
    )
    return 0
