"""Training loss with and without distortions and weight decay, beside test loss and accuracy."""

import concurrent.futures
from collections.abc import Sequence
from typing import NamedTuple

from lessons import data, lesson, race
from towers import devices, evaluation, losses

import numpy as np  # isort: skip

QUESTION = "Should the lower loss go with the higher accuracy?"
TRAINING_EXAMPLES, TEST_EXAMPLES, EPOCHS = 8_000, 5_000, 20
BATCH, RATE, WEIGHT_DECAY, MOVING_AVERAGE_DECAY = 64, 0.05, 0.004, 0.999
EPOCHS_BETWEEN_EVALUATIONS = 2
# Name to (distorted images, coefficient of weight decay).
RUNS = {
    "plain": (False, 0.0),
    "weight decay": (False, WEIGHT_DECAY),
    "distortions": (True, 0.0),
    "both": (True, WEIGHT_DECAY),
}


class Seen(NamedTuple):
    """What an evaluation says: the mean cross entropy, and the share of examples that is right."""

    loss: float
    accuracy: float


class Point(NamedTuple):
    """What is known of a run after some epochs.

    shown: mean total loss of the last epoch's steps, as a training shows it.
    test: of the test images.
    averaged: of the test images, with the moving averages of the weights.
    """

    epoch: int
    shown: float
    test: Seen
    averaged: Seen


class Run(NamedTuple):
    """A run's points, and at its end its training images without distortions."""

    points: list[Point]
    train: Seen


def run(setup: lesson.Setup) -> lesson.Finding:
    """Trains four ways on the same images, as many side by side as there are cores."""
    images = data.load(setup).first(500 if setup.short else TRAINING_EXAMPLES, TEST_EXAMPLES)
    epochs, between = (50, 10) if setup.short else (EPOCHS, EPOCHS_BETWEEN_EVALUATIONS)
    with concurrent.futures.ThreadPoolExecutor(devices.available_cores()) as pool:
        running = {
            name: pool.submit(train, images, range(between, epochs + 1, between), *how)
            for name, how in RUNS.items()
        }
        runs = {name: future.result() for name, future in running.items()}
    return finding(runs, f"the first {len(images.train.images):,} training images of {images.name}")


def train(images: data.Images, epochs: Sequence[int], distorted: bool, weight_decay: float) -> Run:
    """One run, looked at after each of `epochs`."""
    count = len(images.train.images)
    trainer = race.trainer(
        race.Entry(BATCH, RATE),
        count,
        weight_decay=weight_decay,
        moving_average_decay=MOVING_AVERAGE_DECAY,
    )
    model = trainer.state.model
    of_last_weights = evaluation.Evaluator(
        model, model.trainable_variables, losses.cross_entropy, trainer.tower_devices
    )
    test = images.test_batches()
    batches = iter(images.training_batches(BATCH, epochs[-1] * count // BATCH, distorted=distorted))
    points = []
    for epoch in epochs:
        history = trainer.fit(batches, epoch * count // BATCH - int(trainer.state.step))
        shown = float(np.mean(history[-count // BATCH :]))
        points.append(
            Point(epoch, shown, seen(of_last_weights(test)), seen(trainer.evaluate(test)))
        )
    return Run(points, seen(of_last_weights(images.test_batches(split="train"))))


def seen(of: evaluation.Evaluation) -> Seen:
    """Its two figures."""
    return Seen(of.loss, of.accuracy)


def finding(runs: dict[str, Run], name: str) -> lesson.Finding:
    """The table and the claim."""
    ends = {name: run.points[-1] for name, run in runs.items()}
    lowest = min(ends, key=lambda name: ends[name].shown)
    best = max(ends, key=lambda name: ends[name].test.accuracy)
    plain = runs["plain"].points
    turning, end = min(plain, key=lambda point: point.test.loss), plain[-1]
    return lesson.Finding(
        head=(
            "trained with", "loss shown", "training images: cross entropy", "accuracy",
            "test images: cross entropy", "accuracy", "averaged weights: cross entropy", "accuracy",
        ),
        rows=[[name, *cells(run)] for name, run in runs.items()],
        claim=(
            f"No. The lowest training loss, {ends[lowest].shown:.2f}, was that of {lowest!r}, with "
            f"{ends[lowest].test.accuracy:.1%} of the test images right; the highest accuracy, "
            f"{ends[best].test.accuracy:.1%}, was that of {best!r}, at a training loss of "
            f"{ends[best].shown:.2f}. Nor do the two agree within one run: 'plain' had its lowest "
            f"test loss, {turning.test.loss:.2f}, at epoch {turning.epoch} with "
            f"{turning.test.accuracy:.1%}, and ended with {end.test.loss:.2f} and "
            f"{end.test.accuracy:.1%}."
        ),
        numbers={"runs": runs},
        draw=lambda figure: draw(figure, runs),
        data=name,
    )  # fmt: skip


def cells(run: Run) -> Sequence[str]:
    """A run's end, for the table."""
    end = run.points[-1]
    pairs = [(f"{s.loss:.2f}", f"{s.accuracy:.1%}") for s in (run.train, end.test, end.averaged)]
    return [f"{end.shown:.2f}", *(cell for pair in pairs for cell in pair)]


def draw(figure, runs: dict[str, Run]) -> None:
    """Loss shown, test loss and test accuracy against epochs."""
    shown, test, accuracy = figure.subplots(1, 3)
    for name, (points, _) in runs.items():
        epochs = [point.epoch for point in points]
        shown.plot(epochs, [point.shown for point in points], label=name)
        test.plot(epochs, [point.test.loss for point in points])
        accuracy.plot(epochs, [100 * point.test.accuracy for point in points])
    for axes, title in (
        (shown, "loss shown in training"),
        (test, "cross entropy of the test images"),
        (accuracy, "accuracy on them, %"),
    ):
        axes.set(title=title, xlabel="epoch")
        axes.title.set(fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(runs), frameon=False, fontsize=9)


LESSON = lesson.Lesson("train_and_test_loss", QUESTION, run)
