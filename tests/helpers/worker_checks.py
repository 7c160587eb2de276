"""What one worker does in the tests of several; the same functions on one worker are the oracle.

    python -m towers_cli.launch --workers=2 -- tests/helpers/worker_checks.py FOLDER

writes what each worker found into FOLDER/worker-<index>.json. With WORKER_CHECKS=all in the
environment they train all networks, and not some; with WORKER_CHECKS=networks they train some and
do nothing else. The tests fork the workers.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import towers  # before Keras: it sets TensorFlow up
from input_pipeline import arrays, batches
from towers import devices
from towers.multi_worker import cluster, collectives

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import toys  # isort: skip

BATCH, STEPS, MICROBATCHES = 16, 6, 8
collectives._LEAST_BYTES_OF_A_PART = 64  # small networks' gradients travel in parts, too
WHICH = os.environ.get("WORKER_CHECKS")


def trainer(workers, model, num_towers=1, optimizer=None, **arguments) -> towers.Trainer:
    """A Trainer of `BATCH` examples in `MICROBATCHES` on these workers."""
    defaults = {"global_batch_size": BATCH, "num_microbatches": MICROBATCHES}
    return toys.trainer(
        model,
        optimizer or keras.optimizers.SGD(0.05, momentum=0.9),
        num_towers=num_towers,
        workers=workers,
        **defaults | arguments,
    )


def train(workers, model, num_towers=1, weights=None, steps=STEPS, **arguments) -> dict:
    """Trains and evaluates; all that should not depend on workers."""
    chosen = trainer(workers, model, num_towers, **arguments)
    images, labels = toys.batch(40, model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "int32":
        images = np.arange(images.size).reshape(images.shape) % 9
    data = batches.training_batches(
        images,
        labels,
        global_batch_size=BATCH,
        seed=1,
        last_step=steps,
        share=(share := own(chosen)),
    )
    if weights is not None:
        data = [(images, labels, weights[list(share)]) for images, labels in data]
    history = chosen.fit(data)
    found = chosen.evaluate(
        batches.evaluation_batches(
            images, labels, global_batch_size=BATCH, preprocess=None, share=share
        )
    )
    return {
        "state": chosen.state.parts_sha256(),
        "losses": [loss.hex() for loss in history],
        "evaluation": [found.count, found.loss.hex(), found.accuracy, found.confusion.tolist()],
    }


def embedding():
    """A model with sparse gradients: of the rows of a table that a batch looks up."""
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([6], dtype="int32"),
                keras.layers.Embedding(9, 4, embeddings_initializer=keras.initializers.Ones()),
                keras.layers.Flatten(),
                keras.layers.Dense(toys.CLASSES, kernel_initializer=_initial(2)),
            ]
        )
    )


def of_one_size():
    """A model whose gradients travel in parts of the same size."""
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([toys.CLASSES]),
                *(
                    keras.layers.Dense(toys.CLASSES, kernel_initializer=_initial(n))
                    for n in (1, 2, 3)
                ),
            ]
        )
    )


def dropout(dtype="float32"):
    """A model that draws, and in float64 on demand."""
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([6]),
                keras.layers.Dense(8, kernel_initializer=_initial(1), dtype=dtype),
                keras.layers.Dropout(0.5, seed=3, dtype=dtype),
                keras.layers.Dense(toys.CLASSES, kernel_initializer=_initial(2), dtype=dtype),
            ]
        )
    )


def _initial(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def own(chosen: towers.Trainer) -> range:
    """The places in a batch of a worker's examples."""
    return chosen.shares.examples


def _float16(workers) -> dict:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
    return train(workers, toys.small_cifarnet("float16"), optimizer=scaled)


def _clipped(workers) -> dict:
    clipping = keras.optimizers.SGD(0.1, global_clipnorm=0.1)
    return train(workers, toys.classifier(), optimizer=clipping)


# Networks of all kinds: what a worker makes of each.
KINDS = {
    "cifarnet": lambda w: train(w, toys.small_cifarnet(), weight_decay=0.01),
    "batch norm": lambda w: train(w, toys.normalized(), moving_average_decay=0.9),
    "resnet": lambda w: train(w, toys.small_resnet(), moving_average_decay=0.9),
    "sparse gradients": lambda w: train(w, embedding(), optimizer=keras.optimizers.Adam(0.01)),
    "cifarnet in bfloat16": lambda w: train(w, toys.small_cifarnet("bfloat16")),
    "layers of one size": lambda w: train(w, of_one_size()),
    "sum": lambda w: train(w, toys.classifier(), gradient_reduction="sum"),
    "dropout in float64": lambda w: train(w, dropout("float64")),
    "clipped": _clipped,
    "weighted": lambda w: train(w, toys.classifier(), weights=np.arange(BATCH) % 5),
    "weighted by nothing": lambda w: train(w, toys.classifier(), weights=np.zeros(BATCH), steps=2),
    "float16": _float16,
    "resnet in bfloat16": lambda w: train(w, toys.small_resnet(dtype="bfloat16")),
    "resnet, each": lambda w: train(w, toys.small_resnet(), batch_norm_statistics="each"),
}
# Fewer of them among many workers, which share the machine's cores.
FEWER = {
    2: ["cifarnet", "batch norm", "layers of one size"],
    3: ["cifarnet", "sparse gradients"],
    5: ["cifarnet"],
}


def models(workers) -> dict:
    """What this worker makes of each network that is tried among so many."""
    names = KINDS if WHICH == "all" else FEWER[workers.count]
    return {name: KINDS[name](workers) for name in names}


def several_towers(workers) -> dict:
    """More than one tower on a worker: two on each, and one and three."""
    return {
        "two on each": train(workers, toys.small_cifarnet(), num_towers=2),
        "one and three": train(workers, toys.small_cifarnet(), num_towers=1 + 2 * workers.index),
    }


def broadcast(workers) -> list:
    """Variables of several types, before and after they become the chief's."""
    values = [1.5, -0.0, [1, 2, 3], [[True, False]], 7, [2**31, 1]]
    dtypes = ["float32", "float64", "int64", "bool", "int32", "uint32"]
    variables = [tf.Variable(np.asarray(v, d)) for v, d in zip(values, dtypes, strict=True)]
    if not workers.is_chief:
        for variable in variables:
            variable.assign(tf.zeros_like(variable))
    workers.broadcast("some variables", variables)
    return [[v.dtype.name, v.numpy().tobytes().hex(), list(v.shape)] for v in variables]


def stopped(workers) -> list:
    """What is known after each step: the last worker is asked to stop at 3, no longer so at 5."""
    chosen = trainer(workers, toys.classifier())
    images, labels = toys.batch(len(own(chosen)), (3,))
    known = []
    for step in range(1, 6):
        if step == 3 and workers.index == workers.count - 1:
            workers.ask_to_stop(15)
        if step == 5:
            workers.ask_to_stop(None)
        chosen.train_step(images, labels)
        known.append(workers.stop_asked())
    return known


def not_finite(workers) -> list:
    """What is said where the last worker's last image is not a number, and what is left of it."""
    chosen = trainer(workers, toys.classifier(), num_towers=1 + (workers.is_chief))
    before = chosen.state.sha256()
    images, labels = toys.batch(len(own(chosen)), (3,))
    if workers.index == workers.count - 1:
        images[-1] = np.nan
    try:
        chosen.train_step(images, labels)
    except towers.NotFiniteError as error:
        return [str(error), chosen.state.sha256() == before]
    return ["nothing was said"]


def few_examples(workers) -> list:
    """An evaluation of five examples: some workers have none of them."""
    images, labels = toys.batch(5, (3,))
    chosen = trainer(workers, toys.classifier())
    found = chosen.evaluate(
        batches.evaluation_batches(
            images, labels, global_batch_size=BATCH, preprocess=None, share=own(chosen)
        )
    )
    return [found.count, found.loss.hex(), found.accuracy]


def own_run(workers) -> list:
    """The weights after a run, and after the same program again: it has finished already.

    Of its three test examples, some workers have none.
    """
    (images, labels), hashes = toys.batch(40, (3,)), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            model = toys.classifier(seed=seed)
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            towers.distribute(model, 1, microbatch_size=2, workers=workers)
            done = towers.Run(folder, model).fit(
                arrays.batches(images, labels), batch_size=BATCH, epochs=1, verbose=0,
                validation_data=(images[:3], labels[:3]),
            )  # fmt: skip
            hashes.append(done.weights_sha256)
    return hashes


def wrong_size(workers) -> str:
    """What is said of a batch that is not a worker's share."""
    try:
        trainer(workers, toys.classifier()).train_step(*toys.batch(BATCH, (3,)))
    except ValueError as error:
        return str(error)
    return "nothing was said"


def at_odds(workers) -> list[str]:
    """What is said where the chief alone evaluates, or writes to the others, and they train."""
    chosen, said = trainer(workers, toys.classifier()), []
    batch = toys.batch(len(own(chosen)), (3,))
    for chief_does in (
        lambda: chosen.evaluate([batch]),
        lambda: workers.exchange("a message", 1),
        chosen.broadcast_state,
        lambda: chosen.train_step(*batch, np.ones(len(batch[0]))),
    ):
        try:
            chief_does() if workers.is_chief else chosen.train_step(*batch)
        except towers.WorkerError as error:
            said.append(str(error))
    chosen.train_step(*batch)  # nothing is left of it
    return said


def other_sizes(workers) -> str:
    """What is said where the last worker has another batch."""
    batch = BATCH * (1 + (not workers.is_chief))
    try:
        trainer(workers, toys.classifier(), global_batch_size=batch)
    except towers.WorkerError as error:
        return str(error)
    return "nothing was said"


def other_batches(workers) -> str:
    """What is said where the chief evaluates a batch less than the others."""
    chosen = trainer(workers, toys.classifier())
    batch = toys.batch(len(own(chosen)), (3,))
    try:
        chosen.evaluate([batch] * (1 + (not workers.is_chief)))
    except ValueError as error:
        return str(error)
    return "nothing was said"


def messages(workers) -> list:
    """What all say, and what the chief makes; not over the connections, which miss no heartbeat."""
    if workers.count > 1:
        workers._channel.exchange = None
    said = workers.exchange("who they are", [workers.index, None, "ä" * (500 * workers.index)])
    said = [[index, nothing, len(text)] for index, nothing, text in said]
    try:
        return [said, workers.from_chief("it", lambda: {"a": [workers.index, 0.1]})]
    finally:
        if workers.count > 1:
            del workers._channel.exchange


CHECKS = (models, broadcast, messages, stopped, few_examples, own_run, wrong_size)


def all_checks(workers) -> dict:
    """Everything, by name."""
    if WHICH == "networks":
        return {"models": models(workers)}
    found = {check.__name__: check(workers) for check in CHECKS}
    if workers.count == 2:
        found["several_towers"] = several_towers(workers)
    found["not_finite"] = not_finite(workers)
    found |= {check.__name__: check(workers) for check in (at_odds, other_sizes, other_batches)}
    return found


def main(folder: str) -> None:
    """Runs the checks as the worker that TF_CONFIG says."""
    devices.use_intra_op_threads(1)
    devices.choose(8)
    members = cluster.from_tf_config(os.environ["TF_CONFIG"])
    found = {"at_the_end": "nothing was said"}
    try:
        with collectives.MultiWorker(members, wait_seconds=60) as workers:
            workers.start()
            found |= all_checks(workers)
            chosen = trainer(workers, toys.classifier())
            if not workers.is_chief:  # which has come to its end
                chosen.train_step(*toys.batch(len(own(chosen)), (3,)))
    except towers.WorkerError as error:
        found["at_the_end"] = str(error)
    Path(folder, f"worker-{members.index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
