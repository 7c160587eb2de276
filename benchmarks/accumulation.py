"""What gradient accumulation saves: memory and time of 16 microbatches in one tower.

    python -m benchmarks.accumulation

Memory is the most that TensorFlow's allocator has handed out in a step, above what stays between
steps: activations, and sums of gradients. Each side is a process of its own; for their times they
take turns. The process's resident memory is larger, because pieces are not freed in the order in
which they are needed again (docs/lessons/memory.md).
"""

import argparse
import subprocess
import sys

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import turns
from benchmarks.peers import step
from towers import devices, networks

import tensorflow as tf  # isort: skip

HEAD = """\
| network | microbatches | images/s | memory of a step, MB | to that of one microbatch |
|---|---|---|---|---|"""
MICROBATCHES, WARM_UP_STEPS = 16, 3
SIDES = {  # name: (microbatches, whether one after the other)
    "1": (1, False),
    "16, one for each core": (MICROBATCHES, False),
    "16, one after the other": (MICROBATCHES, True),
}


def main():
    """Measures every network, and prints one table."""
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--microbatch_size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        row for model in options.model or ["cifarnet", "resnet"] for row in measure(model, options)
    )
    turns.report(HEAD, rows, as_row, options.output)


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['model']} | {row['microbatches']} | {row['images_per_second']:,.0f} | "
        f"{row['megabytes']:,.0f} | {row['to_one_microbatch']:.2f} |"
    )


def measure(model: str, options: argparse.Namespace) -> list[dict]:
    """Memory and time of all sides; a row of figures for each."""
    sides = {
        name: turns.Side(
            (
                "benchmarks.peers.step",
                f"--model={model}",
                f"--num_microbatches={count}",
                f"--global_batch_size={count * options.microbatch_size}",
                *(["--accumulate_gradients"] if accumulates else []),
            ),
            {"seconds": options.seconds},
        )
        for name, (count, accumulates) in SIDES.items()
    }
    timed = turns.measure(sides, options.rounds)
    megabytes = {
        name: megabytes_of_a_step(model, options.microbatch_size, *side)
        for name, side in SIDES.items()
    }
    return [
        {
            "model": model,
            "microbatches": name,
            "microbatch_size": options.microbatch_size,
            "images_per_second": round(found.median_rate()),
            "megabytes": round(megabytes[name], 1),
            "to_one_microbatch": round(megabytes[name] / megabytes["1"], 2),
            "rounds": options.rounds,
        }
        | turns.conditions()
        for name, found in timed.items()
    ]


def megabytes_of_a_step(model: str, size: int, count: int, accumulates: bool) -> float:
    """What `print_megabytes` prints, in a process of its own."""
    call = f"accumulation.print_megabytes({model!r}, {size}, {count}, {accumulates})"
    done = subprocess.run(
        [sys.executable, "-c", f"from benchmarks import accumulation; {call}"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def print_megabytes(model: str, size: int, count: int, accumulates: bool) -> None:
    """Prints the peak, within a step, of memory that is free again after it."""
    devices.use_intra_op_threads(1)
    run, images, labels = step.trainer_and_batch(
        model, "float32", count * size, devices.choose(1), count, accumulate_gradients=accumulates
    )

    def make_step() -> None:
        """A step, to its end."""
        run.train_step(images, labels).losses["total"].numpy()

    for _ in range(WARM_UP_STEPS):
        make_step()
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    make_step()
    print((tf.config.experimental.get_memory_info("CPU:0")["peak"] - before) / 1e6)


if __name__ == "__main__":
    main()
