"""Checked settings with every default filled in, and what follows from them."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from towers import schedules
from towers.runs import run_plan
from towers.support import shares
from towers_cli import own_model, settings, sizes

SHARED_THREADS = 8


def resolved(
    chosen: settings.TrainSettings,
    earlier: Mapping | None,
    num_gpus: int,
    cores: int,
    towers_of_workers: Sequence[int] = (),
) -> settings.TrainSettings:
    """The settings with every default filled in; does not start TensorFlow's runtime.

    Where the number of microbatches or of intra-op threads, or what the run began with, is left
    open, a run that continues keeps its own: they are part of the arithmetic, and the number of
    towers is not.

    Args:
      chosen: as given.
      earlier: the configuration of the run that continues, if one does.
      num_gpus: how many the process may use.
      cores: how many the chief may use.
      towers_of_workers: how many towers each worker has; where empty, as many as this one.

    Raises:
      SettingsError: sizes that do not fit, or a `--model` that cannot be imported.
    """
    network, num_towers = own_model.network(chosen.model), chosen.num_towers or max(1, num_gpus)
    num_microbatches, kept = chosen.num_microbatches, ""
    mixes = bool(chosen.mixup_alpha or chosen.cutmix_alpha)
    towers_of_workers = towers_of_workers or [num_towers] * (len(chosen.workers) or 1)
    if not num_microbatches and earlier is None:
        # Pairs of images, where they are mixed, stay together.
        unit = 2 if mixes and chosen.global_batch_size % 2 == 0 else 1
        num_microbatches = shares.default_microbatches(chosen.global_batch_size // unit)
    elif not num_microbatches:
        num_microbatches = earlier["settings"]["num_microbatches"]
        kept = f"; the run in {chosen.train_dir} began with {num_microbatches} microbatch(es)"
    try:
        shares.check(chosen.global_batch_size, num_microbatches, towers_of_workers)
    except ValueError as error:
        advice = _advice(chosen, earlier, towers_of_workers, num_gpus)
        raise settings.SettingsError(f"--{error}{kept}{advice}") from error
    size = chosen.global_batch_size // num_microbatches
    if mixes and size % 2:
        name = "mixup_alpha" if chosen.mixup_alpha else "cutmix_alpha"
        raise settings.SettingsError(
            f"--{name}={getattr(chosen, name):g}: mixes the images of a microbatch in pairs, so it "
            f"must have an even number of them, but has {size}{kept}; give "
            f"--global_batch_size={num_microbatches * (size + 1)}"
        )
    threads = chosen.intra_op_threads or (earlier and earlier["settings"]["intra_op_threads"])
    init_from = _absolute(chosen.init_from)
    if earlier is not None and not init_from:
        init_from = earlier["settings"]["init_from"]
    return dataclasses.replace(
        chosen,
        init_from=init_from,
        # eval.py reads it from config.json, perhaps in another working folder.
        data_dir=_absolute(chosen.data_dir),
        store_dir=_absolute(chosen.store_dir),
        num_towers=num_towers,
        num_microbatches=num_microbatches,
        intra_op_threads=threads
        or default_threads(num_microbatches, num_gpus, cores, chosen.jit_compile),
        preprocessing=_default(chosen.preprocessing, network.preprocessing),
        weight_decay=_default(chosen.weight_decay, network.weight_decay),
        weight_decay_filter=_default(chosen.weight_decay_filter, network.weight_filter),
    )


def _advice(
    chosen: settings.TrainSettings,
    earlier: Mapping | None,
    towers_of_workers: Sequence[int],
    num_gpus: int,
) -> str:
    """What to give in place of sizes that do not fit together, as the end of a sentence."""
    asked = (
        chosen.global_batch_size,
        chosen.num_microbatches,
        sum(towers_of_workers),
        len(towers_of_workers),
        num_gpus or sizes.MOST_PARTS,
    )
    if earlier is None:
        ways = sizes.ways_out(*asked)
    else:
        ways = sizes.ways_to_resume(earlier["settings"], *asked)
    each = " on each worker" if len(towers_of_workers) > 1 else ""
    return f"; give {sizes.as_flags(ways, each)}" if ways else ""


def default_threads(
    num_microbatches: int, num_gpus: int, cores: int, jit_compile: bool = False
) -> int:
    """Threads for one operation: with several microbatches, the same number on any machine.

    It is 1: microbatches run side by side. A core that has one to itself is never waited for in the
    middle of an operation, which is faster than several threads for all (docs/speed.md); and
    threads show in the bits, which the machine's cores must not. One microbatch has all cores to
    itself. With GPUs the CPU has no microbatches, but the reduction and the update. What XLA
    compiles for a CPU computes convolutions and products of matrices on these threads, and all
    microbatches share them.
    """
    if num_gpus:
        return SHARED_THREADS
    if num_microbatches == 1:
        return cores
    return SHARED_THREADS if jit_compile else 1


def _absolute(path: str | None) -> str | None:
    return path and os.path.abspath(os.path.expanduser(path))


def _default(value, default):
    return default if value is None else value


def learning_rate(
    chosen: settings.TrainSettings, examples_per_epoch: int
) -> schedules.LearningRate:
    """The schedule that the settings describe."""
    return schedules.LearningRate(
        schedule=chosen.learning_rate_schedule,
        initial=schedules.scaled_rate(
            chosen.learning_rate,
            chosen.learning_rate_scaling,
            chosen.global_batch_size,
            chosen.base_batch_size,
        ),
        examples_per_epoch=examples_per_epoch,
        epochs_per_decay=chosen.epochs_per_decay,
        decay_factor=chosen.decay_factor,
        decay_epochs=chosen.decay_epochs,
        warmup_epochs=chosen.warmup_epochs,
        warmup_start_factor=chosen.warmup_start_factor,
        total_epochs=chosen.train_epochs,
    )


def last_step(chosen: settings.TrainSettings, examples_per_epoch: int) -> int:
    """The step that a run ends after.

    Raises:
      SettingsError: the steps to profile lie past it.
    """
    last = run_plan.last_step(
        chosen.train_epochs, chosen.max_steps, examples_per_epoch, chosen.global_batch_size
    )
    if chosen.profile_steps and chosen.profile_steps[1] > last:
        raise settings.SettingsError(
            f"--profile_steps={settings.shown(chosen.profile_steps)}: must end by the last step, "
            f"{last}"
        )
    return last
