"""Processes that train by turns, so that all sides of a comparison see the same machine.

One process trains at a time; the others wait, at the end of a step. What else the machine does
falls on all of them alike, and a ratio is the median over rounds of the ratios within a round.
All of them stay in memory, about a gigabyte each.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from towers import machine
from towers.runs import run_folder


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      arguments: after `python -m`, of a program that counts its steps with `counter.Counter`.
      turn: `{"seconds": ...}` or `{"steps": ...}`.
      python: the interpreter that runs it; PyTorch's may be another one than TensorFlow's.
    """

    arguments: tuple[str, ...]
    turn: Mapping[str, float]
    python: str = sys.executable


class Worker:
    """A side's process."""

    def __init__(self, name: str, side: Side, log: Path):
        self._name, self._turn, self._log = name, side.turn, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [side.python, "-m", *side.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def warm_up(self) -> None:
        """Waits until the process is ready for its first turn."""
        self._answer()

    def images_per_second(self) -> float:
        """Of one turn."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the answer will show
            print(json.dumps(self._turn), file=self._process.stdin, flush=True)
        turn = self._answer()
        return turn["images"] / turn["seconds"]

    def peak_megabytes(self) -> float | None:
        """The process's peak of resident memory; None where there is no /proc."""
        return peak_megabytes(self._process.pid)

    def forget_peak(self) -> None:
        """Peaks of resident memory count from here on, and not what tracing and compiling took."""
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5", encoding="ascii")

    def end(self) -> None:
        """Lets the process go."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            said = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"{self._name} has ended; its last words:\n{said}")
        return json.loads(line)


def peak_megabytes(pid: int) -> float | None:
    """A process's peak of resident memory; None where it or /proc does not exist.

    `wait4` would give that of the process that started it, where that was more.
    """
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return None
    lines = [line for line in path.read_text().splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) / 1024 if lines else None


class Measured(NamedTuple):
    """The measurements of one side."""

    rates: list[float]  # images per second, of each round
    peak_megabytes: float | None

    def median_rate(self) -> float:
        """Images per second."""
        return statistics.median(self.rates)


def measure(
    sides: Mapping[str, Side], rounds: int, *, peak_of_turns: bool = False
) -> dict[str, Measured]:
    """Gives every side its turn in every round; reports progress on stderr.

    The peak of memory is that of the whole process, or with `peak_of_turns` that since its warm-up.
    """
    workers: dict[str, Worker] = {}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as logs:
        try:
            for name, side in sides.items():
                workers[name] = Worker(name, side, Path(logs) / f"{name}.log")
                workers[name].warm_up()
            if peak_of_turns:
                for worker in workers.values():
                    worker.forget_peak()
            for number in range(1, rounds + 1):
                for name, worker in workers.items():
                    rate = worker.images_per_second()
                    rates[name].append(rate)
                    said = f"round {number} of {rounds}: {name} {rate:,.0f} images/s"
                    print(said, file=sys.stderr, flush=True)
            return {
                name: Measured(rates[name], worker.peak_megabytes())
                for name, worker in workers.items()
            }
        finally:
            for worker in workers.values():
                worker.end()


def median_ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return round(statistics.median(a / b for a, b in zip(of, to, strict=True)), 3)


def conditions() -> dict:
    """What a figure must be read with."""
    found = {
        "processor": machine.processor(),
        "cores": machine.available_cores(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 2**30),
    }
    for package in ("tensorflow", "keras", "torch"):
        if importlib.util.find_spec(package):
            found[package] = importlib.metadata.version(package)
    if gpus := machine.gpu_names():
        found |= {"gpus": gpus} | machine.gpu_software()
    return found


def report(
    head: str, rows: Iterable[dict], as_row: Callable[[dict], str], output: str | None
) -> None:
    """Prints a table as its rows come, and adds them to a file where one is named."""
    print(head)
    for row in rows:
        print(as_row(row), flush=True)
        if output:
            run_folder.append_line(Path(output), row)


def parser(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """A command line with `--rounds` and `--output`."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--rounds", type=_at_least_1, default=rounds, help="turns of each side")
    made.add_argument("--output", help="file of one JSON object per line to add the figures to")
    return made


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, at least 1")
    return int(text)
