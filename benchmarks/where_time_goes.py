"""Where the time of a training step goes, operation by operation, from TensorFlow's profiler.

    python -m benchmarks.where_time_goes --compute_dtype=bfloat16

One thread for everything, so that the times of operations add up; 4 microbatches of 32. On n cores,
a step takes at best an n-th of the sum.
"""

import argparse
import collections

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import profiles, turns
from benchmarks.peers import counter, step
from towers import devices, networks

import tensorflow as tf  # isort: skip

MICROBATCHES = 4
HEAD = """\
| type | operation | times a step | ms | share |
|---|---|---|---|---|"""
ROWS = 14


def main():
    """Profiles, and prints the operations that take longest."""
    parser = turns.parser(__doc__, rounds=30)
    parser.add_argument("--model", default="cifarnet", choices=list(networks.NETWORKS))
    parser.add_argument("--compute_dtype", default="float32", choices=list(networks.DTYPE_POLICIES))
    options = parser.parse_args()
    devices.use_intra_op_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    totals, counts = profiled(options.model, options.compute_dtype, options.rounds)
    turns.report(HEAD, rows(totals, counts, options), as_row, options.output)


def profiled(
    model: str, compute_dtype: str, steps: int
) -> tuple[collections.Counter, collections.Counter]:
    """Milliseconds and number of calls of a step, by kind of operation; means over `steps`."""
    run, images, labels = step.trainer_and_batch(
        model, compute_dtype, 128, devices.choose(1), MICROBATCHES
    )
    for _ in range(counter.WARM_UP_STEPS):
        run.train_step(images, labels)

    def train():
        for _ in range(steps):
            run.train_step(images, labels)

    totals, counts = collections.Counter(), collections.Counter()
    for operation in profiles.recorded(train)[1]:
        totals[operation.kind] += operation.milliseconds / steps
        counts[operation.kind] += 1 / steps
    return totals, counts


def rows(totals, counts, options: argparse.Namespace) -> list[dict]:
    """The longest kinds of operations, all others in one row, and the sum."""
    longest = totals.most_common(ROWS)
    whole = sum(totals.values())
    others = whole - sum(milliseconds for _, milliseconds in longest)
    count_of_others = sum(counts.values()) - sum(counts[kind] for kind, _ in longest)
    lines = [(kind, counts[kind], milliseconds) for kind, milliseconds in longest]
    lines += [("all others", count_of_others, others), ("sum", sum(counts.values()), whole)]
    return [
        {
            "model": options.model,
            "dtype": options.compute_dtype,
            "operation": kind.removeprefix("_MklNative").removeprefix("_Mkl"),
            "count": round(count),
            "milliseconds": round(milliseconds, 2),
            "share": round(milliseconds / whole, 3),
        }
        | turns.conditions()
        for kind, count, milliseconds in lines
    ]


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['dtype']} | {row['operation']} | {row['count']} | {row['milliseconds']:.1f} | "
        f"{row['share']:.0%} |"
    )


if __name__ == "__main__":
    main()
