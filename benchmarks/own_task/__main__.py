"""One task in four systems: lines, and whether a kill or another device changes the weights.

    python -m benchmarks.own_task
    python -m benchmarks.own_task --torch_python=other/bin/python    (with accelerate and fabric)

The task: a model of two inputs with dropout, checkpoints, resuming after a kill, TensorBoard, an
evaluation in each epoch, the best model, early stopping. Each program trains on one device, twice;
on one device, killed by SIGKILL half a second after its first checkpoint appears and started again;
and on two. Equal hashes are equal weights. A program's lines are those of code, without empty ones
and without the data.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import turns

HERE = Path(__file__).resolve().parent
HEAD = """\
| | lines | accuracy | same weights again | after `kill -9` | on two devices |
|---|---|---|---|---|---|"""
TIMEOUT, SECONDS_TO_WRITE_IT = 300, 0.5


@dataclasses.dataclass(frozen=True)
class System:
    """One system and the program that is written for it.

    Attributes:
      name: of the system, with what trains on several devices in it.
      program: the file.
      call: (python, devices) to the command line before the program's path and arguments.
      first_checkpoint: pattern of files, any of which shows that there is a checkpoint.
      needs: modules of Python.
    """

    name: str
    program: str
    call: Callable[[str, int], Sequence[str]]
    first_checkpoint: str
    needs: Sequence[str]

    def lines(self) -> int:
        """Lines of code."""
        text = (HERE / self.program).read_text()
        return sum(1 for line in text.splitlines() if line.strip())


def _python(python: str, _devices: int) -> list[str]:
    return [python]


def _accelerate(python: str, devices: int) -> list[str]:
    return [
        *(python, "-m", "accelerate.commands.launch", "--cpu", f"--num_processes={devices}"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
    ]


SYSTEMS = (
    System("towers", "with_towers.py", _python, "checkpoints/step-*[0-9]", ["tensorflow"]),
    System(
        "Keras `fit`, `MirroredStrategy`", "with_keras.py", _python,
        "backup/*metadata*", ["tensorflow"],
    ),
    System(
        "Lightning Fabric, `ddp`", "with_fabric.py", _python, "newest.ckpt",
        ["torch", "lightning_fabric", "torchmetrics", "tensorboard"],
    ),
    System(
        "Accelerate", "with_accelerate.py", _accelerate, "newest",
        ["torch", "accelerate", "tensorboard"],
    ),
)  # fmt: skip


def _start(system: System, python: str, folder: Path, devices: int) -> subprocess.Popen:
    call = [*system.call(python, devices), str(HERE / system.program), str(folder), str(devices)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(HERE.parents[1])}
    return subprocess.Popen(
        call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def _finished(system: System, python: str, folder: Path, devices: int) -> dict:
    process = _start(system, python, folder, devices)
    said, _ = process.communicate(timeout=TIMEOUT)
    found = [line for line in said.splitlines() if line.startswith('{"sha256"')]
    if process.returncode or not found:
        raise SystemExit(f"{system.program} ended with {process.returncode}:\n{said[-2000:]}")
    return json.loads(found[-1])


def _kill_at_first_checkpoint(system: System, python: str, folder: Path) -> None:
    process = _start(system, python, folder, 1)
    end = time.monotonic() + TIMEOUT
    while not any(folder.glob(system.first_checkpoint)):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{system.program} left no checkpoint:\n{process.stdout.read()}")
        time.sleep(0.002)
    time.sleep(SECONDS_TO_WRITE_IT)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def compare(system: System, python: str, folder: Path) -> dict:
    """Runs a program five times; whether its weights stay the same."""
    first = _finished(system, python, folder / "first", 1)
    again = _finished(system, python, folder / "again", 1)
    _kill_at_first_checkpoint(system, python, folder / "killed")
    killed = _finished(system, python, folder / "killed", 1)
    two = _finished(system, python, folder / "two", 2)
    runs = {"again": again, "killed": killed, "two_devices": two}
    same = {name: run["sha256"] == first["sha256"] for name, run in runs.items()}
    return {"accuracy": first["accuracy"], "same_weights": same}


def _has(python: str, modules: Sequence[str]) -> bool:
    look = f"import importlib.util as u; assert all(map(u.find_spec, {list(modules)!r}))"
    return subprocess.run([python, "-c", look], stderr=subprocess.DEVNULL).returncode == 0


def _versions(python: str, modules: Sequence[str]) -> dict[str, str]:
    look = f"from importlib.metadata import version as v; print(*map(v, {list(modules)!r}))"
    said = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True)
    return dict(zip(modules, said.stdout.split(), strict=True))


def rows(torch_python: str) -> Iterator[dict]:
    """A row for each system, whether or not it is installed."""
    for system in SYSTEMS:
        python = torch_python if "torch" in system.needs else sys.executable
        row = {"system": system.name, "lines": system.lines()}
        if not _has(python, system.needs):
            yield row | {"accuracy": None}
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = compare(system, python, Path(folder))
        yield row | found | {"versions": _versions(python, system.needs)} | turns.conditions()


def as_row(row: dict) -> str:
    """A line of the table."""
    head = f"| {row['system']} | {row['lines']} |"
    if row["accuracy"] is None:
        return f"{head} not installed | | | |"
    same = ["yes" if is_same else "no" for is_same in row["same_weights"].values()]
    return f"{head} {row['accuracy']:.1%} | {' | '.join(same)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--torch_python",
        default=sys.executable,
        help="a Python with the packages that are not installed here",
    )
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    arguments = parser.parse_args()
    turns.report(HEAD, rows(arguments.torch_python), as_row, arguments.output)


if __name__ == "__main__":
    main()
