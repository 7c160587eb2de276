"""How cost grows: with the batch, with towers, with the network; in time and in memory.

    python -m benchmarks.growth

The bare step on one batch in memory, each point a process of its own; the points of a series take
turns. Memory is the process's peak of resident memory, TensorFlow itself included.
"""

import argparse

from benchmarks import turns

HEAD = """\
| series | point | ms per step | images/s | peak memory, MB |
|---|---|---|---|---|"""
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048)
TOWERS = (1, 2, 4, 8)
FILTERS = (16, 32, 64, 128, 256)

# Name of a series, to the arguments of each of its points.
SERIES = {
    "batch, float32": {str(n): (f"--global_batch_size={n}",) for n in BATCHES},
    "batch, bfloat16": {
        str(n): (f"--global_batch_size={n}", "--compute_dtype=bfloat16") for n in BATCHES
    },
    "batch, evaluation": {str(n): (f"--global_batch_size={n}", "--evaluate") for n in BATCHES},
    "towers, 8 microbatches of 16": {
        str(n): (f"--num_towers={n}", "--num_microbatches=8") for n in TOWERS
    },
    "filters": {str(n): (f"--filters={n}",) for n in FILTERS},
}


def main():
    """Measures one series after the other, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument(
        "--series",
        action="append",
        choices=list(SERIES),
        metavar="NAME",
        help=f"{', '.join(SERIES)}; default: all",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    rows = (row for series in options.series or SERIES for row in measure(series, options))
    turns.report(HEAD, rows, as_row, options.output)


def measure(series: str, options: argparse.Namespace) -> list[dict]:
    """One object for each point of a series."""
    sides = {
        point: turns.Side(
            ("benchmarks.peers.step", "--num_microbatches=4", *arguments),
            {"seconds": options.seconds},
        )
        for point, arguments in SERIES[series].items()
    }
    return [
        {
            "series": series,
            "point": point,
            "step_milliseconds": round(1000 * batch_size(series, point) / found.median_rate(), 2),
            "images_per_second": round(found.median_rate()),
            "peak_megabytes": found.peak_megabytes and round(found.peak_megabytes),
            "rounds": options.rounds,
        }
        | turns.conditions()
        for point, found in turns.measure(sides, options.rounds).items()
    ]


def batch_size(series: str, point: str) -> int:
    """The global batch of a point."""
    return int(point) if series.startswith("batch") else 128


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['series']} | {row['point']} | {row['step_milliseconds']:.1f} | "
        f"{row['images_per_second']:,} | {row['peak_megabytes']:,} |"
    )


if __name__ == "__main__":
    main()
