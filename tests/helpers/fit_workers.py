"""A program that trains three small models with Keras's fit, in one process or several.

    python fit_workers.py TOWERS

It prints one JSON object: model to a hash of its weights and what `fit` and `evaluate` returned.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import towers  # before Keras: it sets TensorFlow up
from towers import multi_worker

import keras  # isort: skip
import numpy as np  # isort: skip

LAYERS = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def with_batch_norm() -> keras.Model:
    """Batch norm and dropout, for vectors of 8."""
    layers = [LAYERS.Dense(16), LAYERS.BatchNormalization(), LAYERS.Dropout(0.3), LAYERS.Dense(3)]
    return keras.Sequential([keras.Input((8,)), *layers])


def with_rows() -> keras.Model:
    """An embedding, whose gradient has rows, for texts of 12."""
    layers = [LAYERS.Embedding(50, 8), LAYERS.GlobalAveragePooling1D(), LAYERS.Dense(3)]
    return keras.Sequential([keras.Input((12,), dtype="int32"), *layers])


def joined(labels, outputs):
    """A loss of one's own."""
    return keras.ops.mean((keras.ops.one_hot(keras.ops.cast(labels, "int32"), 3) - outputs) ** 2)


def main(num_towers: int) -> dict:
    """Trains each; batches of 75 in microbatches of 16, the last of which is shorter."""
    tower_devices = towers.devices.choose(num_towers)
    with multi_worker.meet(wait_seconds=60) as workers:
        rng, found = np.random.default_rng(0), {}
        x, text = rng.normal(size=(150, 8)).astype("float32"), rng.integers(0, 50, (150, 12))
        y = x[:, :3].argmax(axis=1)
        if os.environ.get("OTHER_ORDER") and workers.index:
            x, y = x[::-1], y[::-1]
        for build, data, loss in (
            (with_batch_norm, x, LOSS),
            (with_rows, text, LOSS),
            (with_batch_norm, x, joined),
        ):
            keras.utils.set_random_seed(1 + workers.index)  # the chief's weights count
            model = build()
            model.compile("adam", loss, metrics=["accuracy"] if loss is LOSS else [])
            towers.distribute(model, tower_devices, microbatch_size=16, workers=workers)
            given = {"batch_size": 75, "verbose": 0}
            history = model.fit(data, y, epochs=2, shuffle=False, **given).history
            evaluated = model.evaluate(data[:75], y[:75], **given)
            digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
            name = f"{build.__name__} {getattr(loss, '__name__', 'loss')}"
            found[name] = [digest, history, evaluated]
        return found


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
