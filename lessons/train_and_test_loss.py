"""Training loss with and without distortions and weight decay, beside test loss and accuracy."""

import functools
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from laboratory import data, findings, paired, race
from lessons import lesson
from towers import moving_averages, weight_decay

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "Should the lower loss go with the higher accuracy?"
TRAINING_EXAMPLES, TEST_EXAMPLES, EPOCHS, SEEDS = 6_000, 5_000, 16, (0, 1, 2)
BATCH, RATE, WEIGHT_DECAY, MOVING_AVERAGE_DECAY = 64, 0.05, 0.004, 0.999
EPOCHS_BETWEEN_EVALUATIONS = 2
IN_SHORT = {"examples": 500, "epochs": 50, "between_evaluations": 10}
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
    test: race.Evaluated
    averaged: race.Evaluated


class Run(NamedTuple):
    """One run.

    points: during the run.
    train: of its training images without distortions, at the end.
    right: whether each test image is right, at the end, bool [images].
    """

    points: list[Point]
    train: race.Evaluated
    right: np.ndarray


def run(setup: findings.Setup) -> findings.Finding:
    """Trains four ways on the same images with each seed, side by side."""
    examples = IN_SHORT["examples"] if setup.short else TRAINING_EXAMPLES
    epochs = IN_SHORT["epochs"] if setup.short else EPOCHS
    between = IN_SHORT["between_evaluations"] if setup.short else EPOCHS_BETWEEN_EVALUATIONS
    images = data.load(setup).first(examples, TEST_EXAMPLES)
    looks = range(between, epochs + 1, between)
    found = race.side_by_side(
        [functools.partial(train, images, looks, seed, *RUNS[n]) for n in RUNS for seed in SEEDS]
    )
    runs = {name: found[at : at + len(SEEDS)] for name, at in zip(RUNS, count(0, len(SEEDS)))}
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
    """The table and the claim."""
    lowest, best = by_shown(runs), by_accuracy(runs)
    apart = paired.difference(*([run.right for run in runs[of]] for of in (best, lowest)))
    return findings.Finding(
        head=(
            "trained with", "loss shown", "training images: cross entropy", "accuracy",
            "test images: cross entropy", "accuracy", "averaged weights: cross entropy", "accuracy",
        ),
        rows=[[name, *cells(of_seeds)] for name, of_seeds in runs.items()],
        answer=answer(apart),
        claim=f"{between_runs(runs, apart)} {within_a_run(runs)}",
        numbers={"runs": runs, "lowest": lowest, "best": best, "apart": apart},
        draw=lambda figure: draw(figure, runs),
        data=name,
        runs=f"means of {len(SEEDS)} seeds",
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


def between_runs(runs: dict[str, list[Run]], apart: paired.Difference) -> str:
    """Whether the lowest losses and the highest accuracy belong to the same way."""

    def end(name: str, value: Callable[[Point], float]) -> float:
        return averaged(runs[name], lambda run: value(run.points[-1]))

    shown, best = by_shown(runs), by_accuracy(runs)
    test = min(runs, key=lambda name: end(name, lambda point: point.test.loss))
    began = (
        f"The lowest training loss, {end(shown, lambda point: point.shown):.2f}, was shown by "
        f"{shown!r}, which has {averaged(runs[shown], lambda run: run.right.mean()):.1%} of the "
        "test images right"
    )
    ended = (
        f"The lowest test loss, {end(test, lambda point: point.test.loss):.2f}, is that of "
        f"{test!r}."
    )
    if shown == best:
        return f"{began}, more than any other. {ended}"
    most = averaged(runs[best], lambda run: run.right.mean())
    return (
        f"{began}. {best!r} has the most, {most:.1%}, "
        f"at a training loss of {end(best, lambda point: point.shown):.2f}: a difference of "
        f"{apart} points on the same test images. {ended}"
    )


def within_a_run(runs: dict[str, list[Run]]) -> str:
    """Where test loss and accuracy diverge most between a run's lowest test loss and its end."""
    every = [(name, run) for name, of_seeds in runs.items() for run in of_seeds]

    def turning(run: Run) -> Point:
        return min(run.points, key=lambda point: point.test.loss)

    def gained(run: Run) -> float:
        return run.points[-1].test.accuracy - turning(run).test.accuracy

    rising = [(name, run) for name, run in every if turning(run) is not run.points[-1]]
    if not rising:
        return "In no run did the test loss rise again."
    with_it = [run for _, run in rising if gained(run) > 0]
    name, run = max(rising, key=lambda pair: gained(pair[1]))
    low, end = turning(run), run.points[-1]
    return (
        f"The test loss rose again towards the end of {len(rising)} of {len(every)} runs, and in "
        f"{len(with_it)} of these the accuracy rose with it. For "
        f"{name!r} the loss went from "
        f"{low.test.loss:.2f} after epoch {low.epoch} to {end.test.loss:.2f} and the accuracy from "
        f"{low.test.accuracy:.1%} to {end.test.accuracy:.1%}."
    )


def cells(of_seeds: list[Run]) -> Sequence[str]:
    """The cells of one way at its end, for the table."""
    values: tuple[Callable[[Run], race.Evaluated], ...] = (
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
