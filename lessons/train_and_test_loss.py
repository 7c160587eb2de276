"""Training loss with and without distortions and weight decay, beside test loss and accuracy."""

import functools
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from laboratory import data, findings, paired, problems, race
from lessons import lesson
from towers import moving_averages, weight_decay

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "Should the lower loss go with the higher accuracy?"
TRAINING_EXAMPLES, TEST_EXAMPLES, EPOCHS, SEEDS = 6_000, 5_000, 16, (0, 1, 2)
BATCH, RATE, WEIGHT_DECAY, MOVING_AVERAGE_DECAY = 64, 0.05, 0.004, 0.999
EPOCHS_BETWEEN_EVALUATIONS = 2
# Name to (distorted images, coefficient of weight decay).
RUNS = {
    "plain": (False, 0.0),
    "weight decay": (False, WEIGHT_DECAY),
    "distortions": (True, 0.0),
    "both": (True, WEIGHT_DECAY),
}


class Point(NamedTuple):
    """What is known of a run after some epochs.

    shown: mean total loss of the last epoch's steps, as a training shows it.
    test: of the test images.
    averaged: of the test images, with the moving averages of the weights.
    """

    epoch: int
    shown: float
    test: problems.Measured
    averaged: problems.Measured


class Run(NamedTuple):
    """One run.

    points: during the run.
    train: of its training images without distortions, at the end.
    right: whether each test image is right, at the end, bool [images].
    """

    points: list[Point]
    train: problems.Measured
    right: np.ndarray


def run(
    setup: findings.Setup,
    *,
    examples=TRAINING_EXAMPLES,
    epochs=EPOCHS,
    between=EPOCHS_BETWEEN_EVALUATIONS,
    seeds=SEEDS,
) -> findings.Finding:
    """Trains four ways on the same images with each seed, side by side."""
    images = data.load(setup).first(examples, TEST_EXAMPLES)
    looks = range(between, epochs + 1, between)
    results = race.side_by_side(
        [functools.partial(train, images, looks, seed, *RUNS[n]) for n in RUNS for seed in seeds]
    )
    runs = {name: results[at : at + len(seeds)] for name, at in zip(RUNS, count(0, len(seeds)))}
    return finding(runs, f"the first {len(images.train.images):,} training images of {images.name}")


def train(
    images: data.Images, epochs: Sequence[int], seed: int, distorted: bool, decay: float
) -> Run:
    """One run, evaluated after each of `epochs`."""
    examples, model = len(images.train.images), race.network(seed)
    weight_decay.regularize(weight_decay.kernels(model), decay)
    data.compile_classifier(model, keras.optimizers.SGD(RATE))
    values = [weight.value for weight in model.trainable_variables]
    averages = [tf.Variable(value) for value in values]
    average = tf.function(moving_averages.update, autograph=False)
    averaged = race.model(race.Entry(BATCH, RATE, seed=seed))
    test, points, history = images.test_batches(), [], []
    looks = {epoch * examples // BATCH: epoch for epoch in epochs}
    for step, batch in enumerate(
        images.training_batches(BATCH, max(looks), seed=seed, distorted=distorted), start=1
    ):
        history.append(model.train_on_batch(*batch, return_dict=True)["loss"])
        average(averages, values, MOVING_AVERAGE_DECAY, tf.constant(step - 1))
        if step in looks:
            averaged.set_weights(averages)
            seen = race.evaluated(model, test), race.evaluated(averaged, test)
            shown = float(np.mean(history[-examples // BATCH :]))
            points.append(Point(looks[step], shown, *seen))
    train = race.evaluated(model, images.test_batches(split="train"))
    return Run(points, train, race.right(model, images))


def finding(runs: dict[str, list[Run]], name: str) -> findings.Finding:
    """The table and the answer."""
    lowest, best = by_shown(runs), by_accuracy(runs)
    apart = paired.difference(*([run.right for run in runs[of]] for of in (best, lowest)))
    return findings.Finding(
        head=(
            "trained with", "loss shown", "training images: cross entropy", "accuracy",
            "test images: cross entropy", "accuracy", "averaged weights: cross entropy", "accuracy",
        ),
        rows=[[name, *cells(of_seeds)] for name, of_seeds in runs.items()],
        answer=answer(apart),
        numbers={"runs": runs, "lowest": lowest, "best": best, "apart": apart},
        draw=lambda figure: draw(figure, runs),
        data=name,
        runs=f"means of {len(runs[best])} seeds",
    )  # fmt: skip


def averaged(of_seeds: list[Run], value: Callable[[Run], float]) -> float:
    """The mean over the seeds."""
    return float(np.mean([value(run) for run in of_seeds]))


def by_shown(runs: dict[str, list[Run]]) -> str:
    """The way that showed the lowest training loss."""
    return min(runs, key=lambda name: averaged(runs[name], lambda run: run.points[-1].shown))


def by_accuracy(runs: dict[str, list[Run]]) -> str:
    """The way that gets the most test images right."""
    return max(runs, key=lambda name: averaged(runs[name], lambda run: run.right.mean()))


def answer(apart: paired.Difference) -> str:
    """In one sentence."""
    if apart.verdict > 0:
        return (
            "No: losses shown in training are of distorted images and include the weight decay, "
            "so the lowest of them need not belong to the most accurate model; compare the same "
            "loss on the same test images."
        )
    return (
        "Here it did, or the seeds cannot tell; but it need not, since losses shown in training "
        "do not all measure the same thing."
    )


def cells(of_seeds: list[Run]) -> Sequence[str]:
    """The cells of one way at its end, for the table."""
    values: tuple[Callable[[Run], problems.Measured], ...] = (
        lambda run: run.train,
        lambda run: run.points[-1].test,
        lambda run: run.points[-1].averaged,
    )
    pairs = [
        (
            f"{averaged(of_seeds, lambda run, of=of: of(run).loss):.2f}",
            f"{averaged(of_seeds, lambda run, of=of: of(run).accuracy):.1%}",
        )
        for of in values
    ]
    shown = averaged(of_seeds, lambda run: run.points[-1].shown)
    return [f"{shown:.2f}", *(cell for pair in pairs for cell in pair)]


def draw(figure, runs: dict[str, list[Run]]) -> None:
    """Loss shown, test loss and test accuracy against epochs: means, and smallest to largest."""
    panels = figure.subplots(1, 3)
    values: tuple[Callable[[Point], float], ...] = (
        lambda point: point.shown,
        lambda point: point.test.loss,
        lambda point: 100 * point.test.accuracy,
    )
    titles = ("loss shown in training", "test cross entropy", "test accuracy, %")
    for axes, value, title in zip(panels, values, titles, strict=True):
        for name, of_seeds in runs.items():
            epochs = [point.epoch for point in of_seeds[0].points]
            lines = np.array([[value(point) for point in run.points] for run in of_seeds])
            (line,) = axes.plot(epochs, lines.mean(axis=0), label=name)
            band = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
            axes.fill_between(epochs, lines.min(axis=0), lines.max(axis=0), **band)
        axes.set(title=title, xlabel="epoch")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(runs))


LESSON = lesson.Lesson("train_and_test_loss", QUESTION, run)
