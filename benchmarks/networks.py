"""The bare step on every kind of network, beside Keras's `fit` and PyTorch, in one run.

    python -m benchmarks.networks
    python -m benchmarks.networks --task=resnet --compute_dtype=bfloat16 --jit_compile

One batch in memory, SGD with momentum, no logs; towers with one tower, the default threads and the
default number of microbatches, or the given one. The sides of a row take turns, each a process of
its own; a ratio is the median over rounds of the ratios within a round, of towers (with `fused`,
without it, or compiled with XLA) to the peer, in both cases the one whose median rate is the
highest. Its interval is from the smallest to the largest of these.
"""

import importlib.util
import statistics
from collections.abc import Sequence

from benchmarks import turns
from benchmarks.peers import task_sizes
from towers.support import shares

HEAD = """\
| network | type | microbatches | towers, images/s | with `fused` | with `jit_compile` | \
Keras `fit` | compiled with XLA | PyTorch | compiled | relative to the best of them |
|---|---|---|---|---|---|---|---|---|---|---|"""
OWN = ("towers", "fused", "towers-xla")
FUSED = ("mobilenet", "lstm")  # which have layers that `fused` replaces
PEERS = ("keras", "keras-xla", "pytorch", "pytorch-compiled")
DTYPES = ("float32", "bfloat16")


def main():
    """Measures each row, and prints a table."""
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES))
    parser.add_argument("--compute_dtype", action="append", choices=DTYPES)
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument(
        "--num_microbatches", type=int, default=shares.MOST_BY_DEFAULT, help="of a step of towers"
    )
    parser.add_argument("--jit_compile", action="store_true", help="towers compiled with XLA, too")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        measure(
            task,
            compute_dtype,
            options.peer or PEERS,
            options.seconds,
            options.rounds,
            options.num_microbatches,
            options.jit_compile,
        )
        for task in options.task or task_sizes.SHAPES
        for compute_dtype in options.compute_dtype or DTYPES
    )
    turns.report(HEAD, rows, as_row, options.output)


def measure(
    task: str,
    compute_dtype: str,
    peers: list[str],
    seconds: float,
    rounds: int,
    num_microbatches: int,
    jit_compile: bool = False,
) -> dict:
    """The figures of one row; with `jit_compile`, those of towers compiled with XLA too."""
    asked = [*peers, "towers-xla"] if jit_compile else peers
    sides = {
        name: turns.Side(command, {"seconds": seconds})
        for name, command in commands(task, compute_dtype, asked, num_microbatches).items()
    }
    measured = turns.measure(sides, rounds)
    rates = {name: found.rates for name, found in measured.items()}
    medians = {name: found.median_rate() for name, found in measured.items()}
    best = max(set(rates) - set(OWN), key=medians.get, default=None)
    figures = {
        "task": task,
        "compute_dtype": compute_dtype,
        "batch": task_sizes.BATCHES[task],
        "num_microbatches": num_microbatches,
        "images_per_second": {name: round(rate, 1) for name, rate in medians.items()},
        "peak_megabytes": {
            name: round(found.peak_megabytes or 0) for name, found in measured.items()
        },
        "every_round": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "rounds": rounds,
    }
    if best:
        ours = max((name for name in OWN if name in rates), key=medians.get)
        ratios = [own / its for own, its in zip(rates[ours], rates[best], strict=True)]
        figures |= {
            "best_of_ours": ours,
            "best_peer": best,
            "to_best_peer": round(statistics.median(ratios), 3),
            "least_and_largest": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    return figures | turns.conditions()


def commands(
    task: str, compute_dtype: str, asked: Sequence[str], num_microbatches: int, *more: str
) -> dict[str, tuple[str, ...]]:
    """Name of a side to its command, with `more` arguments.

    They are towers, with `fused` too where that replaces a layer, and the other sides that are
    asked for: PyTorch's where it is installed.
    """
    given = (task, compute_dtype, *more)
    of_towers = (*given, f"--num_microbatches={num_microbatches}")
    of_all = {
        "towers": ("benchmarks.peers.keras_tasks", "towers", *of_towers),
        "fused": ("benchmarks.peers.keras_tasks", "fused", *of_towers),
        "towers-xla": ("benchmarks.peers.keras_tasks", "towers-xla", *of_towers),
        "keras": ("benchmarks.peers.keras_tasks", "fit", *given),
        "keras-xla": ("benchmarks.peers.keras_tasks", "fit-xla", *given),
        "pytorch": ("benchmarks.peers.pytorch_tasks", *given),
        "pytorch-compiled": ("benchmarks.peers.pytorch_tasks", *given, "--compile"),
    }
    has_torch = importlib.util.find_spec("torch") is not None
    return {
        name: command
        for name, command in of_all.items()
        if name == "towers"
        or (name == "fused" and task in FUSED)
        or (name in asked and (has_torch or "pytorch" not in name))
    }


def as_row(row: dict) -> str:
    """One row of the table."""
    rates = row["images_per_second"]
    shown = " | ".join(_rate(rates[name]) if name in rates else "" for name in OWN + PEERS)
    ratio = ""
    if "best_peer" in row:
        least, largest = row["least_and_largest"]
        ratio = f"{row['to_best_peer']:.2f} ({least:.2f}–{largest:.2f})"
    what = f"{row['task']} | {row['compute_dtype']} | {row['num_microbatches']}"
    return f"| {what} | {shown} | {ratio} |"


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:,.{1 if images_per_second < 10 else 0}f}"


if __name__ == "__main__":
    main()
