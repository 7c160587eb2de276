"""A network of `tasks` in Keras's `fit`, on towers or without, on one batch in memory.

    python -m benchmarks.peers.keras_tasks SIDE TASK COMPUTE_DTYPE [--batch=N]

With several workers this process is the chief, and starts the others.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

import towers  # before Keras: it sets TensorFlow up
from benchmarks.peers import counter, tasks
from benchmarks.peers import task_sizes as sizes
from towers import devices, distribution, errors, machine, networks
from towers.multi_worker import cluster, collectives
from towers_cli import launch, resolve

import keras  # isort: skip
import tensorflow as tf  # isort: skip

ON_TOWERS = ("towers", "fused", "towers-xla")
ENDLESS = 10**9  # steps


class CountSteps(keras.callbacks.Callback):
    """Reports each call of the train function."""

    def __init__(self, turn: counter.Counter, images: int):
        super().__init__()
        self._turn, self._images = turn, images

    def on_train_batch_end(self, batch, logs=None):
        """Keras calls it after each of them."""
        self._turn.step_done(self._images)


def optimizer() -> keras.optimizers.Optimizer:
    """The same on all sides."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


def compiled(model: keras.Model, **options) -> keras.Model:
    """The model, ready to train."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, **options)
    return model


def fit(model: keras.Model, batch: tuple, callbacks: Sequence, ahead_on: str | None = None) -> None:
    """Trains on one batch, again and again; tf.data copies it to a device, if that is given."""
    batches = tf.data.Dataset.from_tensors(batch).cache().repeat()
    if ahead_on:
        batches = batches.apply(tf.data.experimental.prefetch_to_device(ahead_on))
    model.fit(batches, epochs=1, steps_per_epoch=ENDLESS, verbose=0, callbacks=list(callbacks))


def one_batch(task: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    return tasks.inputs(task, batch), tasks.labels(task, batch)


def tower_devices(options: argparse.Namespace) -> tuple[str, ...]:
    """The devices of the towers, with the threads that `train.py` would choose."""
    gpus, cores = machine.num_devices("GPU"), machine.available_cores()
    is_compiled = options.side == "towers-xla"
    microbatches = -(-options.batch // options.microbatch_size)
    devices.use_intra_op_threads(resolve.default_threads(microbatches, gpus, cores, is_compiled))
    return devices.choose(options.num_towers)


def on_towers(options: argparse.Namespace, of_towers: tuple[str, ...], workers) -> keras.Model:
    """The network on towers."""
    is_compiled = options.side == "towers-xla"
    model = tasks.build(options.task, options.compute_dtype)
    if options.side == "fused":
        model = networks.fused(model)
    towers.distribute(
        model,
        of_towers,
        microbatch_size=options.microbatch_size,
        accumulate_gradients=options.accumulate_gradients,
        workers=workers,
    )
    return compiled(model, jit_compile=is_compiled)


@contextlib.contextmanager
def met(count: int):
    """The workers, as one of so many; starts the others where this process is the chief."""
    members = cluster.from_tf_config()
    if count > 1 and members is None:
        addresses = tuple(f"127.0.0.1:{port}" for port in launch.free_ports(count))
        members = cluster.Cluster(addresses, 0)
        for index in range(1, count):
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.keras_tasks", *sys.argv[1:]],
                env=os.environ | {"TF_CONFIG": launch.tf_config(addresses, index)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    if members is None:
        yield None
    else:
        with collectives.meet(members, 60) as workers:
            yield workers


def main():
    """Trains until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=(*ON_TOWERS, "fit", "fit-xla"))
    parser.add_argument("task", choices=list(sizes.SHAPES))
    parser.add_argument("compute_dtype", choices=list(networks.DTYPE_POLICIES))
    parser.add_argument("--batch", type=int, help="default: the task's own")
    parser.add_argument("--microbatch_size", type=int, default=0, help="0: towers' default")
    parser.add_argument("--num_towers", type=int, default=1)
    parser.add_argument("--num_workers", type=int, default=1)
    parser.add_argument("--accumulate_gradients", action="store_true")
    options = parser.parse_args()
    options.batch = options.batch or sizes.BATCHES[options.task]
    options.microbatch_size = options.microbatch_size or distribution.default_size(options.batch)
    of_towers = tower_devices(options) if options.side in ON_TOWERS else ()
    is_other = bool(os.environ.get("TF_CONFIG"))  # another worker than the chief
    counts = [] if is_other else [CountSteps(counter.Counter(), options.batch)]
    # When the chief goes, the others do.
    ends = contextlib.suppress(errors.WorkerError) if is_other else contextlib.nullcontext()
    with ends, met(options.num_workers) as workers:
        if options.side in ON_TOWERS:
            model = on_towers(options, of_towers, workers)
        else:
            plain = tasks.with_keras_layers(tasks.build(options.task, options.compute_dtype))
            model = compiled(plain, jit_compile=options.side == "fit-xla")
        fit(model, one_batch(options.task, options.batch), counts)


if __name__ == "__main__":
    main()
