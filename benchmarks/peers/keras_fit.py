"""`fit` of Keras on the same network and the same input pipeline.

    python -m benchmarks.peers.keras_fit [--xla] [--mirrored] [--own_layers] DATASET [DATA_DIR]

Keras 3.15 compiles with XLA by default, but not where there are only CPUs; `--xla` asks for it.
`--mirrored` trains under MirroredStrategy on two logical CPU devices. `--own_layers` trains this
project's `cifarnet`, with its order of layers and its local response normalization.
"""

import argparse
import contextlib

import keras
import tensorflow as tf

from benchmarks.peers import counter
from input_pipeline import batches, datasets, preprocess
from towers import networks

BATCH = 128


def network() -> keras.Model:
    """The tutorial's network in Keras's own layers, with `tf.nn.lrn`."""

    def convolution(bias):
        return keras.layers.Conv2D(
            64, 5, padding="same", activation="relu",
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.05),
            bias_initializer=keras.initializers.Constant(bias),
        )  # fmt: skip

    def pool():
        return keras.layers.MaxPooling2D(3, 2, padding="same")

    def normalize():
        return keras.layers.Lambda(
            lambda x: tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
        )

    def dense(units):
        return keras.layers.Dense(
            units, activation="relu",
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.04),
            bias_initializer=keras.initializers.Constant(0.1),
            kernel_regularizer=keras.regularizers.L2(0.002),
        )  # fmt: skip

    return keras.Sequential(
        [
            keras.Input([24, 24, 3]),
            convolution(0.0), pool(), normalize(),
            convolution(0.1), normalize(), pool(),
            keras.layers.Flatten(), dense(384), dense(192), keras.layers.Dense(10),
        ]
    )  # fmt: skip


def of_own_layers() -> keras.Model:
    """The same network as `train.py` has it, with its weight decay."""
    model = networks.build("cifarnet", (24, 24, 3), 10)
    for name in ("local3", "local4"):
        model.get_layer(name).kernel.regularizer = keras.regularizers.L2(0.002)
    return model


class CountSteps(keras.callbacks.Callback):
    """Reports each step."""

    def __init__(self, turn: counter.Counter, batch: int):
        super().__init__()
        self._turn, self._batch = turn, batch

    def on_train_batch_end(self, batch, logs=None):
        """Keras calls it after each step."""
        self._turn.step_done(self._batch)


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--own_layers", action="store_true")
    parser.add_argument("dataset")
    parser.add_argument("data_dir", nargs="?")
    options = parser.parse_args()
    turn = counter.Counter()
    scope = contextlib.nullcontext()
    if options.mirrored:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        scope = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]).scope()
    data = datasets.load(options.dataset, options.data_dir or None, "train")
    source = batches.training_batches(
        data.images,
        data.labels,
        global_batch_size=BATCH,
        seed=0,
        last_step=10_000_000,
        preprocess=preprocess.for_images("crop_flip_colour", data.images.shape[1:]).train,
    )
    with scope:
        model = of_own_layers() if options.own_layers else network()
        model.compile(
            keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9999),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=True if options.xla else "auto",
        )
    model.fit(source, epochs=1, verbose=0, callbacks=[CountSteps(turn, BATCH)])


if __name__ == "__main__":
    main()
