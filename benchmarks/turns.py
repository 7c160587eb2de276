"""Processes that train by turns, so that all sides of a comparison see the same machine.

One process works at a time; the others wait, at the end of a step. What else the machine does falls
on all of them alike, and a ratio is the median over rounds of the ratios within a round.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from towers import devices

WARM_UP_STEPS = 12  # tracing, compiling, filling queues


class Turns:
    """What a training process tells of its steps. Whatever else it prints goes to stderr."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._steps_left, self._until = WARM_UP_STEPS, float("inf")
        self._images, self._begun = 0, None

    def step_done(self, images: int) -> None:
        """Counts a step of so many images; where the turn is over, reports it and waits.

        Leaves the process at the end of the input: whoever listened has gone.
        """
        now = time.perf_counter()
        self._images += images
        self._steps_left -= 1
        if self._steps_left > 0 and now < self._until:
            return
        turn = {"images": self._images, "seconds": now - (self._begun or now)}
        print(json.dumps(turn), file=self._out)
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # no final checkpoint, no final evaluation
        size = json.loads(line)
        self._images, self._begun = 0, time.perf_counter()
        self._steps_left = size.get("steps", sys.maxsize)
        self._until = self._begun + size.get("seconds", float("inf"))


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      arguments: after `python -m`, of a program that counts its steps with `Turns`.
      turn: `{"seconds": ...}` or `{"steps": ...}`.
    """

    arguments: tuple[str, ...]
    turn: Mapping[str, float]


class Worker:
    """A side's process, warmed up."""

    def __init__(self, name: str, side: Side, log: Path):
        self._name, self._turn, self._log = name, side.turn, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *side.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._answer()

    def images_per_second(self) -> float:
        """Of one turn."""
        print(json.dumps(self._turn), file=self._process.stdin, flush=True)
        turn = self._answer()
        return turn["images"] / turn["seconds"]

    def peak_megabytes(self) -> float:
        """The most memory that the process has had resident; Linux only."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def end(self) -> None:
        """Lets the process go."""
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            said = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"{self._name} has ended; its last words:\n{said}")
        return json.loads(line)


class Measured(NamedTuple):
    """What came of one side."""

    rates: list[float]  # images per second, of each round
    peak_megabytes: float

    def median_rate(self) -> float:
        """Images per second."""
        return statistics.median(self.rates)


def measure(sides: Mapping[str, Side], rounds: int) -> dict[str, Measured]:
    """Gives every side its turn in every round; says on stderr how it goes."""
    workers: dict[str, Worker] = {}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as logs:
        try:
            for name, side in sides.items():
                workers[name] = Worker(name, side, Path(logs) / f"{name}.log")
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


def machine() -> dict:
    """What a figure has to be read with."""
    found = {
        "processor": devices.processor(),
        "cores": devices.available_cores(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 2**30),
    }
    for package in ("tensorflow", "keras", "torch"):
        if importlib.util.find_spec(package):
            found[package] = importlib.metadata.version(package)
    return found
