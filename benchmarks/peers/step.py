"""The bare training step, or the evaluation, on one batch in memory: no input, no logs.

python -m benchmarks.peers.step --model=resnet --num_towers=2 --num_microbatches=4
"""

import argparse
import itertools

import towers  # before Keras: it silences TensorFlow's notices
from benchmarks.peers import counter
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
    turn = counter.Counter()
    devices.use_intra_op_threads(
        session.default_threads(options.num_microbatches, 0, devices.available_cores())
    )
    batch = options.global_batch_size
    run, images, labels = trainer_and_batch(
        options.model,
        options.compute_dtype,
        batch,
        options.num_towers,
        options.num_microbatches,
        options.filters,
    )
    if options.evaluate:
        run.evaluate(counted(turn, (images, labels, tf.ones([batch], tf.bool)), batch))
    for _ in itertools.count():
        run.train_step(images, labels).losses["total"].numpy()
        turn.step_done(batch)


def trainer_and_batch(
    model: str,
    compute_dtype: str,
    global_batch_size: int,
    num_towers: int,
    num_microbatches: int,
    filters: int | None = None,
) -> tuple[towers.Trainer, tf.Tensor, tf.Tensor]:
    """A trainer with all that a run of `train.py` updates, and images and labels for it."""
    tower_devices = devices.choose(num_towers)
    network = models.NETWORKS[model]
    shape = preprocess.for_images(network.preprocessing, (32, 32, 3)).output_shape
    images = tf.random.stateless_normal([global_batch_size, *shape], seed=[0, 0])
    trained = build(model, compute_dtype, shape, filters)
    if network.adapt is not None:
        network.adapt(trained, images.numpy())
    run = towers.Trainer(
        trained,
        keras.optimizers.SGD(0.01, momentum=0.9),
        tower_devices=tower_devices,
        global_batch_size=global_batch_size,
        num_microbatches=num_microbatches,
        weight_decay=network.weight_decay,
        weight_filter=network.weight_filter,
        moving_average_decay=0.9999,
    )
    return run, images, tf.random.stateless_uniform([global_batch_size], [0, 1], 0, 10, tf.int64)


def build(
    model: str, compute_dtype: str, shape: tuple[int, int, int], filters: int | None
) -> keras.Model:
    """The network, of another width where that is asked for."""
    if filters is None:
        return models.build(model, shape, 10, compute_dtype=compute_dtype)
    policy = keras.DTypePolicy(models.DTYPE_POLICIES[compute_dtype])
    with tf.device(devices.PARAMETER_DEVICE):
        return cifarnet.build(shape, 10, policy, 0, filters=filters)


def counted(turn: counter.Counter, batch: tuple, images: int):
    """The same batch for ever; asking for the next one tells that the last one is done."""
    while True:
        yield batch
        turn.step_done(images)


if __name__ == "__main__":
    main()
