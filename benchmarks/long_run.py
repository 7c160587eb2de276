"""A long run of a tiny network: does anything grow that should not?

    python -m benchmarks.long_run --steps=20000

A `towers.Run` with logs, summaries, hashes, checkpoints and evaluations; the network is one dense
layer, so that thousands of steps take seconds.
"""

import argparse
import collections
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import towers  # before Keras: it sets TensorFlow up
from benchmarks import turns
from input_pipeline import arrays
from towers import callbacks
from towers.runs import checkpoints

import keras  # isort: skip
import tensorflow as tf  # isort: skip

EXAMPLES, CLASSES, BATCH, TOWERS = 1000, 4, 16, 2
LOG_EVERY, OTHERS_EVERY, CHECKPOINTS_TO_KEEP = 20, 500, 3
LOOKS = 40  # at the process, at equal distances
WARM_UP = 0.2  # of the run, which the slope of memory leaves out
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


class Look(keras.callbacks.Callback):
    """Looks at the process from time to time."""

    def __init__(self, every: int):
        super().__init__()
        self._every, self._steps, self._process = every, 0, psutil.Process()
        self.found = collections.deque()  # (step, megabytes, open files, seconds)

    def on_train_batch_end(self, batch, logs=None):
        """Is called after each step."""
        self._steps += 1
        if self._steps % self._every == 0:
            megabytes = self._process.memory_info().rss / 2**20
            files, now = self._process.num_fds(), time.perf_counter()
            self.found.append((self._steps, megabytes, files, now))


def figures(path: Path, steps: int) -> dict:
    """Trains in `path`; the figures of the process and its files."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(EXAMPLES, 8, 8, 3)).astype(np.float32)
    labels = rng.integers(CLASSES, size=EXAMPLES)
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
    run = towers.Run(path, towers.distribute(model, TOWERS, microbatch_size=BATCH // TOWERS))
    look = Look(steps // LOOKS)
    run.fit(
        arrays.batches(images, labels),
        batch_size=BATCH,
        epochs=steps,
        max_steps=steps,
        validation_data=(images, labels),
        validation_freq=20,
        callbacks=[
            callbacks.LearningRate(lambda seen: 1 / (100 + seen)),  # another at every step
            callbacks.MovingAverages(model, 0.99),
            callbacks.Log(LOG_EVERY),
            callbacks.Histograms(OTHERS_EVERY),
            callbacks.Verify(OTHERS_EVERY),
            look,
        ],
        verbose=0,
        checkpoint_every_steps=OTHERS_EVERY,
        checkpoints_to_keep=CHECKPOINTS_TO_KEEP,
    )
    at, megabytes, files, seconds = np.array(look.found).T
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
        "checkpoints": len(checkpoints.by_step(run.folder.checkpoints)),
        "events": _logged_steps(run.folder.train_events),
        "step_ms_second_fifth": round(statistics.median(step_ms[fifth : 2 * fifth]), 3),
        "step_ms_last_fifth": round(statistics.median(step_ms[-fifth:]), 3),
    }


def _logged_steps(folder: Path) -> int:
    """Logged steps in the event files, every record of which is read with its checksum."""
    tags = []
    for path in folder.glob("*.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            tags += [value.tag for value in event.summary.value]
    return tags.count("loss")


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
