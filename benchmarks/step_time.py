"""What microbatches and towers cost: step time on 1, 2 and 4 towers, as ratios in one run.

    python -m benchmarks.step_time
    python -m benchmarks.step_time --model=resnet --compute_dtype=bfloat16 --rounds=3

All sides are built in one process and take turns, several steps at a time, on one fixed batch; what
else the machine does falls on all of them alike. A ratio is the median over rounds of the ratios
within a round.
"""

import argparse
import statistics
import time
from pathlib import Path

import towers  # before Keras: it silences TensorFlow's notices
from input_pipeline import preprocess
from towers import devices, models, run_folder

import keras  # isort: skip
import tensorflow as tf  # isort: skip

HEAD = """\
| network | type | towers | microbatches | ms per step | to 1 tower, 1 microbatch | \
to 1 tower, 4 microbatches |
|---|---|---|---|---|---|---|"""
SIDES = ((1, 1), (1, 4), (2, 4), (4, 4))  # (towers, microbatches)


def main():
    """Measures every network in every type, and prints one table."""
    options = parsed_options()
    devices.choose(max(num_towers for num_towers, _ in SIDES))
    print(HEAD)
    for model in options.model or ["cifarnet", "resnet"]:
        for compute_dtype in options.compute_dtype or ["float32", "bfloat16"]:
            for row in measure(model, compute_dtype, options):
                print(as_row(row), flush=True)
                if options.output:
                    run_folder.append_line(Path(options.output), row)


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(models.NETWORKS))
    parser.add_argument("--compute_dtype", action="append", choices=list(models.DTYPE_POLICIES))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7, help="how often each side has its turn")
    parser.add_argument("--turn_seconds", type=float, default=2.0, help="length of a turn, about")
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    return parser.parse_args()


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['model']} | {row['compute_dtype']} | {row['num_towers']} | "
        f"{row['num_microbatches']} | {row['step_milliseconds']:.1f} | "
        f"{row['to_one_microbatch']:.2f} | {row['to_one_tower']:.2f} |"
    )


def measure(model: str, compute_dtype: str, options: argparse.Namespace) -> list[dict]:
    """Times all sides in turns; one row of figures for each."""
    global_batch_size = options.global_batch_size
    runs = {side: trainer_of(model, compute_dtype, global_batch_size, *side) for side in SIDES}
    shape = image_shape(model)
    images = tf.random.stateless_normal([global_batch_size, *shape], seed=[0, 0])
    labels = tf.random.stateless_uniform([global_batch_size], [0, 1], 0, 10, tf.int64)
    for run in runs.values():
        warm = [seconds_of_step(run, images, labels) for _ in range(4)]  # the first one traces
    steps = max(1, round(options.turn_seconds / min(warm)))
    seconds = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side, run in runs.items():
            turn = [seconds_of_step(run, images, labels) for _ in range(steps)]
            seconds[side].append(statistics.median(turn))
    return [
        {
            "model": model,
            "compute_dtype": compute_dtype,
            "global_batch_size": global_batch_size,
            "num_towers": side[0],
            "num_microbatches": side[1],
            "step_milliseconds": round(1000 * statistics.median(seconds[side]), 2),
            "to_one_microbatch": round(median_ratio(seconds[side], seconds[1, 1]), 3),
            "to_one_tower": round(median_ratio(seconds[side], seconds[1, 4]), 3),
            "rounds": options.rounds,
            "steps_per_round": steps,
            "tensorflow": tf.__version__,
            "cores": devices.available_cores(),
            "processor": devices.processor(),
        }
        for side in SIDES
    ]


def trainer_of(
    model: str, compute_dtype: str, global_batch_size: int, num_towers: int, num_microbatches: int
) -> towers.Trainer:
    """A trainer with everything a run of `train.py` updates: slots and moving averages too."""
    network = models.NETWORKS[model]
    return towers.Trainer(
        models.build(model, image_shape(model), 10, compute_dtype=compute_dtype),
        keras.optimizers.SGD(0.01, momentum=0.9),
        tower_devices=devices.choose(num_towers),
        global_batch_size=global_batch_size,
        num_microbatches=num_microbatches,
        weight_decay=network.weight_decay,
        weight_filter=network.weight_filter,
        moving_average_decay=0.9999,
    )


def image_shape(model: str) -> tuple[int, int, int]:
    """What CIFAR-10's images are after the network's preprocessing."""
    return preprocess.for_images(models.NETWORKS[model].preprocessing, (32, 32, 3)).output_shape


def seconds_of_step(run: towers.Trainer, images, labels) -> float:
    """The time of one step, up to its result."""
    start = time.perf_counter()
    run.train_step(images, labels).losses["total"].numpy()
    return time.perf_counter() - start


def median_ratio(of: list[float], to: list[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


if __name__ == "__main__":
    main()
