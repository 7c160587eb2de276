"""The lessons' command.

python -m lessons                  lists them
python -m lessons averaging        runs one; the plot goes to runs/lessons/averaging.png
python -m lessons all --write      runs all, and writes figures and numbers into docs/lessons
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import lessons


def main() -> int:
    """Lists or runs; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lessons", description=lessons.__doc__ and lessons.__doc__.splitlines()[0]
    )
    parser.add_argument("name", nargs="?", help="a lesson, or all; without one: lists them")
    parser.add_argument("--write", action="store_true", help="write docs/lessons, and its figures")
    parser.add_argument(
        "--data_dir",
        help="folder of CIFAR-10, as train.py takes it; default: TFDS's; if that has none, shapes "
        "are drawn",
    )
    options = parser.parse_args()

    if options.name is None and (options.write or options.data_dir):
        parser.error("a lesson's name is missing, or all")
    if options.name and importlib.util.find_spec("matplotlib") is None:
        parser.error("the plots need matplotlib: pip install matplotlib")

    # After --help, because it imports TensorFlow; lessons use logical CPU devices everywhere.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import towers  # noqa: F401  before what imports TensorFlow: it sets TensorFlow up
    from input_pipeline import datasets
    from laboratory import findings
    from lessons import every
    from towers_cli import command_line

    if options.name is None:
        for one in every.LESSONS:
            print(f"{one.name:<22}{one.question}")
        return 0
    if options.name == "all":
        return run_each([one.name for one in every.LESSONS], sys.argv[1:])
    chosen = {one.name: one for one in every.LESSONS}.get(options.name)
    if chosen is None:
        names = ", ".join(one.name for one in every.LESSONS)
        parser.error(f"{options.name}: there is no such lesson; they are {names}")
    try:
        show(chosen, findings.Setup(data_dir=options.data_dir), options.write)
    except datasets.DataError as error:
        parser.error(command_line.printable(error))
    return 0


def run_each(names: list[str], flags: list[str]) -> int:
    """Runs lessons one after the other, each in a process of its own, as if it were alone."""
    flags.remove("all")
    for name in names:
        done = subprocess.run([sys.executable, "-m", "lessons", name, *flags])
        if done.returncode:
            return done.returncode
    return 0


def show(one, setup, write: bool) -> None:
    """Runs a lesson and shows what it found."""
    from laboratory import findings
    from lessons import lesson

    began = time.perf_counter()
    print(f"{one.question}\n", flush=True)
    findings.start_runtime()
    finding = one.run(setup)
    seconds = time.perf_counter() - began
    print(*filter(None, (finding.answer, finding.table(), finding.claim)), sep="\n\n", end="\n\n")
    print(f"{findings.conditions(finding, seconds)}")
    path = one.figure if write else Path("runs/lessons") / f"{one.name}.png"
    findings.save(finding, path)
    if write:
        page = one.page.read_text(encoding="utf-8")
        one.page.write_text(lesson.refreshed(page, finding, seconds), encoding="utf-8")
    print(f"{path}\n")


if __name__ == "__main__":
    sys.exit(main())
