"""What a command costs before and beside its steps: imports, the first step, memory.

    python -m benchmarks.start --data_dir=...

Whole processes, from the shell: `train.py --help`; imports alone; `train.py` up to its first step
and to its end after 600 steps with logs, summaries, a checkpoint and an evaluation.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import turns
from input_pipeline import datasets
from towers import errors

HEAD = """\
| what | median | all |
|---|---|---|"""
IMPORTS = {
    "`import tensorflow, keras`": "import tensorflow, keras",
    "`import towers`": "import towers",
}


def main():
    """Measures, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--dataset", default="cifar10", help="as train.py's")
    parser.add_argument("--data_dir", help="as train.py's")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    errors.quiet_loggers()
    datasets.load(options.dataset, options.data_dir, "train")  # prepared now, if it was not
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, value in one_round(options).items():
            found.setdefault(name, []).append(value)
    rows = [
        {
            "what": name,
            "median": round(statistics.median(values), 2),
            "all": [round(value, 2) for value in values],
            "steps": options.steps,
            "dataset": options.dataset,
        }
        | turns.conditions()
        for name, values in found.items()
    ]
    turns.report(HEAD, rows, as_row, options.output)


def one_round(options: argparse.Namespace) -> dict[str, float]:
    """Each figure once."""
    help_text, answered = timed("train.py", "--help")
    if "--train_dir" not in help_text:
        raise SystemExit(f"train.py --help did not answer: {help_text[-500:]}")
    figures = {"`train.py --help`, s": answered}
    figures |= {f"{name}, s": timed("-c", program)[1] for name, program in IMPORTS.items()}
    for dtype in ("float32", "bfloat16"):
        first_step, peak = whole_run(options, dtype)
        figures[f"first step from the shell, {dtype}, s"] = first_step
        figures[f"peak memory of a run, {dtype}, MB"] = peak
    return figures


def timed(*arguments: str) -> tuple[str, float]:
    """What Python prints with these arguments, and the seconds that it takes."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    return done.stdout, time.perf_counter() - begun


def whole_run(options: argparse.Namespace, compute_dtype: str) -> tuple[float, float]:
    """Seconds to the first step's line, and the peak of resident memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            f"--train_dir={folder}/run", f"--dataset={options.dataset}",
            f"--compute_dtype={compute_dtype}", f"--max_steps={options.steps}",
        ]  # fmt: skip
        if options.data_dir:
            arguments.append(f"--data_dir={options.data_dir}")
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "train.py", *arguments],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        first_step = peak = None
        for line in process.stdout:
            peak = turns.peak_megabytes(process.pid) or peak
            if first_step is None and line.startswith("step 1/"):
                first_step = time.perf_counter() - begun
        code = process.wait()
        if code or first_step is None:
            raise SystemExit(f"train.py {' '.join(arguments)} ended with exit code {code}")
    return first_step, peak


def as_row(row: dict) -> str:
    """One row of the table."""
    return f"| {row['what']} | {_shown(row['median'])} | {', '.join(map(_shown, row['all']))} |"


def _shown(value: float) -> str:
    """Three significant digits, and two decimals at most: `0.52`, `5.26`, `1,310`."""
    digits = min(2, 2 - math.floor(math.log10(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


if __name__ == "__main__":
    main()
