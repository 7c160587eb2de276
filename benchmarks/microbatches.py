"""What the number of microbatches costs on every kind of network.

    python -m benchmarks.microbatches
    python -m benchmarks.microbatches --task=lstm --compute_dtype=bfloat16

The bare step of one tower on one batch in memory, with the threads that `train.py` takes by
default. The numbers of a row take turns, each a process of its own; a ratio is the median over
rounds of the ratios within a round, to the default number.
"""

from benchmarks import networks, turns
from benchmarks.peers import task_sizes
from towers.support import shares

NUMBERS = (2, 4, shares.MOST_BY_DEFAULT, 16)
HEAD = """\
| network | type | microbatches | images/s | relative to the default | peak memory, MB |
|---|---|---|---|---|---|"""


def main():
    """Measures every network, and prints a table."""
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES))
    parser.add_argument("--compute_dtype", choices=networks.DTYPES, default="float32")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        row
        for task in options.task or task_sizes.SHAPES
        for row in measure(task, options.compute_dtype, options.seconds, options.rounds)
    )
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, compute_dtype: str, seconds: float, rounds: int) -> list[dict]:
    """A row of figures for each number of microbatches."""
    command = ("benchmarks.peers.keras_tasks", "towers", task, compute_dtype)
    sides = {
        number: turns.Side((*command, f"--num_microbatches={number}"), {"seconds": seconds})
        for number in NUMBERS
        if task_sizes.BATCHES[task] % number == 0
    }
    measured = turns.measure(sides, rounds)
    default = measured[shares.MOST_BY_DEFAULT].rates
    return [
        {
            "task": task,
            "compute_dtype": compute_dtype,
            "num_microbatches": number,
            "images_per_second": round(found.median_rate(), 1),
            "to_the_default": turns.median_ratio(found.rates, default),
            "every_round": [round(rate, 1) for rate in found.rates],
            "peak_megabytes": round(found.peak_megabytes or 0),
        }
        | turns.conditions()
        for number, found in measured.items()
    ]


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['task']} | {row['compute_dtype']} | {row['num_microbatches']} | "
        f"{row['images_per_second']:,.0f} | {row['to_the_default']:.2f} | "
        f"{row['peak_megabytes']:,} |"
    )


if __name__ == "__main__":
    main()
