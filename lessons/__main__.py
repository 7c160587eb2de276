"""The lessons' command.

python -m lessons                  lists them
python -m lessons averaging        runs one; the plot goes to runs/lessons/averaging.png
python -m lessons all --write      runs all, and writes figures and numbers into docs/lessons
"""

import argparse
import sys
import time
from pathlib import Path

import lessons
from lessons import lesson


def main() -> int:
    """Lists or runs; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lessons", description=lessons.__doc__.splitlines()[0]
    )
    parser.add_argument("name", nargs="?", help="a lesson, or all; none lists them")
    parser.add_argument("--write", action="store_true", help="write docs/lessons, and its figures")
    options = parser.parse_args()

    from lessons import every  # after --help, for it imports TensorFlow

    if options.name is None:
        for one in every.LESSONS:
            print(f"{one.name:<16}{one.question}")
        return 0
    chosen = [one for one in every.LESSONS if options.name in (one.name, "all")]
    if not chosen:
        names = ", ".join(one.name for one in every.LESSONS)
        parser.error(f"{options.name}: there is no such lesson; they are {names}")
    for one in chosen:
        show(one, options.write)
    return 0


def show(one: lesson.Lesson, write: bool) -> None:
    """Runs a lesson and shows what it found."""
    began = time.perf_counter()
    print(f"{one.question}\n", flush=True)
    finding = one.run(False)
    print(f"{finding.table()}\n\n{finding.claim}\n")
    path = one.figure if write else Path("runs/lessons") / f"{one.name}.png"
    lesson.save(finding, path)
    if write:
        page = one.page.read_text(encoding="utf-8")
        one.page.write_text(lesson.refreshed(page, finding), encoding="utf-8")
    print(f"{path}  ({time.perf_counter() - began:.0f} s)\n")


if __name__ == "__main__":
    sys.exit(main())
