"""Keras's `fit` on towers, on every kind of network, beside plain Keras and PyTorch, in one run.

    python -m benchmarks.networks
    python -m benchmarks.networks --task=resnet --compute_dtype=bfloat16 --jit_compile
    python -m benchmarks.networks --task=lstm --microbatch_size=64 --peer=keras

One batch in memory, SGD with momentum, no logs; towers with one tower and the default threads. The
sides of a row take turns, each a process of its own; a ratio is the median over rounds of the
ratios within a round, of towers (with `fused`, without it, or compiled with XLA) to the peer, in
both cases the one whose median rate is the highest. Its interval is from the smallest to the
largest of these.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Sequence

from benchmarks import turns
from benchmarks.peers import task_sizes

COLUMNS = {
    "towers": "towers, images/s",
    "fused": "with `fused`",
    "towers-xla": "with `jit_compile`",
    "keras": "Keras `fit`",
    "keras-xla": "compiled with XLA",
    "pytorch": "PyTorch",
    "pytorch-compiled": "compiled",
}
OWN, PEERS = tuple(COLUMNS)[:3], tuple(COLUMNS)[3:]
NAMES = ["network", "type", "microbatches", *COLUMNS.values(), "relative to the best of them"]
HEAD = f"| {' | '.join(NAMES)} |\n{'|---' * len(NAMES)}|"
FUSED = ("mobilenet",)  # which have a batch norm that `fused` replaces
DTYPES = ("float32", "bfloat16")


def main():
    """Measures each row, and prints a table."""
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--task", action="append", choices=list(task_sizes.SHAPES), metavar="TASK")
    parser.add_argument("--compute_dtype", action="append", choices=DTYPES)
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument(
        "--microbatch_size", type=int, default=0, help="on towers; default: an eighth of the batch"
    )
    parser.add_argument("--jit_compile", action="store_true", help="towers compiled with XLA, too")
    parser.add_argument(
        "--pytorch_python", default=sys.executable, help="the interpreter that has PyTorch"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    options = parser.parse_args()
    rows = (
        measure(task, compute_dtype, options)
        for task in options.task or task_sizes.SHAPES
        for compute_dtype in options.compute_dtype or DTYPES
    )
    turns.report(HEAD, rows, as_row, options.output)


def measure(task: str, compute_dtype: str, options: argparse.Namespace) -> dict:
    """The figures of one row; with `jit_compile`, those of towers compiled with XLA too."""
    batch = task_sizes.BATCHES[task]
    size = options.microbatch_size or batch // 8
    asked = [*(options.peer or PEERS), "towers", "fused"]
    asked += ["towers-xla"] if options.jit_compile else []
    named = commands(task, compute_dtype, asked, size, batch, has_pytorch(options.pytorch_python))
    sides = {
        name: turns.Side(
            command,
            {"seconds": options.seconds},
            options.pytorch_python if "pytorch" in name else sys.executable,
        )
        for name, command in named.items()
    }
    rates = {name: found.rates for name, found in turns.measure(sides, options.rounds).items()}
    medians = {name: statistics.median(found) for name, found in rates.items()}
    figures = {
        "task": task,
        "compute_dtype": compute_dtype,
        "batch": batch,
        "num_microbatches": -(-batch // size),
        "images_per_second": {name: round(rate, 1) for name, rate in medians.items()},
        "every_round": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "rounds": options.rounds,
    }
    if best := max(set(rates) & set(PEERS), key=medians.get, default=None):
        ours = max((name for name in OWN if name in rates), key=medians.get)
        ratios = [own / its for own, its in zip(rates[ours], rates[best], strict=True)]
        figures |= {
            "best_of_ours": ours,
            "best_peer": best,
            "to_best_peer": round(statistics.median(ratios), 3),
            "least_and_largest": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    return figures | turns.conditions()


def has_pytorch(python: str = sys.executable) -> bool:
    """Whether PyTorch is installed, or has an interpreter of its own."""
    return python != sys.executable or importlib.util.find_spec("torch") is not None


def commands(
    task: str,
    compute_dtype: str,
    asked: Sequence[str],
    microbatch_size: int,
    batch: int,
    with_pytorch: bool,
) -> dict[str, tuple[str, ...]]:
    """Name of a side that is asked for to its command; `fused` where that replaces a layer."""
    same, keras_tasks = (task, compute_dtype, f"--batch={batch}"), "benchmarks.peers.keras_tasks"
    pytorch = ("benchmarks.peers.pytorch_tasks", *same)
    found = {
        name: (keras_tasks, name, *same, f"--microbatch_size={microbatch_size}")
        for name in OWN
        if name != "fused" or task in FUSED
    }
    found |= {"keras": (keras_tasks, "fit", *same), "keras-xla": (keras_tasks, "fit-xla", *same)}
    if with_pytorch:
        found |= {"pytorch": pytorch, "pytorch-compiled": (*pytorch, "--compile")}
    return {name: command for name, command in found.items() if name in asked}


def as_row(row: dict) -> str:
    """One row of the table."""
    rates = row["images_per_second"]
    shown = " | ".join(_rate(rates[name]) if name in rates else "" for name in COLUMNS)
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
