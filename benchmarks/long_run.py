"""A long run of a tiny network: does anything grow that should not?

    python -m benchmarks.long_run --steps=20000

The loop is that of `train.py`, with its logs, summaries, hashes, checkpoints and evaluations; the
network is one dense layer, so that thousands of steps take seconds.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

import towers  # before Keras: it sets TensorFlow up
from benchmarks import turns
from input_pipeline import batches
from towers import devices
from towers.runs import checkpoints, loop, run_folder, run_plan

import keras  # isort: skip
import tensorflow as tf  # isort: skip

EXAMPLES, CLASSES, BATCH, TOWERS = 1000, 4, 16, 2
LOG_EVERY, CHECKPOINTS_TO_KEEP = 20, 3
LOOKS = 40  # at the process, at equal distances
WARM_UP = 0.2  # of the run, which the slope of memory leaves out
CONFIG = {
    "settings": {"train_dir": "", "checkpoint_every_steps": 500},
    "resolved": {"class_names": list("abcd")},
}
HEAD = """\
| steps | megabytes after warm-up and at the end | growth in 10,000 steps | open files | \
checkpoints | logged steps in the event files | ms per step, second and last fifth |
|---|---|---|---|---|---|---|"""


def main():
    """Prints one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [figures(Path(folder) / "run", options.steps)]
        turns.report(HEAD, rows, as_row, options.output)


def figures(path: Path, steps: int) -> dict:
    """Trains in `path`; the figures of the process and its files."""
    folder, looks = run_folder.RunFolder(str(path)), []
    run = loop.Loop(
        _trainer(),
        folder,
        _plan(steps),
        _data(steps // LOOKS, looks),
        types.SimpleNamespace(sha256=lambda: "of this run"),
    )
    with run.lock.held():
        folder.create(CONFIG)
        with contextlib.redirect_stdout(io.StringIO()):
            run.train(CONFIG)
    at, megabytes, files, seconds = np.array(looks).T
    settled = at >= WARM_UP * steps
    slope = np.polyfit(at[settled], megabytes[settled], 1)[0]
    step_ms = 1000 * np.diff(seconds) / np.diff(at)
    fifth = LOOKS // 5
    return {
        "steps": steps,
        "megabytes_after_warm_up": round(float(megabytes[settled][0]), 1),
        "megabytes_at_end": round(float(megabytes[-1]), 1),
        "megabytes_per_10000_steps": round(float(slope * 10_000), 2),
        "files_after_warm_up": int(files[settled][0]),
        "files_at_end": int(files[-1]),
        "checkpoints": len(checkpoints.by_step(folder.checkpoints)),
        "events": _logged_steps(folder.train_events),
        "step_ms_second_fifth": round(statistics.median(step_ms[fifth : 2 * fifth]), 3),
        "step_ms_last_fifth": round(statistics.median(step_ms[-fifth:]), 3),
    }


def _trainer() -> towers.Trainer:
    tower_devices = devices.choose(TOWERS)
    with tf.device(devices.HOST):
        layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
        model = keras.Sequential(layers)
    return towers.Trainer(
        model,
        keras.optimizers.SGD(0.01, momentum=0.9),
        towers=tower_devices,
        global_batch_size=BATCH,
        num_microbatches=TOWERS,
        learning_rate=lambda examples_seen: 1 / (100 + examples_seen),  # another at every step
        weight_decay=1e-4,
        moving_average_decay=0.99,
    )


def _plan(steps: int) -> run_plan.Plan:
    return run_plan.Plan(
        last_step=steps,
        examples_per_epoch=EXAMPLES,
        class_names=tuple(CONFIG["resolved"]["class_names"]),
        log_every_steps=LOG_EVERY,
        summary_every_steps=500,
        verify_every_steps=500,
        checkpoint_every_steps=CONFIG["settings"]["checkpoint_every_steps"],
        checkpoints_to_keep=CHECKPOINTS_TO_KEEP,
        eval_every_epochs=20.0,
    )


def _data(look_every: int, looks: list) -> run_plan.Data:
    """Random images; the process is looked at as their batches are fetched."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(EXAMPLES, 8, 8, 3), dtype=np.uint8)
    labels = rng.integers(CLASSES, size=EXAMPLES).astype(np.int32)
    process = psutil.Process()

    def training_batches(first_step: int, last_step: int) -> Iterator:
        """The batches of those steps; between them the process is looked at."""
        source = batches.training_batches(
            images, labels, global_batch_size=BATCH, seed=0,
            first_step=first_step, last_step=last_step,
        )  # fmt: skip
        for at_step, batch in enumerate(source, start=first_step + 1):
            yield batch
            if at_step % look_every == 0:
                megabytes = process.memory_info().rss / 2**20
                looks.append((at_step, megabytes, process.num_fds(), time.perf_counter()))

    return run_plan.Data(
        training=training_batches,
        evaluation=batches.evaluation_batches(
            images, labels, global_batch_size=BATCH, preprocess=_as_numbers
        ),
        evaluation_count=EXAMPLES,
    )


def _as_numbers(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32)


def _logged_steps(folder: Path) -> int:
    """Logged steps in the event files, every record of which is read with its checksum."""
    tags = []
    for path in folder.glob("*.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            tags += [value.tag for value in event.summary.value]
    return tags.count("loss/total")


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['steps']:,} | {row['megabytes_after_warm_up']:,.0f}, "
        f"{row['megabytes_at_end']:,.0f} | {row['megabytes_per_10000_steps']:.2f} MB "
        f"| {row['files_after_warm_up']}, {row['files_at_end']} | {row['checkpoints']} "
        f"| {row['events']:,} "
        f"| {row['step_ms_second_fifth']:.2f}, {row['step_ms_last_fifth']:.2f} |"
    )


if __name__ == "__main__":
    main()
