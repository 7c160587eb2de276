"""What augmentation and mixing do to accuracy where training images are few, seed by seed.

    python -m benchmarks.augmented --data_dir=...

`cifarnet` on the first images of CIFAR-10's training split, with `pad_crop_flip` in every run, and
each way of augmentation on top of it. Runs of one seed begin with the same weights and read the
same images in the same order; a difference is the mean over seeds, from the smallest to the
largest. Each process trains one run at a time, on one tower.
"""

import functools
import math
import multiprocessing
import statistics

import towers  # before Keras: it sets TensorFlow up
from benchmarks import turns
from input_pipeline import augment, batches, datasets, mixing, preprocess
from towers import devices, losses, networks, schedules
from towers.support import noise

import keras  # isort: skip
import tensorflow as tf  # isort: skip

BATCH, RATE, MOMENTUM, WARMUP_EPOCHS, WEIGHT_DECAY = 128, 0.03, 0.9, 2.0, 5e-4
PREPROCESSING, PLAIN = "pad_crop_flip", "none"
# Of a way: --augment, --random_erasing, --mixup_alpha, --cutmix_alpha.
WAYS = {
    PLAIN: ("none", 0.0, 0.0, 0.0),
    "trivial_augment": ("trivial_augment", 0.0, 0.0, 0.0),
    "random erasing, 0.25": ("none", 0.25, 0.0, 0.0),
    "mixup, 0.2": ("none", 0.0, 0.2, 0.0),
    "CutMix, 1": ("none", 0.0, 0.0, 1.0),
}
assert {of[0] for of in WAYS.values()} <= set(augment.NAMES)
HEAD = """\
| on top of crops and flips | loss of the last epoch | test accuracy | against none, points |
|---|---|---|---|"""


def main() -> None:
    """Trains every way with every seed, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--data_dir", help="as train.py's; of CIFAR-10")
    parser.add_argument("--images", type=int, default=5_000, help="of the training split")
    parser.add_argument("--epochs", type=float, default=40.0, help="of each run")
    parser.add_argument("--processes", type=int, default=2, help="that train at once")
    options = parser.parse_args()
    if options.images > len(datasets.load("cifar10", options.data_dir, "train").images):
        parser.error(f"--images={options.images}: the training split has fewer")
    jobs = [(way, seed) for seed in range(options.rounds) for way in WAYS]
    one = functools.partial(trained, options.data_dir, options.images, options.epochs)
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        found = dict(zip(jobs, pool.starmap(one, jobs, chunksize=1), strict=True))
    rows = [figures(way, found, options) for way in WAYS]
    turns.report(HEAD, rows, as_row, options.output)


def trained(data_dir: str | None, images: int, epochs: float, way: str, seed: int) -> dict:
    """One run: its last epoch's mean training loss, and its accuracy on the test split."""
    noise.quiet_loggers()
    devices.use_intra_op_threads(1)
    split = {name: datasets.load("cifar10", data_dir, name) for name in datasets.SPLITS}
    train, test = split["train"], split["test"]
    augmentation, erasing, mixup, cutmix = WAYS[way]
    how = preprocess.for_images(PREPROCESSING, train.images.shape[1:], augmentation, erasing)
    classes = len(train.class_names)
    mixed = mixing.Mixing(mixup, cutmix, classes) if mixup or cutmix else None
    steps = round(epochs * images / BATCH)
    with tf.device(devices.HOST):
        model = networks.build("cifarnet", how.output_shape, classes, seed=seed)
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    trainer = towers.Trainer(
        model,
        optimizer,
        loss=losses.cross_entropy,
        towers=1,
        global_batch_size=BATCH,
        learning_rate=schedules.LearningRate(
            "cosine",
            RATE,
            images,
            warmup_epochs=min(WARMUP_EPOCHS, epochs / 4),
            total_epochs=epochs,
        ),
        weight_decay=WEIGHT_DECAY,
    )
    made = batches.training_batches(
        train.images[:images],
        train.labels[:images],
        global_batch_size=BATCH,
        seed=seed,
        last_step=steps,
        preprocess=how.in_training,
        mix=mixed,
    )
    history = trainer.fit(made)
    evaluated = batches.evaluation_batches(
        test.images, test.labels, global_batch_size=500, preprocess=how.evaluate
    )
    return {
        "loss": statistics.mean(history[-math.ceil(images / BATCH) :]),
        "accuracy": trainer.evaluate(evaluated).accuracy,
    }


def figures(way: str, found: dict, options) -> dict:
    """What the runs of one way came to."""
    seeds = range(options.rounds)
    runs = [found[way, seed] for seed in seeds]
    apart = [100 * (found[way, s]["accuracy"] - found[PLAIN, s]["accuracy"]) for s in seeds]
    return {
        "way": way,
        "images": options.images,
        "epochs": options.epochs,
        "accuracy": [round(run["accuracy"], 4) for run in runs],
        "training_loss": [round(run["loss"], 3) for run in runs],
        "against_none_points": [round(points, 2) for points in apart],
    } | turns.conditions()


def as_row(row: dict) -> str:
    """One row of the table."""
    accuracy, points = row["accuracy"], row["against_none_points"]
    difference = (
        ""
        if row["way"] == PLAIN
        else f"{statistics.mean(points):+.1f} ({min(points):+.1f} to {max(points):+.1f})"
    )
    return (
        f"| {row['way']} | {statistics.mean(row['training_loss']):.2f} | "
        f"{statistics.mean(accuracy):.1%} ({min(accuracy):.1%} to {max(accuracy):.1%}) | "
        f"{difference} |"
    )


if __name__ == "__main__":
    main()
