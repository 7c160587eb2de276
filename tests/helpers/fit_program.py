"""A program that trains a small model with Keras's fit in a folder, for tests that kill it.

    python fit_program.py '{"folder": ..., "towers": 2, "kill_at": 5}'

It prints one JSON object: what should not depend on towers, workers, kills and resumption.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import towers  # before Keras: it sets TensorFlow up
from input_pipeline import arrays
from towers import devices, multi_worker, schedules
from towers.runs import callbacks as run_callbacks

import keras  # isort: skip
import numpy as np  # isort: skip


class At(keras.callbacks.Callback):
    """Does something after so many of this process's steps."""

    def __init__(self, step: int, act):
        super().__init__()
        self._step, self._act, self._steps = step, act, itertools.count(1)  # no plain data

    def on_train_batch_end(self, batch, logs=None):
        if next(self._steps) == self._step:
            self._act()


def model() -> keras.Model:
    """Batch norm, dropout and a regularizer, compiled."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(16, kernel_regularizer=keras.regularizers.L2(1e-3)),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ]
    made = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return made


def data() -> tuple[np.ndarray, np.ndarray]:
    """200 examples of 3 classes."""
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def main(wanted: dict) -> dict:
    """Trains; what it came to."""
    tower_devices = devices.choose(wanted["towers"])
    with multi_worker.meet(wait_seconds=60) as workers:
        x, y = data()
        trained = towers.distribute(model(), tower_devices, microbatch_size=22, workers=workers)
        kill_at = wanted.get("kill_at", 0) if wanted.get("worker", 0) == workers.index else 0
        callbacks = [
            run_callbacks.MovingAverages(trained, 0.9),
            run_callbacks.LearningRate(schedules.LearningRate("cosine", 0.02, 200, total_epochs=6)),
            run_callbacks.Log(5),
            run_callbacks.Verify(4),
            keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
            At(kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        ]
        run = towers.Run(wanted["folder"], trained)
        done = run.fit(
            arrays.batches(x, y, seed=3), batch_size=64, epochs=6, verbose=0,
            validation_data=(x[:64], y[:64]), callbacks=callbacks,
            checkpoint_every_steps=2,
        )  # fmt: skip
        return {
            "history": done.history,
            "step": done.step,
            "weights": done.weights_sha256,
            "state": run.state.parts_sha256(),
        }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
