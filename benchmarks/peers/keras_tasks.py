"""A network of `tasks` on towers or in Keras's `fit`, on one batch in memory.

python -m benchmarks.peers.keras_tasks SIDE TASK COMPUTE_DTYPE [--batch=N]

Both use the first GPU, where there is one, and copy the batch to it for each step: towers ahead of
the step, as `towers.Run` does.
"""

import argparse
import itertools

import numpy as np

import towers  # before Keras: it sets TensorFlow up
from benchmarks.peers import counter, keras_fit, tasks
from benchmarks.peers import task_sizes as sizes
from towers import devices, networks, prefetch
from towers.runs import ahead
from towers.support import container_limits, first_layers, machine, shares
from towers_cli import resolve

import keras  # isort: skip
import tensorflow as tf  # isort: skip

ON_TOWERS = ("towers", "fused", "towers-xla", "on-gpu", "on-gpu-xla")


def optimizer() -> keras.optimizers.Optimizer:
    """The same on all sides."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


def on_towers(options: argparse.Namespace, turn: counter.Counter) -> None:
    """The bare step of a Trainer of one tower, with the default threads."""
    cores, num_gpus = container_limits.available_cores(), machine.num_devices("GPU")
    compiled = options.side.endswith("-xla")
    devices.use_intra_op_threads(
        resolve.default_threads(options.num_microbatches, num_gpus, cores, compiled)
    )
    if options.deterministic:
        devices.run_deterministically()
    (tower,) = devices.choose(1)
    parameter_device = tower if options.side.startswith("on-gpu") else devices.HOST
    model = tasks.build(options.task, options.compute_dtype, parameter_device)
    if options.side == "fused":
        model = networks.fused(model)
    with tf.device(parameter_device):
        chosen = optimizer()
    trainer = towers.Trainer(
        model,
        chosen,
        towers=[tower],
        global_batch_size=options.batch,
        num_microbatches=options.num_microbatches,
        jit_compile=compiled,
        parameter_device=parameter_device,
    )
    with tf.device(devices.HOST):
        batches = itertools.repeat(tuple(map(tf.constant, one_batch(options))))
    if not machine.are_cpus([tower]):
        inputs_type = first_layers.inputs_type(model)
        batches = ahead.taken_ahead(
            prefetch.to_towers(batches, [tower], trainer.shares.tower_batch_sizes, inputs_type)
        )
    for inputs, labels, *parts in batches:
        given = {"parts": parts[0]} if parts else {}
        trainer.train_step(inputs, labels, **given).losses["total"].numpy()
        turn.step_done(options.batch)


def in_fit(options: argparse.Namespace, turn: counter.Counter) -> None:
    """Keras's own loop."""
    devices.choose(1)  # or else the process would take all memory of a GPU
    model = tasks.with_keras_layers(tasks.build(options.task, options.compute_dtype))
    model.compile(
        optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=options.side == "fit-xla",
    )
    batch = tf.data.Dataset.from_tensors(one_batch(options)).cache().repeat()
    counts = keras_fit.CountSteps(turn, options.batch)
    model.fit(batch, epochs=1, steps_per_epoch=10**9, verbose=0, callbacks=[counts])


def one_batch(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    return tasks.inputs(options.task, options.batch), tasks.labels(options.task, options.batch)


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=(*ON_TOWERS, "fit", "fit-xla"))
    parser.add_argument("task", choices=list(sizes.SHAPES))
    parser.add_argument("compute_dtype", choices=list(networks.DTYPE_POLICIES))
    parser.add_argument(
        "--num_microbatches", type=int, default=shares.MOST_BY_DEFAULT, help="of a step on towers"
    )
    parser.add_argument("--batch", type=int, help="default: the task's own")
    parser.add_argument("--deterministic", action="store_true", help="on towers")
    options = parser.parse_args()
    options.batch = options.batch or sizes.BATCHES[options.task]
    turn = counter.Counter()
    side = on_towers if options.side in ON_TOWERS else in_fit
    side(options, turn)


if __name__ == "__main__":
    main()
