"""What microbatches and towers cost: step time on 1, 2 and 4 towers, as ratios in one run.

    python -m benchmarks.step_time
    python -m benchmarks.step_time --model=resnet --compute_dtype=bfloat16 --rounds=3

All sides are built in one process and take turns, several steps at a time, on one fixed batch; what
else the machine does falls on all of them alike. A ratio is the median over rounds of the ratios
within a round.
"""

import json
import statistics
import time

from absl import app, flags

import towers  # before Keras: it silences TensorFlow's notices
from input_pipeline import preprocess
from towers import devices, models

import keras  # isort: skip
import tensorflow as tf  # isort: skip

flags.DEFINE_multi_enum(
    "model", ["cifarnet", "resnet"], ["cifarnet", "resnet"], "Networks; may be repeated."
)
flags.DEFINE_multi_enum(
    "compute_dtype", ["float32", "bfloat16"], ["float32", "bfloat16"], "May be repeated."
)
flags.DEFINE_integer("global_batch_size", 128, "Examples of one step.")
flags.DEFINE_integer("rounds", 7, "How often each side has its turn.")
flags.DEFINE_float("turn_seconds", 2.0, "Length of a turn, about.")
flags.DEFINE_string("output", None, "File of one JSON object per line to add the figures to.")

HEAD = """\
| network | type | towers | microbatches | ms per step | to 1 tower, 1 mb | to 1 tower, 4 mb |
|---|---|---|---|---|---|---|"""
SIDES = ((1, 1), (1, 4), (2, 4), (4, 4))  # (towers, microbatches)


def main(argv):
    """Measures every network in every type, and prints one table."""
    del argv
    devices.choose(max(num_towers for num_towers, _ in SIDES))
    print(HEAD)
    for model in flags.FLAGS.model:
        for compute_dtype in flags.FLAGS.compute_dtype:
            for row in measure(model, compute_dtype, flags.FLAGS.global_batch_size):
                print(
                    f"| {row['model']} | {row['compute_dtype']} | {row['num_towers']} | "
                    f"{row['num_microbatches']} | {row['step_milliseconds']:.1f} | "
                    f"{row['to_one_microbatch']:.2f} | {row['to_one_tower']:.2f} |",
                    flush=True,
                )
                if flags.FLAGS.output:
                    with open(flags.FLAGS.output, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


def measure(model: str, compute_dtype: str, global_batch_size: int) -> list[dict]:
    """Times all sides in turns; one row of figures for each."""
    runs = {side: trainer_of(model, compute_dtype, global_batch_size, *side) for side in SIDES}
    shape = image_shape(model)
    images = tf.random.stateless_normal([global_batch_size, *shape], seed=[0, 0])
    labels = tf.random.stateless_uniform([global_batch_size], [0, 1], 0, 10, tf.int64)
    for run in runs.values():
        warm = [seconds_of_step(run, images, labels) for _ in range(4)]  # the first one traces
    steps = max(1, round(flags.FLAGS.turn_seconds / min(warm)))
    seconds = {side: [] for side in SIDES}
    for _ in range(flags.FLAGS.rounds):
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
            "rounds": flags.FLAGS.rounds,
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
    app.run(main)
