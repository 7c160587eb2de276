"""`--time_microbatches`: which number of microbatches is fastest for a network, on this machine."""

import dataclasses
import functools
import statistics

from input_pipeline import datasets, images, preprocess
from towers.runs import microbatch_times, run_errors
from towers_cli import build, own_model, settings

_ROUNDS, _SECONDS = 5, 1.0


def show(
    chosen: settings.TrainSettings,
    tower_devices: tuple[str, ...],
    training: datasets.Images,
    prepared: preprocess.Preprocessing,
    parameter_device: str | None,
) -> int:
    """Times steps on the first batch, prints a table and what follows from it; returns 0.

    The networks have their initial weights and a learning rate of 0, with which they stay finite;
    times depend on neither.

    Args:
      chosen: resolved; with one worker.
      tower_devices: one per tower.
      training: the images.
      prepared: their preprocessing.
      parameter_device: from `build.parameter_device`.

    Raises:
      SettingsError: no other number fits; or a fault in a network of the user's.
      TrainingError: there is not enough memory.
    """
    usual = chosen.num_microbatches
    others = [
        number for number in microbatch_times.NUMBERS if number != usual and _fits(number, chosen)
    ]
    if not others:
        raise settings.SettingsError(
            f"--time_microbatches: there is nothing to compare {usual} with: no other number of "
            f"{', '.join(map(str, microbatch_times.NUMBERS))} fits --global_batch_size="
            f"{chosen.global_batch_size} and {len(tower_devices)} tower(s)"
        )
    to_adapt_to = functools.cache(functools.partial(build.images_to_adapt_to, training, prepared))

    def make_trainer(number):
        model = build.network_to_train(chosen, prepared, training, parameter_device)
        return build.build_trainer(
            dataclasses.replace(chosen, num_microbatches=number), tower_devices, model,
            lambda step: 0.0, to_adapt_to, device=parameter_device,
        )  # fmt: skip

    source = images.training(training, prepared, chosen.seed)
    batch, labels = next(iter(source.batches(0, 1, global_batch_size=chosen.global_batch_size)))
    print(
        f"Steps of {chosen.global_batch_size} images on {', '.join(tower_devices)} with "
        f"--intra_op_threads={chosen.intra_op_threads}. The numbers take turns of {_SECONDS:g} "
        f"second, {_ROUNDS} each.",
        flush=True,
    )
    with run_errors.enough_memory(), own_model.faults_in_training(chosen.model):
        times = microbatch_times.time_microbatches(
            make_trainer, batch, labels, sorted([usual, *others]), rounds=_ROUNDS, seconds=_SECONDS
        )
    print("\n".join([*_table(times, usual), _advice(times, chosen)]))
    return 0


def _fits(number: int, chosen: settings.TrainSettings) -> bool:
    size, rest = divmod(chosen.global_batch_size, number)
    are_pairs = not (chosen.mixup_alpha or chosen.cutmix_alpha) or size % 2 == 0
    return rest == 0 and are_pairs and number >= chosen.num_towers


def _table(times: dict[int, list[float]], usual: int) -> list[str]:
    lines = ["microbatches   ms per step (median, least to most)"]
    for number, of_rounds in times.items():
        least, middle, most = (1000 * f(of_rounds) for f in (min, statistics.median, max))
        mark = "   as the run would have it" if number == usual else ""
        lines.append(f"{number:>12}   {middle:.1f} ({least:.1f} to {most:.1f}){mark}")
    return lines


def _advice(times: dict[int, list[float]], chosen: settings.TrainSettings) -> str:
    usual = chosen.num_microbatches
    found = microbatch_times.fastest_microbatches(times, usual)
    if found is None:
        return f"No number was faster than {usual} in every turn."
    number, ratio = found
    return (
        f"{number} was {ratio:.2f} times as fast as {usual}, and faster in every turn. A new run "
        f"can have --num_microbatches={number} --intra_op_threads={chosen.intra_op_threads}, on at "
        f"most {number} towers; its bits are not those of a run with {usual}."
    )
