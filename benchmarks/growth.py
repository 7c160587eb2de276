"""How cost grows: with the batch, the towers, the network, the data set; in time and in memory.

    python -m benchmarks.growth
    python -m benchmarks.growth --series=workers --series="images in the set"

`cifarnet`'s bare step on one batch in memory, or for `images in the set` on batches that are made
of so many; each point is a process of its own, and the points of a series take turns. Memory is the
process's peak of resident memory, TensorFlow itself included; of workers, the chief's. All points
of a series are in memory at once: `parameters` needs 16 GB.

The last line of a series is its exponent e, of time ~ x ** e: the slope of the straight line that
fits the logarithms best, the median over rounds and the smallest and largest.
"""

import argparse
import statistics
from collections.abc import Iterator

import numpy as np

from benchmarks import turns

HEAD = """\
| series | point | ms per step | images/s | peak memory, MB |
|---|---|---|---|---|"""
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048)
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
TOWERS = (1, 2, 4, 8)
WORKERS = (1, 2, 4)
FILTERS = (16, 32, 64, 128, 256)
# Weights of the network, to the units of its first dense layer that make so many.
PARAMETERS = {"1M": 357, "3M": 1_158, "10M": 3_961, "30M": 11_971, "100M": 40_004, "300M": 120_100}
IMAGES = (1_000, 10_000, 100_000, 1_000_000)
FEW = ("--global_batch_size=8", "--num_microbatches=2")  # little arithmetic beside the update

# Name of a series, to the arguments of each of its points.
SERIES = {
    "batch, float32": {str(n): (f"--global_batch_size={n}",) for n in BATCHES},
    "batch, bfloat16": {
        str(n): (f"--global_batch_size={n}", "--compute_dtype=bfloat16") for n in BATCHES
    },
    "batch, evaluation": {str(n): (f"--global_batch_size={n}", "--evaluate") for n in BATCHES},
    "microbatches": {str(n): (f"--num_microbatches={n}",) for n in MICROBATCHES},
    "towers, 8 microbatches of 16": {
        str(n): (f"--num_towers={n}", "--num_microbatches=8") for n in TOWERS
    },
    "workers, 8 microbatches of 16": {
        str(n): (f"--num_workers={n}", "--num_microbatches=8") for n in WORKERS
    },
    "filters": {str(n): (f"--filters={n}",) for n in FILTERS},
    "parameters, batch 8": {
        name: (f"--hidden_units={units}", *FEW) for name, units in PARAMETERS.items()
    },
    "images in the set": {str(n): (f"--images={n}",) for n in IMAGES},
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


def measure(series: str, options: argparse.Namespace) -> Iterator[dict]:
    """One object for each point of a series, and one for its exponent."""
    sides = {
        point: turns.Side(
            ("benchmarks.peers.step", "--num_microbatches=4", *arguments),
            {"seconds": options.seconds},
        )
        for point, arguments in SERIES[series].items()
    }
    measured = turns.measure(sides, options.rounds)
    of_all = {"rounds": options.rounds} | turns.conditions()
    for point, found in measured.items():
        yield {
            "series": series,
            "point": point,
            "size": size(point),
            "step_milliseconds": round(1000 * batch_size(series, point) / found.median_rate(), 2),
            "images_per_second": round(found.median_rate()),
            "peak_megabytes": found.peak_megabytes and round(found.peak_megabytes),
        } | of_all
    seconds = {
        size(point): [batch_size(series, point) / rate for rate in found.rates]
        for point, found in measured.items()
    }
    if len(seconds) > 1:
        yield {"series": series} | exponents(seconds) | of_all


def exponents(seconds: dict[int, list[float]]) -> dict:
    """The exponent of time over size: the median over rounds, the smallest and the largest."""
    sizes = np.log(list(seconds))
    found = [
        float(np.polyfit(sizes, np.log(of_round), deg=1)[0])
        for of_round in zip(*seconds.values(), strict=True)
    ]
    return {
        "exponent": round(statistics.median(found), 3),
        "least_and_largest": [round(min(found), 3), round(max(found), 3)],
    }


def size(point: str) -> int:
    """The number that a point stands for."""
    return int(point.replace("M", "000000"))


def batch_size(series: str, point: str) -> int:
    """The global batch of a point."""
    if series.startswith("batch"):
        return int(point)
    return 8 if series.startswith("parameters") else 128


def as_row(row: dict) -> str:
    """One row of the table."""
    if "exponent" in row:
        least, largest = row["least_and_largest"]
        exponent = f"time ~ x^{row['exponent']:.2f} ({least:.2f} to {largest:.2f})"
        return f"| {row['series']} | {exponent} | | | |"
    return (
        f"| {row['series']} | {row['point']} | {row['step_milliseconds']:.1f} | "
        f"{row['images_per_second']:,} | {row['peak_megabytes']:,} |"
    )


if __name__ == "__main__":
    main()
