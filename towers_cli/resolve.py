"""Checked settings with every default filled in, and what follows from them."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping

from towers import distribution, machine, schedules
from towers.runs import run_folder
from towers_cli import own_model, run_config, settings

SHARED_THREADS = 8
LEAST_ON_GPUS = 128  # examples of a microbatch, with --gpu_defaults


def resolved(
    chosen: settings.TrainSettings,
    earlier: Mapping | None,
    num_gpus: int,
    cores: int,
    num_workers: int = 1,
) -> settings.TrainSettings:
    """The settings with every default filled in; does not start TensorFlow's runtime.

    Where the size of a microbatch, the intra-op threads, or what the run began with, is left open,
    a run that continues keeps its own: they are part of the arithmetic, and the number of towers is
    not.
    """
    network = own_model.network(chosen.model)
    default_size = distribution.default_size(chosen.global_batch_size)
    if chosen.gpu_defaults:
        if not num_gpus:
            raise settings.SettingsError("--gpu_defaults: no GPU is visible; leave it out")
        default_size = min(max(default_size, LEAST_ON_GPUS), chosen.global_batch_size)
        on_gpu = num_workers == 1 and chosen.recipe != "tutorial"
        device = "gpu" if on_gpu else chosen.parameter_device
        chosen = dataclasses.replace(chosen, jit_compile=True, parameter_device=device)
    kept = earlier["settings"] if earlier is not None else {}
    size = chosen.microbatch_size or kept.get("microbatch_size", default_size)
    count = -(-chosen.global_batch_size // size)
    return dataclasses.replace(
        chosen,
        init_from=_absolute(chosen.init_from) or kept.get("init_from"),
        # eval.py reads it from config.json, perhaps in another working folder.
        data_dir=_absolute(chosen.data_dir),
        num_towers=chosen.num_towers or max(1, num_gpus),
        microbatch_size=size,
        intra_op_threads=chosen.intra_op_threads
        or kept.get("intra_op_threads")
        or default_threads(count, num_gpus, cores, chosen.jit_compile),
        preprocessing=_default(chosen.preprocessing, network.preprocessing),
        weight_decay=_default(chosen.weight_decay, network.weight_decay),
        weight_decay_filter=_default(chosen.weight_decay_filter, network.weight_filter),
    )


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


def intra_op_threads(
    chosen: settings.TrainSettings, folder: run_folder.RunFolder, is_chief: bool
) -> int:
    """The threads for one operation, which are fixed before workers meet.

    A run that continues keeps its number, which only the chief knows; others that have another one
    are refused when they meet.
    """
    earlier = None
    if is_chief:
        # Raised again once all workers can be told.
        with contextlib.suppress(run_folder.RunFolderError):
            earlier = run_config.earlier_run(folder)
    gpus, cores = machine.num_devices("GPU"), machine.available_cores()
    return resolved(chosen, earlier, gpus, cores).intra_op_threads


def _absolute(path: str | None) -> str | None:
    return path and os.path.abspath(os.path.expanduser(path))


def _default(value, default):
    return default if value is None else value


def learning_rate(
    chosen: settings.TrainSettings, examples_per_epoch: int
) -> schedules.LearningRate:
    """The schedule that the settings describe."""
    ends = chosen.learning_rate_schedule in settings.ENDING_SCHEDULES
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
        total_epochs=chosen.train_epochs if ends else 0.0,
    )


def last_step(chosen: settings.TrainSettings, examples_per_epoch: int) -> int:
    """The step that a run ends after."""
    last = math.ceil(
        schedules.exact(chosen.train_epochs) * examples_per_epoch / chosen.global_batch_size
    )
    return min(last, chosen.max_steps or last)


def evaluated_epochs(
    chosen: settings.TrainSettings, last_step: int, examples_per_epoch: int
) -> list[int]:
    """The epochs after which there is an evaluation, counted from 1; that of the last step is one.

    A step belongs to the epoch in which it begins.
    """
    last = (last_step - 1) * chosen.global_batch_size // examples_per_epoch + 1
    every = chosen.eval_every_epochs or last
    return [*range(every, last, every), last]
