"""Images per second and examples needed against the batch; their quotient is the time."""

import functools
import math
import time
from collections.abc import Callable, Iterable

from laboratory import data, findings, race
from lessons import lesson
from towers import losses, tower
from towers.support import objective

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "Why does training not get faster beyond some batch size? Is a larger batch better?"
ACCURACY, AT_MOST = 0.37, 120_000
# Batch to the rates that are tried; the best one counts.
RATES = {
    16: (0.05, 0.1),
    64: (0.1, 0.2),
    256: (0.1, 0.2, 0.4),
    1024: (0.2, 0.4),
    4096: (0.4, 0.8),
}
IN_SHORT = {
    "accuracy": 0.50,
    "at_most": 40_000,
    "rates": {32: (0.1,), 128: (0.2,), 1024: (0.4,)},
    "steps_before_noise": 500,
}
TURNS, SECONDS_OF_A_TURN = 5, 0.5
MICROBATCHES, MICROBATCH = 16, 64  # for the noise scale
BATCHES_FOR_NOISE, STEPS_BEFORE_NOISE = 8, 1_500


def run(setup: findings.Setup) -> findings.Finding:
    """Races every batch with several rates, times its steps, and measures the gradient's noise."""
    images = data.load(setup)
    rates = IN_SHORT["rates"] if setup.short else RATES
    accuracy = IN_SHORT["accuracy"] if setup.short else ACCURACY
    at_most = IN_SHORT["at_most"] if setup.short else AT_MOST
    entries = [
        race.Entry(batch, rate) for batch in sorted(rates, reverse=True) for rate in rates[batch]
    ]
    needed = race.examples_needed(entries, images, accuracy, at_most)
    examples = {
        batch: min(
            (n for entry, n in zip(entries, needed, strict=True) if n and entry[0] == batch),
            default=None,
        )
        for batch in rates
    }
    per_second = images_per_second(rates, images)
    steps = IN_SHORT["steps_before_noise"] if setup.short else STEPS_BEFORE_NOISE
    noise = noise_scales(images, steps)
    return finding(examples, per_second, noise, accuracy, images.name)


def images_per_second(batches: Iterable[int], images: data.Images) -> dict[int, float]:
    """Of the bare step on one batch in memory, by its size: the best of several turns.

    The sizes take turns, so that what else the machine does falls on all of them alike.
    """
    steps = {batch: prepared_step(batch, images) for batch in batches}
    turns = [{batch: timed(steps[batch], batch) for batch in steps} for _ in range(TURNS)]
    return {batch: max(turn[batch] for turn in turns) for batch in steps}


def prepared_step(batch: int, images: data.Images) -> Callable[[], object]:
    """Makes a step and waits for it; the first, which traces, has been made."""
    trainer = race.trainer(race.Entry(batch, 0.01), len(images.train.images))
    ((pixels, labels),) = images.training_batches(batch, 1, distorted=False)

    def step():
        return trainer.train_step(pixels, labels).correct.numpy()

    for _ in range(3):
        step()
    return step


def timed(step: Callable[[], object], batch: int) -> float:
    """Images per second of a turn."""
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS_OF_A_TURN:
        step()
        steps += 1
    return steps * batch / (time.perf_counter() - began)


def noise_scales(images: data.Images, steps: int) -> dict[int, float]:
    """The noise scale at the start of a run of batches of 64, on the way, and at its end.

    Returns:
      Examples seen to the noise scale, in examples.
    """
    batch = MICROBATCHES * MICROBATCH
    trainer = race.trainer(race.Entry(MICROBATCH, 0.1), len(images.train.images))
    program = tower.TowerProgram(
        trainer.state.model, objective.Objective(losses.cross_entropy), {}, 0.0, jit_compile=False
    )
    compute = tf.function(functools.partial(squared_norms, program), autograph=False)
    measured = {}
    for seed, more in ((1, 0), (2, steps // 3), (3, steps - steps // 3)):
        trainer.fit(images.training_batches(MICROBATCH, more, seed=seed, distorted=False))
        pairs = images.training_batches(batch, BATCHES_FOR_NOISE, seed=9, distorted=False)
        norms = np.mean([[n.numpy() for n in compute(*pair)] for pair in pairs], axis=0)
        measured[int(trainer.state.examples_seen)] = noise_scale(*norms, MICROBATCH, batch)
    return measured


def squared_norms(program: tower.TowerProgram, images, labels) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean squared norm of the microbatches' gradients, and the squared norm of their mean."""
    model = program.model
    weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    state = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
    draw = tf.constant(0, tf.int64)
    of_microbatches = [
        tower.compute(program, weights, [state], *part, None, draw, None).sums[0, 1]
        for part in zip(tf.split(images, MICROBATCHES), tf.split(labels, MICROBATCHES), strict=True)
    ]
    mean = [tf.add_n(parts) / MICROBATCHES for parts in zip(*of_microbatches, strict=True)]
    norms = [tf.linalg.global_norm(gradients) ** 2 for gradients in of_microbatches]
    return tf.reduce_mean(norms), tf.linalg.global_norm(mean) ** 2


def noise_scale(of_small: float, of_large: float, small: int, large: int) -> float:
    """The batch at which a gradient's noise is as large as the gradient, in examples.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1: a gradient over B examples has the
    expected squared norm `|G|**2 + S / B`, so two sizes of batch tell `|G|**2` and S; it is
    `S / |G|**2`.

    Args:
      of_small: mean squared norm of gradients over `small` examples.
      of_large: the same over `large` examples.
      small: examples of a microbatch.
      large: examples of a batch.

    Returns:
      Infinity where the large batch shows no gradient beside its noise.
    """
    signal = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return float(noise / signal) if signal > 0 else math.inf


def finding(examples: dict, per_second: dict, noise: dict, accuracy: float, name: str):
    """The table and the claim."""
    seconds = {batch: n / per_second[batch] for batch, n in examples.items() if n}
    rows = [
        [
            f"{batch:,}",
            f"{per_second[batch]:,.0f}",
            f"{n:,.0f}" if n else "not reached",
            f"{n / batch:,.0f}" if n else "",
            f"{seconds[batch]:.1f}" if n else "",
        ]
        for batch, n in examples.items()
    ]
    return findings.Finding(
        head=("batch", "images/s", f"examples to {accuracy:.0%}", "steps", "seconds"),
        rows=rows,
        claim=claim(examples, per_second, seconds, noise, accuracy),
        numbers={
            "examples": examples,
            "images_per_second": per_second,
            "noise_scale": noise,
            "seconds": seconds,
        },
        draw=lambda figure: draw(figure, examples, per_second, seconds, noise),
        data=name,
    )


def claim(examples: dict, per_second: dict, seconds: dict, noise: dict, accuracy: float) -> str:
    """What the numbers say."""
    fastest, smallest = max(per_second, key=per_second.get), min(per_second)
    scales = ", then ".join(f"{scale:,.0f}" for scale in noise.values())
    race = f"No batch came to {accuracy:.0%}."
    if seconds:
        fewest = min(seconds, key=examples.get)
        race = (
            f"The fewest examples to {accuracy:.0%} were {examples[fewest]:,.0f}, with batches of "
            f"{fewest:,}. Examples divided by images/s are the time, which was lowest at "
            f"{min(seconds, key=seconds.get):,}."
        )
    return (
        f"Most images/s came with batches of {fastest:,}: "
        f"{per_second[fastest] / per_second[smallest]:.1f} times as many as with {smallest}. "
        f"{race} The noise scale of the gradient was {scales} examples after "
        f"{', '.join(f'{seen:,}' for seen in noise)} examples of a run."
    )


def draw(figure, examples: dict, per_second: dict, seconds: dict, noise: dict) -> None:
    """Three panels that share the axis of batches."""
    panels = figure.subplots(1, 3, sharex=True)
    reached = {batch: n for batch, n in examples.items() if n}
    for axes, title, values, colour in zip(
        panels,
        ("images/s", "examples needed", "seconds: their quotient"),
        (per_second, reached, seconds),
        ("#1f6fb4", "#d9731a", "black"),
        strict=True,
    ):
        axes.plot(values.keys(), values.values(), "o-", color=colour)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(per_second), [str(batch) for batch in per_second])
        axes.minorticks_off()
        axes.set(title=title, xlabel="batch", ylim=(0, None))
        axes.title.set(fontsize=10)
    finite = [scale for scale in noise.values() if math.isfinite(scale)]
    if finite:
        grey = {"color": "#9a9a9a", "alpha": 0.3, "linewidth": 0}
        panels[1].axvspan(min(finite), max(finite), label="noise scale", **grey)
        panels[1].legend(frameon=False, loc="upper left", fontsize=9)


LESSON = lesson.Lesson("batch_size", QUESTION, run)
