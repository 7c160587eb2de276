"""A network of `tasks` on towers or in Keras's `fit`, on one batch in memory.

python -m benchmarks.peers.keras_tasks towers|fused|fit|xla TASK COMPUTE_DTYPE [NUM_MICROBATCHES]
"""

import itertools
import sys

import container_limits
import towers  # before Keras: it silences TensorFlow's notices
from benchmarks.peers import counter, keras_fit, tasks
from benchmarks.peers import task_sizes as sizes
from towers import devices, networks
from towers_cli import resolve

import keras  # isort: skip
import tensorflow as tf  # isort: skip


def optimizer() -> keras.optimizers.Optimizer:
    """The same on all sides."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


def on_towers(
    name: str, compute_dtype: str, turn: counter.Counter, is_fused: bool, num_microbatches: int
) -> None:
    """The bare step of a Trainer of one tower, with the default threads."""
    cores = container_limits.available_cores()
    devices.use_intra_op_threads(resolve.default_threads(num_microbatches, 0, cores))
    devices.choose(1)
    with tf.device(devices.HOST):
        model = tasks.build(name, compute_dtype)
        if is_fused:
            model = networks.fused(model)
    trainer = towers.Trainer(
        model,
        optimizer(),
        global_batch_size=sizes.BATCHES[name],
        num_microbatches=num_microbatches,
    )
    inputs, labels = tf.constant(tasks.inputs(name)), tf.constant(tasks.labels(name))
    for _ in itertools.count():
        trainer.train_step(inputs, labels).losses["total"].numpy()
        turn.step_done(sizes.BATCHES[name])


def in_fit(name: str, compute_dtype: str, turn: counter.Counter, xla: bool) -> None:
    """Keras's own loop."""
    model = tasks.with_keras_batch_norm(tasks.build(name, compute_dtype))
    model.compile(
        optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    batch = tf.data.Dataset.from_tensors((tasks.inputs(name), tasks.labels(name))).cache().repeat()
    counts = keras_fit.CountSteps(turn, sizes.BATCHES[name])
    model.fit(batch, epochs=1, steps_per_epoch=10**9, verbose=0, callbacks=[counts])


def main():
    """Trains until nobody listens."""
    side, name, compute_dtype, *number = sys.argv[1:]
    turn = counter.Counter()
    if side in ("towers", "fused"):
        on_towers(name, compute_dtype, turn, side == "fused", int(number[0]))
    else:
        in_fit(name, compute_dtype, turn, side == "xla")


if __name__ == "__main__":
    main()
