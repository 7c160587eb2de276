"""The bare training step, or the evaluation, on one batch in memory: no input, no logs.

python -m benchmarks.peers.step --model=resnet --num_towers=2 --num_microbatches=4
"""

import argparse
import itertools

import towers  # before Keras: it silences TensorFlow's notices
from benchmarks import turns
from input_pipeline import preprocess
from towers import devices, models, session
from towers.models import cifarnet

import keras  # isort: skip
import tensorflow as tf  # isort: skip


def main():
    """Trains or evaluates until nobody listens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cifarnet", choices=list(models.NETWORKS))
    parser.add_argument("--filters", type=int, help="of cifarnet's convolutions; its default: 64")
    parser.add_argument("--compute_dtype", default="float32", choices=list(models.DTYPE_POLICIES))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--num_towers", type=int, default=1)
    parser.add_argument("--num_microbatches", type=int, default=session.CPU_MICROBATCHES)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    counter = turns.Turns()
    devices.use_intra_op_threads(session.default_threads(options.num_microbatches))
    tower_devices = devices.choose(options.num_towers)
    network = models.NETWORKS[options.model]
    shape = preprocess.for_images(network.preprocessing, (32, 32, 3)).output_shape
    batch = options.global_batch_size
    run = towers.Trainer(
        build(options, shape),
        keras.optimizers.SGD(0.01, momentum=0.9),
        tower_devices=tower_devices,
        global_batch_size=batch,
        num_microbatches=options.num_microbatches,
        weight_decay=network.weight_decay,
        weight_filter=network.weight_filter,
        moving_average_decay=0.9999,
    )
    images = tf.random.stateless_normal([batch, *shape], seed=[0, 0])
    labels = tf.random.stateless_uniform([batch], [0, 1], 0, 10, tf.int64)
    if options.evaluate:
        run.evaluate(counted(counter, (images, labels, tf.ones([batch], tf.bool)), batch))
    for _ in itertools.count():
        run.train_step(images, labels).losses["total"].numpy()
        counter.step_done(batch)


def build(options: argparse.Namespace, shape: tuple[int, int, int]) -> keras.Model:
    """The network, of another width where that is asked for."""
    if options.filters is None:
        return models.build(options.model, shape, 10, compute_dtype=options.compute_dtype)
    policy = keras.DTypePolicy(models.DTYPE_POLICIES[options.compute_dtype])
    with tf.device(devices.PARAMETER_DEVICE):
        return cifarnet.build(shape, 10, policy, 0, filters=options.filters)


def counted(counter: turns.Turns, batch: tuple, images: int):
    """The same batch for ever; asking for the next one tells that the last one is done."""
    while True:
        yield batch
        counter.step_done(images)


if __name__ == "__main__":
    main()
