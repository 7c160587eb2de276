"""The bare step on every kind of network, beside Keras's `fit` and PyTorch or JAX, in one run.

    python -m benchmarks.networks
    python -m benchmarks.networks --task=resnet --compute_dtype=bfloat16 --jit_compile
    python -m benchmarks.networks --num_microbatches=1 --pytorch_python=other/bin/python
    python -m benchmarks.networks --peer=jax --jax_python=other/bin/python

One batch in memory, SGD with momentum, no logs; towers with one tower, the default threads and the
default number of microbatches, or the given one. The sides of a row take turns, each a process of
its own; a ratio is the median over rounds of the ratios within a round, of towers (with `fused`,
without it, or compiled with XLA) to the peer, in both cases the one whose median rate is the
highest. Its interval is from the smallest to the largest of these. On a machine with GPUs all
sides use the first one, and towers train with their parameters on the CPU and on that GPU.
"""

import argparse
import functools
import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import turns
from benchmarks.peers import task_sizes
from towers.support import machine, shares

COLUMNS = {
    "towers": "towers, images/s",
    "fused": "with `fused`",
    "towers-xla": "with `jit_compile`",
    "on-gpu": "parameters on the GPU",
    "on-gpu-xla": "and `jit_compile`",
    "keras": "Keras `fit`",
    "keras-xla": "compiled with XLA",
    "pytorch": "PyTorch",
    "pytorch-compiled": "compiled",
    "jax": "JAX",
}
ON_CPU = ("towers", "fused", "towers-xla")
ON_GPU = ("towers", "on-gpu", "on-gpu-xla")
FUSED = ("mobilenet", "transformer", "lstm")  # which have layers that `fused` replaces
USUAL_PEERS = ("keras", "keras-xla", "pytorch", "pytorch-compiled")
PEERS = (*USUAL_PEERS, "jax")  # which is run where it is named
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
    parser.add_argument("--batch", type=int, help="examples of a step; default: the task's own")
    parser.add_argument("--jit_compile", action="store_true", help="towers compiled with XLA, too")
    parser.add_argument("--deterministic", action="store_true", help="on towers")
    parser.add_argument(
        "--pytorch_python", default=sys.executable, help="the interpreter that has PyTorch"
    )
    parser.add_argument(
        "--jax_python", default=sys.executable, help="the interpreter that has JAX, Flax and Optax"
    )
    parser.add_argument(
        "--warm_up_together",
        action="store_true",
        help="all sides of a row at once, on a machine of many cores",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    options = parser.parse_args()
    own = ON_GPU if machine.num_devices("GPU") else ON_CPU
    rows = (
        measure(task, compute_dtype, options, own)
        for task in options.task or task_sizes.SHAPES
        for compute_dtype in options.compute_dtype or DTYPES
    )
    peers = options.peer if "jax" in (options.peer or ()) else USUAL_PEERS
    shown = functools.partial(as_row, own=own, peers=peers)
    turns.report(head(own, peers), rows, shown, options.output)


def measure(
    task: str, compute_dtype: str, options: argparse.Namespace, own: Sequence[str] = ON_CPU
) -> dict:
    """The figures of one row; with `jit_compile`, those of towers compiled with XLA too."""
    asked = [
        *(options.peer or USUAL_PEERS),
        *(name for name in own if options.jit_compile or not name.endswith("-xla")),
    ]
    more = [] if options.batch is None else [f"--batch={options.batch}"]
    named = commands(
        task, compute_dtype, asked, options.num_microbatches, *more,
        deterministic=options.deterministic, pytorch_python=options.pytorch_python,
        jax_python=options.jax_python,
    )  # fmt: skip
    interpreters = {
        "pytorch": options.pytorch_python,
        "pytorch-compiled": options.pytorch_python,
        "jax": options.jax_python,
    }
    sides = {
        name: turns.Side(
            command, {"seconds": options.seconds}, interpreters.get(name, sys.executable)
        )
        for name, command in named.items()
    }
    rounds = options.rounds
    measured = turns.measure(sides, rounds, warm_up_together=options.warm_up_together)
    rates = {name: found.rates for name, found in measured.items()}
    medians = {name: found.median_rate() for name, found in measured.items()}
    best = max(set(rates) & set(PEERS), key=medians.get, default=None)
    figures = {
        "task": task,
        "compute_dtype": compute_dtype,
        "batch": options.batch or task_sizes.BATCHES[task],
        "num_microbatches": options.num_microbatches,
        "images_per_second": {name: round(rate, 1) for name, rate in medians.items()},
        "peak_megabytes": {
            name: round(found.peak_megabytes or 0) for name, found in measured.items()
        },
        "every_round": {name: [round(rate, 1) for rate in found] for name, found in rates.items()},
        "rounds": rounds,
    }
    if options.deterministic:
        figures["deterministic"] = True
    if best:
        ours = max((name for name in own if name in rates), key=medians.get)
        ratios = [own / its for own, its in zip(rates[ours], rates[best], strict=True)]
        figures |= {
            "best_of_ours": ours,
            "best_peer": best,
            "to_best_peer": round(statistics.median(ratios), 3),
            "least_and_largest": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    conditions = turns.conditions()
    if options.pytorch_python != sys.executable and "pytorch" in "".join(sides):
        conditions["torch"] = version_of("torch", options.pytorch_python)
    if "jax" in sides:
        conditions["jax"] = version_of("jax", options.jax_python)
    return figures | conditions


def version_of(package: str, python: str) -> str:
    """The version of a package that an interpreter has."""
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commands(
    task: str,
    compute_dtype: str,
    asked: Sequence[str],
    num_microbatches: int,
    *more: str,
    deterministic: bool = False,
    pytorch_python: str = sys.executable,
    jax_python: str = sys.executable,
) -> dict[str, tuple[str, ...]]:
    """Name of a side to its command, with `more` arguments.

    They are the sides that are asked for: with `fused` where that replaces a layer, and PyTorch's
    and JAX's where these are installed, or have an interpreter of their own.
    """
    given = (task, compute_dtype, *more)
    of_towers = (*given, f"--num_microbatches={num_microbatches}")
    of_towers += ("--deterministic",) if deterministic else ()
    of_all = {
        name: ("benchmarks.peers.keras_tasks", name, *of_towers)
        for name in dict.fromkeys(ON_CPU + ON_GPU)
    }
    of_all |= {
        "keras": ("benchmarks.peers.keras_tasks", "fit", *given),
        "keras-xla": ("benchmarks.peers.keras_tasks", "fit-xla", *given),
        "pytorch": ("benchmarks.peers.pytorch_tasks", *given),
        "pytorch-compiled": ("benchmarks.peers.pytorch_tasks", *given, "--compile"),
        "jax": ("benchmarks.peers.jax_tasks", *given),
    }
    found = {
        package: python != sys.executable or importlib.util.find_spec(package) is not None
        for package, python in (("torch", pytorch_python), ("flax", jax_python))
    }
    return {
        name: command
        for name, command in of_all.items()
        if name in asked
        and (name != "fused" or task in FUSED)
        and (found["torch"] or "pytorch" not in name)
        and (found["flax"] or name != "jax")
    }


def head(own: Sequence[str] = ON_CPU, peers: Sequence[str] = USUAL_PEERS) -> str:
    """The head of the table with these columns of towers and of peers."""
    columns = [COLUMNS[name] for name in (*own, *peers)]
    names = ["network", "type", "microbatches", *columns, "relative to the best of them"]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"


def as_row(row: dict, own: Sequence[str] = ON_CPU, peers: Sequence[str] = USUAL_PEERS) -> str:
    """One row of the table."""
    rates = row["images_per_second"]
    shown = " | ".join(_rate(rates[name]) if name in rates else "" for name in (*own, *peers))
    ratio = ""
    if "best_peer" in row:
        least, largest = row["least_and_largest"]
        ratio = f"{row['to_best_peer']:.2f} ({least:.2f}–{largest:.2f})"
    task = f"{row['task']}, `--deterministic`" if row.get("deterministic") else row["task"]
    what = f"{task} | {row['compute_dtype']} | {row['num_microbatches']}"
    return f"| {what} | {shown} | {ratio} |"


HEAD = head()


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:,.{1 if images_per_second < 10 else 0}f}"


if __name__ == "__main__":
    main()
