"""What one worker does in the tests of several; the same functions on one worker are the oracle.

    python -m towers_cli.launch --workers=2 -- tests/helpers/worker_checks.py FOLDER

writes what each worker found into FOLDER/worker-<index>.json. With WORKER_CHECKS=all in the
environment they train all networks, with another value some.
"""

import functools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import towers  # before Keras: it sets TensorFlow up
from input_pipeline import arrays
from towers import devices, hashes
from towers.multi_worker import cluster, collectives
from towers.runs import run_errors

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import toys  # isort: skip

BATCH, UNEVEN, STEPS, MICROBATCH = 12, 11, 6, 2


def distributed(workers, model, num_towers=1, optimizer=None, microbatch=MICROBATCH, loss=None):
    """A compiled model on these workers."""
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer or keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return towers.distribute(model, num_towers, microbatch_size=microbatch, workers=workers)


def joined(labels, outputs):
    """A loss of one's own, which is of the whole batch."""
    labels = keras.ops.one_hot(keras.ops.cast(labels, "int32"), toys.CLASSES)
    return keras.ops.mean((labels - outputs) ** 2)


def train(workers, model, num_towers=1, steps=STEPS, batch=BATCH, **arguments) -> dict:
    """Trains and evaluates; all that should not depend on workers."""
    distributed(workers, model, num_towers, **arguments)
    images, labels = toys.batch(40, model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        images = np.arange(images.size).reshape(images.shape) % 9
    losses = [
        model.train_on_batch(*batch, return_dict=True)["loss"]
        for batch in arrays.batches(images, labels).batches(0, steps, global_batch_size=batch)
    ]
    return {
        "weights": hashes.sha256([*model.get_weights()]),
        "optimizer": hashes.sha256([variable.numpy() for variable in model.optimizer.variables]),
        "losses": [float(loss).hex() for loss in losses],
        "evaluation": model.evaluate(images, labels, batch_size=BATCH, verbose=0),
    }


def embedding():
    """A model with sparse gradients: of the rows of a table that a batch looks up."""
    layers = [
        keras.layers.Embedding(9, 4, embeddings_initializer="ones"),
        keras.layers.Flatten(),
        keras.layers.Dense(toys.CLASSES, kernel_initializer=keras.initializers.GlorotUniform(2)),
    ]
    return toys.on_cpu(lambda: keras.Sequential([keras.Input([6], dtype="int32"), *layers]))


def texts(workers, num_towers: int) -> dict:
    """A joined loss of outputs [n, length, classes]; each worker has other first weights."""
    initial = keras.initializers.GlorotUniform(seed=workers.index)
    dense = keras.layers.Dense(toys.CLASSES, kernel_initializer=initial)
    model = toys.on_cpu(lambda: keras.Sequential([keras.Input([None, 1]), dense]))
    distributed(workers, model, num_towers, loss=joined)
    batches = [np.arange(UNEVEN * n).reshape(-1, n, 1) % toys.CLASSES for n in (5, 6, 7)]
    losses = [float(model.train_on_batch(tokens, tokens[..., 0])[0]).hex() for tokens in batches]
    weights = hashes.sha256([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
    evaluation = model.evaluate(batches[0], batches[0][..., 0], batch_size=BATCH, verbose=0)
    return {"weights": weights, "losses": losses, "evaluation": evaluation}


def drawing():
    """A model with dropout and batch norm."""
    keras.utils.set_random_seed(1)
    return toys.dropout_classifier()


# Networks of all kinds: what a worker makes of each.
KINDS = {
    "cifarnet": lambda w, n=1: train(w, toys.small_cifarnet(), n),
    "resnet": lambda w, n=1: train(w, toys.small_resnet(), n),
    "sparse gradients": lambda w, n=1: train(
        w, embedding(), n, optimizer=keras.optimizers.Adam(0.01), batch=UNEVEN
    ),
    "sparse gradients of whole batches": lambda w, n=1: train(w, embedding(), n),
    "joined loss": lambda w, n=1: train(w, toys.classifier(w.index), n, loss=joined, batch=UNEVEN),
    "joined loss of texts": lambda w, n=1: texts(w, n),
    "draws and statistics": lambda w, n=1: train(w, drawing(), n, batch=UNEVEN),
    "clipped": lambda w, n=1: train(
        w, toys.classifier(), n, optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.1)
    ),
    "float16": lambda w, n=1: train(
        w,
        toys.small_cifarnet("float16"),
        n,
        optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
    ),  # fmt: skip
    "resnet in bfloat16": lambda w, n=1: train(w, toys.small_resnet(dtype="bfloat16"), n),
}
# By day; and cifarnet on several towers.
SOME = ("sparse gradients", "sparse gradients of whole batches", "joined loss of texts")


def models(workers) -> dict:
    """What this worker makes of each network, or of some."""
    names = KINDS if os.environ["WORKER_CHECKS"] == "all" else SOME
    return {name: KINDS[name](workers) for name in names}


def own_run(workers) -> list:
    """The weights after a run, and after the same program again: it has finished already."""
    (images, labels), hashes_of = toys.batch(40, (3,)), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            model = distributed(workers, toys.classifier(seed=seed), microbatch=BATCH // 2)
            done = towers.Run(folder, model).fit(
                arrays.batches(images, labels), batch_size=BATCH, epochs=1, verbose=0,
                validation_data=(images[:1], labels[:1]),  # too few for all workers
            )  # fmt: skip
            hashes_of.append(done.weights_sha256)
    return hashes_of


def said(attempt) -> str:
    """The error that an attempt ends in."""
    try:
        attempt()
    except (towers.WorkerError, run_errors.TrainingError, ValueError) as error:
        return str(error)
    return "nothing was said"


def at_odds(workers) -> list[str]:
    """What is said where the chief alone does something else, and the others train."""
    model = distributed(workers, toys.classifier())
    step = functools.partial(model.train_on_batch, *toys.batch(BATCH, (3,)))
    step()
    of_chief = (
        lambda: workers.exchange("a message", 1),
        lambda: workers.broadcast("the chief's state", [tf.Variable(1.0)]),
    )
    found = [said(does if workers.is_chief else step) for does in of_chief]
    step()  # nothing is left of it
    return found


def of_others(workers) -> list[str]:
    """What is said where a worker has another batch, and where it comes to other weights."""
    images, labels = toys.batch(40, (3,))
    other = images[::-1] if workers.index else images
    model = distributed(workers, toys.classifier())
    kernel = model.trainable_variables[0]
    drift = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: kernel.assign(kernel + workers.index)
    )
    options = {"batch_size": BATCH, "verbose": 0, "callbacks": [drift]}
    with tempfile.TemporaryDirectory() as folder:
        run, source = towers.Run(folder, model), arrays.batches(images, labels)
        return [
            said(lambda: model.fit(other, labels, **options)),
            said(lambda: run.fit(source, **options)),
        ]


class Untold(keras.layers.Dense):
    """The gradient of its kernel has a shape that TensorFlow does not know."""

    def call(self, x):
        @tf.custom_gradient
        def same(kernel):
            back = lambda upstream: tf.numpy_function(np.asarray, [upstream], tf.float32)  # noqa: E731
            return tf.identity(kernel), back

        return x @ same(tf.convert_to_tensor(self.kernel))


def of_unknown_shape(workers) -> str:
    """What is said of a gradient that cannot be packed."""
    model = keras.Sequential([keras.Input([3]), Untold(toys.CLASSES, use_bias=False)])
    return said(lambda: distributed(workers, model).train_on_batch(*toys.batch(BATCH, (3,))))


CHECKS = (models, own_run, at_odds, of_others, of_unknown_shape)


def main(folder: str) -> None:
    """Runs the checks as the worker that TF_CONFIG says."""
    devices.use_intra_op_threads(1)
    devices.choose(8)
    members = cluster.from_tf_config()
    found = {"at_the_end": "nothing was said"}
    try:
        with collectives.MultiWorker(members, wait_seconds=60) as workers:
            found["SIGINT"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            found |= {check.__name__: check(workers) for check in CHECKS}
            found["several_towers"] = KINDS["cifarnet"](workers, 1 + 2 * (workers.index % 2))
            if not workers.is_chief:  # which has come to its end
                workers.exchange("a message", 1)
    except towers.WorkerError as error:
        found["at_the_end"] = str(error)
    Path(folder, f"worker-{members.index}.json").write_text(json.dumps(found))
    time.sleep(3)  # as `meet` does: a slower worker would take this one's end for the cause


if __name__ == "__main__":
    main(sys.argv[1])
