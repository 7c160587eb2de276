"""`--time_microbatches`: which number of microbatches is fastest for a network, on this machine."""

import dataclasses
import functools
import statistics

from input_pipeline import datasets, images, preprocess
from towers.runs import microbatch_times
from towers_cli import build, resolve, settings

NUMBERS = (2, 4, 8, 16, 32)
_ROUNDS, _SECONDS = 5, 1.0


def show(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    training: datasets.Images,
    prepared: preprocess.Preprocessing,
    parameter_device: str | None,
) -> int:
    """Times steps on the first batch, prints a table and what follows from it; returns 0.

    Args:
      chosen: resolved; with one worker.
      tower_devices: one per tower.
      training: the images.
      prepared: their preprocessing.
      parameter_device: from `build.parameter_device`.
    """
    usual = chosen.num_microbatches
    numbers = sorted({n for n in NUMBERS if _fits(n, chosen)} | {usual})
    learning_rate = resolve.learning_rate(chosen, training.num_examples)

    def make_trainer(number):
        model = build.network_to_train(chosen, prepared, training, parameter_device)
        to_adapt_to = functools.partial(build.images_to_adapt_to, training, prepared)
        of_number = dataclasses.replace(chosen, num_microbatches=number)
        return build.build_trainer(
            of_number, tower_devices, model, learning_rate, to_adapt_to, device=parameter_device
        )

    source = images.training(training, prepared, chosen.seed)
    batch, labels = next(iter(source.batches(0, 1, global_batch_size=chosen.global_batch_size)))
    print(
        f"Steps of {chosen.global_batch_size} images on {', '.join(tower_devices)} with "
        f"--intra_op_threads={chosen.intra_op_threads}. The numbers take turns of {_SECONDS:g} "
        f"second, {_ROUNDS} each.",
        flush=True,
    )
    times = microbatch_times.time_microbatches(
        make_trainer, batch, labels, numbers, rounds=_ROUNDS, seconds=_SECONDS
    )
    print("\n".join([*_table(times, usual), _advice(times, usual)]))
    return 0


def _fits(number: int, chosen: settings.TrainSettings) -> bool:
    size, rest = divmod(chosen.global_batch_size, number)
    are_pairs = not (chosen.mixup_alpha or chosen.cutmix_alpha) or size % 2 == 0
    return size > 0 and rest == 0 and are_pairs and number >= chosen.num_towers


def _table(times: dict[int, list[float]], usual: int) -> list[str]:
    lines = ["microbatches   ms per step (median, least to most)"]
    for number, of_rounds in times.items():
        least, middle, most = (1000 * f(of_rounds) for f in (min, statistics.median, max))
        mark = "   as the run would have it" if number == usual else ""
        lines.append(f"{number:>12}   {middle:.1f} ({least:.1f} to {most:.1f}){mark}")
    return lines


def _advice(times: dict[int, list[float]], usual: int) -> str:
    found = microbatch_times.fastest(times, usual)
    if found is None:
        return f"No number was clearly faster than {usual}."
    number, ratio = found
    return (
        f"--num_microbatches={number} was {ratio:.2f} times as fast as {usual}, and faster in "
        f"every turn. A new run can have it, on at most {number} towers; its bits are not those of "
        f"a run with {usual}."
    )
