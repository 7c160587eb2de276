"""Checked settings with every default filled in, and what follows from them."""

import dataclasses
import math
import os
from typing import Any

from towers import distribution, schedules
from towers_cli import own_model, settings

SHARED_THREADS = 8
LEAST_ON_GPUS = 128  # examples of a microbatch, with --gpu_defaults


def resolved(
    chosen: settings.TrainSettings,
    num_gpus: int,
    cores: int,
    num_workers: int = 1,
    threads: int | None = None,
) -> settings.TrainSettings:
    """The settings with every default filled in; does not start TensorFlow's runtime.

    `threads` are those that a run began with, which another machine continues.
    """
    network = own_model.network(chosen.model)
    default_size, device = distribution.default_size(chosen.global_batch_size), "cpu"
    if chosen.gpu_defaults and not num_gpus:
        raise settings.SettingsError("--gpu_defaults: no GPU is visible; leave it out")
    if chosen.parameter_device == "gpu" and (num_workers > 1 or not num_gpus):
        raise settings.SettingsError(
            "--parameter_device=gpu: must be cpu with several workers, or where no GPU is visible"
        )
    if chosen.gpu_defaults:
        default_size = min(max(default_size, LEAST_ON_GPUS), chosen.global_batch_size)
        device = "cpu" if num_workers > 1 or chosen.recipe == "tutorial" else "gpu"
    count = -(-chosen.global_batch_size // (chosen.microbatch_size or default_size))
    jit_compile = chosen.gpu_defaults if chosen.jit_compile is None else chosen.jit_compile
    defaults: dict[str, Any] = {
        "num_towers": max(1, num_gpus),
        "microbatch_size": default_size,
        "jit_compile": jit_compile,
        "parameter_device": device,
        "intra_op_threads": threads or default_threads(count, num_gpus, cores, jit_compile),
        "preprocessing": network.preprocessing,
        "weight_decay": network.weight_decay,
    }
    filled_in = {k: v for k, v in defaults.items() if getattr(chosen, k) is None}
    # eval.py reads the paths from config.json, perhaps in another working folder.
    for name in ("init_from", "data_dir"):
        if path := getattr(chosen, name):
            filled_in[name] = os.path.abspath(os.path.expanduser(path))
    return dataclasses.replace(chosen, **filled_in)


def default_threads(num_microbatches: int, num_gpus: int, cores: int, jit_compile=False) -> int:
    """Threads for one operation: with several microbatches, the same number on any machine.

    It is 1: microbatches run side by side, which is faster than several threads for each
    (docs/speed.md), and threads show in the bits, which the machine's cores must not. One
    microbatch has all cores to itself. With GPUs the CPU has the reduction and the update. What
    XLA compiles for a CPU shares its threads among all microbatches.
    """
    if num_gpus:
        return SHARED_THREADS
    if num_microbatches == 1:
        return cores
    return SHARED_THREADS if jit_compile else 1


def learning_rate(
    chosen: settings.TrainSettings, examples_per_epoch: int
) -> schedules.LearningRate:
    """The schedule that the settings describe."""
    return schedules.LearningRate(
        schedule=chosen.learning_rate_schedule,
        initial=chosen.learning_rate,
        examples_per_epoch=examples_per_epoch,
        epochs_per_decay=chosen.epochs_per_decay,
        decay_factor=chosen.decay_factor,
        decay_epochs=chosen.decay_epochs,
        warmup_epochs=chosen.warmup_epochs,
        total_epochs=chosen.train_epochs,
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
    """The epochs, counted from 1, with an evaluation after them; that of the last step is one."""
    # A step belongs to the epoch in which it begins.
    last = (last_step - 1) * chosen.global_batch_size // examples_per_epoch + 1
    every = chosen.eval_every_epochs or last
    return [*range(every, last, every), last]
