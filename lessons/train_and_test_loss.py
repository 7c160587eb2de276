"""Training loss with and without distortions and weight decay, beside test loss and accuracy."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from laboratory import data, findings, race
from lessons import lesson
from towers import evaluation, losses
from towers.support import tally

import numpy as np  # isort: skip

QUESTION = "Should the lower loss go with the higher accuracy?"
TRAINING_EXAMPLES, TEST_EXAMPLES, EPOCHS = 8_000, 5_000, 20
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


def run(setup: findings.Setup) -> findings.Finding:
    """Trains four ways on the same images, as many side by side as there are cores."""
    examples = IN_SHORT["examples"] if setup.short else TRAINING_EXAMPLES
    epochs = IN_SHORT["epochs"] if setup.short else EPOCHS
    between = IN_SHORT["between_evaluations"] if setup.short else EPOCHS_BETWEEN_EVALUATIONS
    images = data.load(setup).first(examples, TEST_EXAMPLES)
    looks = range(between, epochs + 1, between)
    found = race.side_by_side(
        [functools.partial(train, images, looks, *how) for how in RUNS.values()]
    )
    runs = dict(zip(RUNS, found, strict=True))
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


def seen(of: tally.Evaluation) -> Seen:
    """Its two figures."""
    return Seen(of.loss, of.accuracy)


def finding(runs: dict[str, Run], name: str) -> findings.Finding:
    """The table and the claim."""
    return findings.Finding(
        head=(
            "trained with", "loss shown", "training images: cross entropy", "accuracy",
            "test images: cross entropy", "accuracy", "averaged weights: cross entropy", "accuracy",
        ),
        rows=[[name, *cells(run)] for name, run in runs.items()],
        claim=f"{between_runs(runs)} {within_a_run(runs)}",
        numbers={"runs": runs},
        draw=lambda figure: draw(figure, runs),
        data=name,
    )  # fmt: skip


def between_runs(runs: dict[str, Run]) -> str:
    """Whether the lowest losses and the highest accuracy are of the same run."""
    ends = {name: run.points[-1] for name, run in runs.items()}
    shown = min(ends, key=lambda name: ends[name].shown)
    test = min(ends, key=lambda name: ends[name].test.loss)
    best = max(ends, key=lambda name: ends[name].test.accuracy)
    return (
        f"{'The training loss ranks runs here' if shown == best else 'Not the training loss'}: the "
        f"lowest, {ends[shown].shown:.2f}, was that of {shown!r}, with "
        f"{ends[shown].test.accuracy:.1%} of the test images right, and the highest accuracy, "
        f"{ends[best].test.accuracy:.1%}, that of {best!r}, at a training loss of "
        f"{ends[best].shown:.2f}. The lowest test loss, {ends[test].test.loss:.2f}, was "
        f"{'that of the same run' if test == best else f'that of {test!r}'}."
    )


def within_a_run(runs: dict[str, Run]) -> str:
    """Where test loss and accuracy part most between a run's lowest test loss and its end."""

    def turning(name: str) -> Point:
        return min(runs[name].points, key=lambda point: point.test.loss)

    def gained(name: str) -> float:
        return runs[name].points[-1].test.accuracy - turning(name).test.accuracy

    rising = [name for name, run in runs.items() if turning(name) is not run.points[-1]]
    if not rising:
        return "In no run did the test loss rise again."
    name = max(rising, key=gained)
    low, end = turning(name), runs[name].points[-1]
    how = "and so did" if gained(name) > 0 else "and down went"
    return (
        f"Within a run they may part as well: that of {name!r} rose from {low.test.loss:.2f} at "
        f"epoch {low.epoch} to {end.test.loss:.2f}, {how} the accuracy, from "
        f"{low.test.accuracy:.1%} to {end.test.accuracy:.1%}."
    )


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
