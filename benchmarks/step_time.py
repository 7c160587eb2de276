"""What microbatches and towers cost: step time on 1 to 8 towers, as ratios in one run.

    python -m benchmarks.step_time
    python -m benchmarks.step_time --model=resnet --compute_dtype=bfloat16 --rounds=3

Each side is a process of its own, with the threads that `train.py` would choose; they take turns.
"""

import argparse

from benchmarks import turns
from towers import networks

HEAD = """\
| network | type | towers | microbatches | ms per step | relative to 1 tower, 1 microbatch | \
relative to 1 tower, 8 microbatches |
|---|---|---|---|---|---|---|"""
SIDES = ((1, 1), (1, 4), (1, 8), (2, 8), (3, 8), (4, 8), (8, 8))  # (towers, microbatches)


def main():
    """Measures every network in every type, and prints one table."""
    parser = turns.parser(__doc__, rounds=7)
    parser.add_argument("--model", action="append", choices=list(networks.NETWORKS))
    parser.add_argument("--compute_dtype", action="append", choices=list(networks.DTYPE_POLICIES))
    parser.add_argument("--global_batch_size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        row
        for model in options.model or ["cifarnet", "resnet"]
        for compute_dtype in options.compute_dtype or ["float32", "bfloat16"]
        for row in measure(model, compute_dtype, options)
    )
    turns.report(HEAD, rows, as_row, options.output)


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['model']} | {row['compute_dtype']} | {row['num_towers']} | "
        f"{row['num_microbatches']} | {row['step_milliseconds']:.1f} | "
        f"{row['to_one_microbatch']:.2f} | {row['to_one_tower']:.2f} |"
    )


def measure(model: str, compute_dtype: str, options: argparse.Namespace) -> list[dict]:
    """Times all sides in turns; one row of figures for each."""
    sides = {
        f"{num_towers}-{num_microbatches}": turns.Side(
            (
                "benchmarks.peers.step",
                f"--model={model}",
                f"--compute_dtype={compute_dtype}",
                f"--global_batch_size={options.global_batch_size}",
                f"--num_towers={num_towers}",
                f"--num_microbatches={num_microbatches}",
            ),
            {"seconds": options.seconds},
        )
        for num_towers, num_microbatches in SIDES
    }
    measured = turns.measure(sides, options.rounds)
    rates = {name: found.rates for name, found in measured.items()}
    return [
        {
            "model": model,
            "compute_dtype": compute_dtype,
            "global_batch_size": options.global_batch_size,
            "num_towers": side[0],
            "num_microbatches": side[1],
            "step_milliseconds": round(
                1000 * options.global_batch_size / measured[name].median_rate(), 2
            ),
            # A ratio of times: the other way round than of images per second.
            "to_one_microbatch": turns.median_ratio(rates["1-1"], rates[name]),
            "to_one_tower": turns.median_ratio(rates["1-8"], rates[name]),
            "rounds": options.rounds,
        }
        | turns.conditions()
        for side, name in zip(SIDES, sides, strict=True)
    ]


if __name__ == "__main__":
    main()
