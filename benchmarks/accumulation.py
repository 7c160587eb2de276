"""What gradient accumulation saves: peak memory and time of 16 microbatches in one tower.

    python -m benchmarks.accumulation

Each side is a process of its own; they take turns. Memory is above that of the same program with
microbatches of one image, so it is that of activations and of sums of gradients.
"""

import argparse

from benchmarks import turns
from towers import networks

HEAD = """\
| network | microbatches | images/s | peak memory, MB | to that of one microbatch |
|---|---|---|---|---|"""
MICROBATCHES = 16
SIDES = {  # name: (microbatches, images of each, whether one after the other)
    "of one image": (1, 1, False),
    "1": (1, None, False),
    "16, side by side": (MICROBATCHES, None, False),
    "16, one after the other": (MICROBATCHES, None, True),
}


def main():
    """Measures every network, and prints one table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--microbatch_size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
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
    """Times all sides in turns; a row of figures for each but the first."""
    sides = {
        name: turns.Side(
            (
                "benchmarks.peers.step",
                f"--model={model}",
                f"--num_microbatches={count}",
                f"--global_batch_size={count * (size or options.microbatch_size)}",
                *(["--accumulate_gradients"] if one_by_one else []),
            ),
            {"seconds": options.seconds},
        )
        for name, (count, size, one_by_one) in SIDES.items()
    }
    measured = turns.measure(sides, options.rounds)
    least = measured.pop("of one image").peak_megabytes
    one = measured["1"].peak_megabytes - least
    return [
        {
            "model": model,
            "microbatches": name,
            "microbatch_size": options.microbatch_size,
            "images_per_second": round(found.median_rate()),
            "megabytes": round(found.peak_megabytes - least, 1),
            "to_one_microbatch": round((found.peak_megabytes - least) / one, 2),
            "rounds": options.rounds,
        }
        | turns.conditions()
        for name, found in measured.items()
    ]


if __name__ == "__main__":
    main()
