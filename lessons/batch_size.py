"""Images per second and examples needed, against the batch; their quotient is the time."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from laboratory import data, findings, paired, race
from lessons import lesson
from towers import microbatch

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "Why does training not get faster beyond some batch size? Is a larger batch better?"
ACCURACY, AT_MOST = 0.37, 120_000
# Batch to the rates that are tried with the first seed; all seeds use the best of them.
RATES = {
    16: (0.05, 0.1),
    64: (0.1, 0.2),
    256: (0.1, 0.2, 0.4),
    1024: (0.2, 0.4),
    4096: (0.4, 0.8),
}
SEEDS = (0, 1, 2)
TURNS, SECONDS_OF_A_TURN = 5, 0.5
MICROBATCHES, MICROBATCH = 16, 64  # for the noise scale
BATCHES_FOR_NOISE, STEPS_BEFORE_NOISE = 8, 1_500
# A small and a large batch with their rates, trained to the same loss of few training images.
GAP_ENTRIES = (race.Entry(32, 0.05), race.Entry(1024, 0.4))
GAP = {"examples": 4_000, "loss": 0.9, "at_most": 1_000_000}


def run(
    setup: findings.Setup,
    *,
    accuracy=ACCURACY,
    at_most=AT_MOST,
    rates=RATES,
    steps_before_noise=STEPS_BEFORE_NOISE,
    gap=GAP,
    seeds=SEEDS,
    turns=TURNS,
) -> findings.Finding:
    """Races every batch with several rates, times its steps, and measures the gradient's noise."""
    images = data.load(setup)
    examples = raced(rates, images, accuracy, at_most, seeds)
    per_second = images_per_second(rates, images, turns)
    noise = noise_scales(images, steps_before_noise)
    stopped = at_equal_loss(images, seeds, **gap)
    return finding(examples, per_second, noise, stopped, accuracy, images.name)


def raced(
    rates: dict, images: data.Images, accuracy: float, at_most: int, seeds: Sequence[int]
) -> dict:
    """Batch to the examples that each seed needs at the rate that is best with the first one.

    An empty list if no rate reaches the accuracy, and None for a seed that does not.
    """
    entries = [
        race.Entry(batch, rate, seed=seeds[0])
        for batch in sorted(rates, reverse=True)
        for rate in rates[batch]
    ]
    tried = dict(
        zip(entries, race.examples_needed(entries, images, accuracy, at_most), strict=True)
    )
    best = {}
    for entry, needed in tried.items():
        batch = entry.global_batch_size
        if needed and (batch not in best or needed < tried[best[batch]]):
            best[batch] = entry
    more = [entry._replace(seed=seed) for entry in best.values() for seed in seeds[1:]]
    tried |= zip(more, race.examples_needed(more, images, accuracy, at_most), strict=True)
    return {
        batch: [tried[best[batch]._replace(seed=seed)] for seed in seeds] if batch in best else []
        for batch in rates
    }


class Stopped(NamedTuple):
    """A run that was stopped at a training loss.

    examples: seen until then.
    loss: cross entropy of its training images.
    right: whether each test image is right, bool [images].
    """

    examples: int
    loss: float
    right: np.ndarray


def at_equal_loss(
    images: data.Images, seeds: Sequence[int], examples: int, loss: float, at_most: int
) -> dict[int, list[Stopped]]:
    """Batch to one run for each seed, each stopped at the same loss of its training images."""
    images = images.first(examples, len(images.test.images))
    entries = [entry._replace(seed=seed) for entry in GAP_ENTRIES for seed in seeds]
    runs = race.side_by_side(
        [functools.partial(stopped_at, entry, images, loss, at_most) for entry in entries]
    )
    return {
        small.global_batch_size: [
            run for entry, run in zip(entries, runs, strict=True) if entry[:2] == small[:2]
        ]
        for small in GAP_ENTRIES
    }


def stopped_at(entry: race.Entry, images: data.Images, loss: float, at_most: int) -> Stopped:
    """Trains until the training images' cross entropy is at most `loss`; checks once per epoch."""
    batch, count = entry.global_batch_size, len(images.train.images)
    model, seen = race.model(entry), 0
    batches = iter(
        images.training_batches(batch, at_most // batch, seed=entry.seed, distorted=False)
    )
    for _ in range(at_most // count):
        for pair in itertools.islice(batches, max(1, count // batch)):
            model.train_on_batch(*pair)
            seen += batch
        current = race.evaluated(model, images.test_batches(split="train")).loss
        if current <= loss:
            break
    return Stopped(seen, current, race.right(model, images))


def images_per_second(batches: Iterable[int], images: data.Images, turns: int) -> dict[int, float]:
    """Batch size to the speed of a step alone, on one batch in memory: the best of several turns.

    The sizes take turns, so that other load on the machine affects all of them alike.
    """
    steps = {batch: prepared_step(batch, images) for batch in batches}
    rates = [{batch: timed(steps[batch], batch) for batch in steps} for _ in range(turns)]
    return {batch: max(turn[batch] for turn in rates) for batch in steps}


def prepared_step(batch: int, images: data.Images) -> Callable[[], object]:
    """A function that makes a step and waits for it; tracing is already done."""
    model = race.model(race.Entry(batch, 0.01))
    ((pixels, labels),) = images.training_batches(batch, 1, distorted=False)
    step = functools.partial(model.train_on_batch, pixels, labels)
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
    """The noise scale at the start of a run with batches of 64, during the run, and at its end.

    Returns:
      Examples seen to the noise scale, in examples.
    """
    large = MICROBATCHES * MICROBATCH
    model = race.model(race.Entry(MICROBATCH, 0.1))
    one_pass = microbatch.Microbatch(model, training=True, jit_compile=False)
    compute = tf.function(functools.partial(squared_norms, one_pass), autograph=False)
    measured = {}
    for seed, more in ((1, 0), (2, steps // 3), (3, steps - steps // 3)):
        for batch in images.training_batches(MICROBATCH, more, seed=seed, distorted=False):
            model.train_on_batch(*batch)
        pairs = images.training_batches(large, BATCHES_FOR_NOISE, seed=9, distorted=False)
        norms = np.mean([[n.numpy() for n in compute(*pair)] for pair in pairs], axis=0)
        seen = int(model.optimizer.iterations.numpy()) * MICROBATCH
        measured[seen] = noise_scale(*norms, MICROBATCH, large)
    return measured


def squared_norms(one_pass: microbatch.Microbatch, images, labels) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean squared norm of the microbatches' gradients, and the squared norm of their mean."""
    weights = [tf.convert_to_tensor(v.value) for v in one_pass.model.trainable_variables]
    of_microbatches = [
        one_pass.backward(weights, [], tf.constant(0), part, None).gradients
        for part in zip(tf.split(images, MICROBATCHES), tf.split(labels, MICROBATCHES), strict=True)
    ]
    mean = [tf.add_n(parts) / MICROBATCHES for parts in zip(*of_microbatches, strict=True)]
    norms = [tf.linalg.global_norm(gradients) ** 2 for gradients in of_microbatches]
    return tf.reduce_mean(norms), tf.linalg.global_norm(mean) ** 2


def noise_scale(of_small: float, of_large: float, small: int, large: int) -> float:
    """The batch at which a gradient's noise is as large as the gradient, in examples.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1: a gradient over B examples has the
    expected squared norm `|G|**2 + S / B`, so two batch sizes determine `|G|**2` and S; the noise
    scale is `S / |G|**2`.

    Args:
      of_small: mean squared norm of gradients over `small` examples.
      of_large: the same over `large` examples.
      small: examples of a microbatch.
      large: examples of a batch.

    Returns:
      Infinity where the large batch shows no gradient beyond its noise.
    """
    signal = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return float(noise / signal) if signal > 0 else math.inf


def finding(examples: dict, per_second: dict, noise: dict, stopped: dict, accuracy: float, name):
    """The tables and the claim.

    Args:
      examples: batch to the examples that each seed needs, as `raced`.
      per_second: batch to images per second.
      noise: examples seen to the noise scale.
      stopped: small and large batch to their runs, as `at_equal_loss`.
      accuracy: the target.
      name: of the images.
    """
    means = {batch: race.mean_needed(of) for batch, of in examples.items()}
    seconds = {batch: n / per_second[batch] for batch, n in means.items() if n}
    expected = predicted(means, noise)
    rows = [
        [
            f"{batch:,}",
            f"{per_second[batch]:,.0f}",
            f"{n:,.0f} ({min(examples[batch]):,.0f}–{max(examples[batch]):,.0f})"
            if n
            else "not reached",
            f"{expected[batch]:,.0f}" if expected else "",
            f"{n / batch:,.0f}" if n else "",
            f"{seconds[batch]:.1f}" if n else "",
        ]
        for batch, n in means.items()
    ]
    scales = ", then ".join(f"{scale:,.0f}" for scale in noise.values())
    small, large = stopped.values()
    gap = paired.difference([run.right for run in large], [run.right for run in small])
    return findings.Finding(
        head=(
            "batch", "images/s", f"examples to {accuracy:.0%}", "predicted by the noise scale",
            "steps", "seconds",
        ),
        rows=rows,
        more=[gap_table(stopped, gap)],
        answer=answer(examples, per_second),
        claim=(
            f"The noise scale of the gradient was {scales} examples after "
            f"{', '.join(f'{seen:,}' for seen in noise)} examples of a run."
        ),
        numbers={"of_seeds": examples, "noise_scale": noise, "stopped": stopped},
        draw=lambda figure: draw(figure, examples, per_second, seconds, expected),
        data=name,
        runs=f"{len(small)} seeds",
    )  # fmt: skip


def predicted(means: dict, noise: dict) -> dict[int, float]:
    """The examples that each batch should need, from those of the smallest and the noise scale.

    McCandlish et al. 2018, section 2: a batch of B needs `E * (1 + B / noise scale)` examples, with
    E those of the smallest batches. The noise scale is the geometric mean of the measured ones.
    """
    finite = [scale for scale in noise.values() if math.isfinite(scale)]
    smallest = min(means)
    if not finite or means[smallest] is None:
        return {}
    scale = math.exp(np.mean(np.log(finite)))
    least = means[smallest] / (1 + smallest / scale)
    return {batch: least * (1 + batch / scale) for batch in means}


def gap_table(stopped: dict, gap: paired.Difference):
    """The small and the large batch at the same training loss."""
    rows = [
        [
            f"{batch:,}",
            f"{np.mean([run.examples for run in runs]):,.0f}",
            f"{np.mean([run.loss for run in runs]):.2f}",
            f"{np.mean([run.right.mean() for run in runs]):.1%}",
            str(gap) if batch == max(stopped) else "",
        ]
        for batch, runs in stopped.items()
    ]
    head = ("batch", "examples seen", "training loss", "test accuracy", "difference, points")
    return head, rows


def answer(examples: dict, per_second: dict) -> str:
    """In one sentence, for both questions."""
    seconds = {
        batch: [n / per_second[batch] for n in of_seeds]
        for batch, of_seeds in examples.items()
        if of_seeds and None not in of_seeds
    }
    if not seconds:
        return "This run cannot tell: no batch came to the target accuracy."
    best = min(seconds, key=lambda batch: statistics.mean(seconds[batch]))
    close = [b for b in seconds if b == best or min(seconds[b]) <= max(seconds[best])]
    largest = max(examples)
    begins = "Not clearly" if largest in close else "No, not always"
    return (
        f"{begins}: a larger batch processes more images per second, but needs more images for the "
        f"same accuracy; of batches from {min(examples):,} to {largest:,}, "
        f"{' and '.join(f'{batch:,}' for batch in close)} took the least time here."
    )


def draw(figure, examples: dict, per_second: dict, seconds: dict, expected: dict) -> None:
    """Three panels that share the axis of batches; every axis is logarithmic."""
    from matplotlib import ticker  # here: the lesson's numbers need no plots

    panels = figure.subplots(1, 3, sharex=True)
    means = {batch: race.mean_needed(of) for batch, of in examples.items()}
    reached = {batch: n for batch, n in means.items() if n}
    for axes, title, values, colour in zip(
        panels,
        ("images/s", "examples needed", "seconds: their quotient"),
        (per_second, reached, seconds),
        ("#0072b2", "#d55e00", "black"),
        strict=True,
    ):
        axes.loglog(values.keys(), values.values(), "o-", color=colour)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(per_second), [f"{batch:,}" for batch in per_second], rotation=45)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.minorticks_off()
        axes.set(title=title, xlabel="batch")
    for batch in reached:
        panels[1].plot([batch] * len(examples[batch]), examples[batch], "_", color="#d55e00")
    if expected:
        panels[1].plot(expected.keys(), expected.values(), "--", color="#555555")
        middle = list(expected)[len(expected) // 2]
        panels[1].annotate(
            "predicted", (middle, expected[middle]), (10, -12), textcoords="offset points",
            color="#555555",
        )  # fmt: skip


LESSON = lesson.Lesson("batch_size", QUESTION, run)
