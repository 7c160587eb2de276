"""Microbatches at a time: as many as there are cores, as a Trainer has it on CPUs, or all eight.

    python -m benchmarks.at_once
    python -m benchmarks.at_once --task=lstm --compute_dtype=float32

Only times: docs/speed.md has the memory, from `benchmarks.step_memory`. Both train the same network
in one process and take turns; the ratio of their throughputs is the median over rounds, its
interval from the smallest to the largest.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import towers
from benchmarks import networks, turns
from benchmarks.peers import task_sizes, tasks
from towers import devices

import keras  # isort: skip
import tensorflow as tf  # isort: skip

TASKS = tuple(task for task in task_sizes.SHAPES if task != "resnet50")  # 8 s a step on two cores
HEAD = """\
| network | type | all at a time, images/s | as many as cores, images/s | relative to all |
|---|---|---|---|---|"""
WARM_UP_STEPS = 3


def main():
    """Measures each row, and prints a table."""
    parser = turns.parser(__doc__, rounds=9)
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--compute_dtype", action="append", choices=networks.DTYPES)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, at least")
    options = parser.parse_args()
    devices.use_intra_op_threads(1)  # as train.py with several microbatches
    rows = (
        measure(task, compute_dtype, options)
        for task in options.task or TASKS
        for compute_dtype in options.compute_dtype or networks.DTYPES
    )
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, compute_dtype: str, options: argparse.Namespace) -> dict:
    """The figures of one network, on one CPU tower."""
    sides = {"all": stepper(task, compute_dtype, False), "some": stepper(task, compute_dtype, True)}
    for step in sides.values():
        for _ in range(WARM_UP_STEPS):
            step()
    rates = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in sorted(sides, reverse=number % 2):
            rates[name].append(throughput(sides[name], options.seconds))
    batch = task_sizes.BATCHES[task]
    ratios = [some / of_all for some, of_all in zip(rates["some"], rates["all"], strict=True)]
    return {
        "task": task,
        "compute_dtype": compute_dtype,
        "images_per_second": {
            name: round(batch * statistics.median(found)) for name, found in rates.items()
        },
        "to_all": round(statistics.median(ratios), 3),
        "every_round": [round(ratio, 3) for ratio in ratios],
    } | turns.conditions()


def stepper(task: str, compute_dtype: str, is_limited: bool) -> Callable[[], None]:
    """What makes a training step of a network, and waits for it."""
    model = tasks.build(task, compute_dtype)
    batch = tf.constant(tasks.inputs(task)), tf.constant(tasks.labels(task))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    trainer = towers.Trainer(model, optimizer, towers=1, global_batch_size=len(batch[1]))
    if not is_limited:
        without = dataclasses.replace(trainer.program.tower_program, at_once=None)
        trainer.program = dataclasses.replace(trainer.program, tower_program=without)
    return lambda: trainer.train_step(*batch).losses["total"].numpy()


def throughput(step: Callable[[], None], seconds: float) -> float:
    """Steps per second, of as many whole steps as take so long."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        count += 1
    return count / (time.perf_counter() - began)


def as_row(row: dict) -> str:
    """One row of the table."""
    rates, found = row["images_per_second"], row["every_round"]
    return (
        f"| {row['task']} | {row['compute_dtype']} | {rates['all']:,} | {rates['some']:,} "
        f"| {row['to_all']:.2f} ({min(found):.2f}–{max(found):.2f}) |"
    )


if __name__ == "__main__":
    main()
