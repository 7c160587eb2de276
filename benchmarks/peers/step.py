"""The bare training step, or the evaluation, without logs; on one batch, or batches of `--images`.

python -m benchmarks.peers.step --model=resnet --num_towers=2 --num_microbatches=4

With several workers this process is the chief, and starts the others.
"""

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable

import numpy as np

import towers  # before Keras: it sets TensorFlow up
from benchmarks.peers import counter
from input_pipeline import batches, decoded, preprocess
from towers import devices, networks, worker
from towers.multi_worker import cluster, collectives
from towers.networks import cifarnet
from towers.support import container_limits, shares, worker_errors
from towers_cli import launch, resolve

import keras  # isort: skip
import tensorflow as tf  # isort: skip


def main():
    """Trains or evaluates until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cifarnet", choices=list(networks.NETWORKS))
    parser.add_argument("--filters", type=int, help="of cifarnet's convolutions; its default: 64")
    parser.add_argument("--hidden_units", type=int, help="of cifarnet's first dense layer")
    parser.add_argument("--images", type=int, help="of a set in memory that each batch is made of")
    parser.add_argument("--compute_dtype", default="float32", choices=list(networks.DTYPE_POLICIES))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--num_towers", type=int, default=1)
    parser.add_argument("--num_microbatches", type=int, default=shares.MOST_BY_DEFAULT)
    parser.add_argument("--accumulate_gradients", action="store_true")
    parser.add_argument("--num_workers", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    if options.images and (options.evaluate or options.num_workers > 1):
        parser.error("--images: for training by one worker")
    turn = None if "TF_CONFIG" in os.environ else counter.Counter()
    workers = meet_workers(options.num_workers)
    devices.use_intra_op_threads(
        resolve.default_threads(options.num_microbatches, 0, container_limits.available_cores())
    )
    batch = options.global_batch_size
    tower_devices = devices.choose(options.num_towers)
    workers.start()
    sizes = {} if options.filters is None else {"filters": options.filters}
    if options.hidden_units is not None:
        sizes["hidden_units"] = (options.hidden_units, 192)
    run, images, labels = trainer_and_batch(
        options.model,
        options.compute_dtype,
        batch,
        tower_devices,
        options.num_microbatches,
        sizes,
        workers,
        options.accumulate_gradients,
    )
    if options.evaluate:
        run.evaluate(counted(turn, (images, labels, tf.ones([batch], tf.bool)), batch))
    with contextlib.nullcontext() if turn else contextlib.suppress(worker_errors.WorkerError):
        same = itertools.repeat((images, labels))
        for given in of_a_set(options.model, options.images, batch) if options.images else same:
            run.train_step(*given).losses["total"].numpy()
            if turn:
                turn.step_done(batch)


def meet_workers(count: int) -> worker.Workers:
    """This process as one of so many workers; starts the others where it is the chief."""
    if count == 1:
        return worker.SingleWorker()
    members = cluster.from_tf_config(os.environ.get("TF_CONFIG") or "{}")
    if members is None:
        addresses = tuple(f"127.0.0.1:{port}" for port in launch.free_ports(count))
        members = cluster.Cluster(addresses, 0)
        for index in range(1, count):
            config = launch.tf_config(addresses, index)
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.step", *sys.argv[1:]],
                env=os.environ | {"TF_CONFIG": config},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    return collectives.MultiWorker(members, wait_seconds=60.0)


def trainer_and_batch(
    model: str,
    compute_dtype: str,
    global_batch_size: int,
    tower_devices: tuple[str, ...],
    num_microbatches: int,
    sizes: dict | None = None,
    workers: worker.Workers | None = None,
    accumulate_gradients: bool = False,
    parameter_device: str = devices.HOST,
) -> tuple[towers.Trainer, tf.Tensor, tf.Tensor]:
    """A trainer with all that a run of `train.py` updates, and a worker's images and labels."""
    network = networks.NETWORKS[model]
    shape = preprocess.for_images(network.preprocessing, (32, 32, 3)).output_shape
    workers = workers or worker.SingleWorker()
    towers_of_workers = [len(tower_devices)] * workers.count
    of = shares.Shares(global_batch_size, num_microbatches, towers_of_workers, workers.index)
    n = len(of.examples)
    with tf.device(devices.HOST):
        images = tf.random.stateless_normal([n, *shape], seed=[0, 0])
        labels = tf.random.stateless_uniform([n], [0, 1], 0, 10, tf.int64)
    trained = build(model, compute_dtype, shape, sizes or {}, parameter_device)
    if network.adapt is not None:
        network.adapt(trained, images.numpy())
    with tf.device(parameter_device):
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    run = towers.Trainer(
        trained,
        optimizer,
        towers=tower_devices,
        workers=workers,
        global_batch_size=global_batch_size,
        num_microbatches=num_microbatches,
        weight_decay=network.weight_decay,
        weight_filter=network.weight_filter,
        moving_average_decay=0.9999,
        accumulate_gradients=accumulate_gradients,
        parameter_device=parameter_device,
    )
    return run, images, labels


def build(
    model: str,
    compute_dtype: str,
    shape: tuple[int, int, int],
    sizes: dict,
    parameter_device: str,
) -> keras.Model:
    """The network; with `sizes`, `cifarnet` with other filters or hidden units."""
    if not sizes:
        device = {"parameter_device": parameter_device}
        return networks.build(model, shape, 10, compute_dtype=compute_dtype, **device)
    policy = keras.DTypePolicy(networks.DTYPE_POLICIES[compute_dtype])
    with tf.device(parameter_device):
        return cifarnet.build(shape, 10, policy, 0, **sizes)


def of_a_set(model: str, count: int, batch: int) -> Iterable[tuple]:
    """Training batches of so many random images, prepared as `train.py` prepares them."""
    rng, size = np.random.default_rng(0), (32, 32, 3)
    images = decoded.empty((count, *size))
    for begin in range(0, count, 10_000):
        part = images[begin : begin + 10_000]
        part[...] = rng.integers(0, 256, part.shape, np.uint8)
    labels = rng.integers(0, 10, count, np.int64)
    prepared = preprocess.for_images(networks.NETWORKS[model].preprocessing, size)
    return batches.training_batches(
        batches.as_tensor(images),
        labels,
        global_batch_size=batch,
        seed=0,
        last_step=10**9,
        preprocess=prepared.in_training,
    )


def counted(turn: counter.Counter, batch: tuple, images: int):
    """The same batch forever; asking for the next one tells that the last one is done."""
    while True:
        yield batch
        turn.step_done(images)


if __name__ == "__main__":
    main()
