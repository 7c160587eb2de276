"""A program of a user's: a task of `models` in a run of its own.

    python tests/helpers/own_run.py FOLDER TASK TOWERS SEED [DIE_AT]

trains for five epochs and prints the hash of the state. With DIE_AT the process kills itself, as
`kill -9` does, after that step. SEED is that of the weights a model begins with. Where TF_CONFIG is
set, it is one of several workers; INIT_FROM is what it takes its first weights from.
"""

import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import towers  # noqa: E402, before Keras: it sets it up
from input_pipeline import arrays  # noqa: E402

import keras  # noqa: E402  # isort: skip

import models  # noqa: E402  # isort: skip

EPOCHS, EXAMPLES, BATCH = 5, 29, 8  # an evaluation's last batch is not full


def train(folder: str, name: str, num_towers: int, seed: int, die_at: int = 0, workers=None):
    """Makes the run, or goes on with it."""
    keras.utils.set_random_seed(seed)
    task = models.made(name, EXAMPLES)
    if seed:  # other weights than the task's own, which a run that continues does not look at
        for weight in task.model.trainable_variables:
            weight.assign(weight * 0.5 + 0.01)
    trainer = towers.Trainer(
        task.model,
        keras.optimizers.Adam(0.01),
        loss=task.loss,
        loss_weights=task.loss_weights,
        metrics=task.metrics,
        towers=num_towers,
        workers=workers,
        num_microbatches=4,
        global_batch_size=BATCH,
    )

    def die(event: towers.Event) -> None:
        if event.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    run = towers.Run(
        folder,
        trainer,
        train=arrays.batches(task.inputs, task.labels, seed=7),
        test=(task.inputs, task.labels),
        epochs=EPOCHS,
        init_from=os.environ.get("INIT_FROM"),
    )
    run.train(
        every=[
            towers.evaluate(epochs=1),
            towers.checkpoint(steps=4),
            towers.log(steps=3),
            towers.histograms(steps=6),
            towers.verify(steps=2),
            towers.keep_best(),
            die,
        ]
    )
    print(trainer.state.sha256())


if __name__ == "__main__":
    arguments = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    members = towers.multi_worker.from_environment()
    with towers.multi_worker.meet(members, wait_seconds=60) as workers:
        workers.start()
        train(*arguments, workers=workers)
