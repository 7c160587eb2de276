"""What a command costs before and beside its steps: answers to --help, the first step, memory.

    python -m benchmarks.start --data_dir=...

Whole processes, from the shell: `train.py --help`; `train.py` up to its first step and to its end
after 600 steps with logs, summaries, a checkpoint and an evaluation; the load of the decoded data
alone. The data are decoded and cached before.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import turns
from input_pipeline import datasets
from towers import run_folder

HEAD = """\
| what | median | all |
|---|---|---|"""
LOAD = "from input_pipeline import datasets; import time; s = time.perf_counter(); \
[datasets.load({dataset!r}, {data_dir!r}, split) for split in ('train', 'test')]; \
print(time.perf_counter() - s)"


def main():
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="cifar10", help="as train.py's")
    parser.add_argument("--data_dir", help="as train.py's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    options = parser.parse_args()
    for split in datasets.SPLITS:
        datasets.load(options.dataset, options.data_dir, split)
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, value in one_round(options).items():
            found.setdefault(name, []).append(value)
    print(HEAD)
    for name, values in found.items():
        row = {"what": name, "median": round(statistics.median(values), 2)}
        row |= {"all": [round(value, 2) for value in values], "steps": options.steps}
        row |= {"dataset": options.dataset} | turns.machine()
        print(as_row(row))
        if options.output:
            run_folder.append_line(Path(options.output), row)


def one_round(options: argparse.Namespace) -> dict[str, float]:
    """Each figure once."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "train.py", "--help"], stdout=subprocess.DEVNULL)
    answered = time.perf_counter() - begun
    load = LOAD.format(dataset=options.dataset, data_dir=options.data_dir)
    loaded = subprocess.run([sys.executable, "-c", load], stdout=subprocess.PIPE, check=True)
    figures = {
        "`train.py --help`, s": answered,
        "decoded data from the cache, s": float(loaded.stdout),
    }
    for dtype in ("float32", "bfloat16"):
        first_step, peak = whole_run(options, dtype)
        figures[f"first step from the shell, {dtype}, s"] = first_step
        figures[f"peak memory of a run, {dtype}, MB"] = peak
    return figures


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
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        first_step = None
        for line in process.stdout:
            if first_step is None and line.startswith("step 1/"):
                first_step = time.perf_counter() - begun
        _, status, usage = os.wait4(process.pid, 0)
        if status or first_step is None:
            raise SystemExit(f"train.py {' '.join(arguments)} ended with status {status}")
    return first_step, usage.ru_maxrss / 1024


def as_row(row: dict) -> str:
    """One row of the table."""
    return f"| {row['what']} | {row['median']:,} | {', '.join(f'{v:,}' for v in row['all'])} |"


if __name__ == "__main__":
    main()
