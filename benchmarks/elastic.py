"""Kills and stops the workers of an elastic run, and measures what it ends with and what that cost.

    python -m benchmarks.elastic --events=20 --seed=0

`towers-launch` trains with three workers, of which one is enough, while this program sends SIGKILL
or SIGSTOP to a worker drawn at random, at least once to the chief. A place whose worker has died
comes back after a while. In the end the weights are compared with those of a run of one worker that
was left alone.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import turns

ROOT = Path(__file__).resolve().parent.parent
WORKERS, RETURN_SECONDS = 3, 8
FLAGS = (
    "--dataset=shapes",
    "--global_batch_size=32",
    "--log_every_steps=1",
    "--checkpoint_every_steps=100",
    "--eval_every_epochs=0",
    "--summary_every_steps=0",
    "--intra_op_threads=1",
)
HEAD = """\
| event | signal | to worker | of | after step | resumes at step | with | seconds to the next step |
|---|---|---|---|---|---|---|---|"""


@dataclasses.dataclass
class Event:
    """A signal to one worker, and what came of it.

    Attributes:
      sent: its name.
      worker: who got it.
      workers: how many were at work.
      after_step: the last step that the chief had shown.
      resumed_at: the first that was shown afterwards.
      workers_then: how many were at work then.
      seconds: from the signal to that step.
    """

    sent: str
    worker: int
    workers: int
    after_step: int
    resumed_at: int = 0
    workers_then: int = 0
    seconds: float = 0.0


def main():
    """Prints a row for each event, and whether the weights are the same."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        elastic, alone = (Path(folder) / name for name in ("elastic", "alone"))
        events = disturbed(elastic, options)
        train(alone, options.steps)
        same = weights_of(elastic) == weights_of(alone)
    rows = [
        {"event": number, **dataclasses.asdict(event), "same_weights": same, "seed": options.seed}
        | turns.conditions()
        for number, event in enumerate(events, start=1)
    ]
    turns.report(HEAD, rows, as_row, options.output)
    print(f"the weights are {'the same' if same else 'DIFFERENT'}")
    sys.exit(not same)


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['event']} | {row['sent']} | {row['worker']} | {row['workers']} | "
        f"{row['after_step']} | {row['resumed_at']} | {row['workers_then']} | "
        f"{row['seconds']:.1f} |"
    )


def train(folder: Path, steps: int, *launcher: str) -> subprocess.Popen | None:
    """Runs to the end; with a launcher's arguments, returns its running process."""
    script = [str(ROOT / "train.py"), f"--train_dir={folder}", f"--max_steps={steps}", *FLAGS]
    if not launcher:
        subprocess.run([sys.executable, *script], check=True, stdout=subprocess.DEVNULL)
        return None
    call = [sys.executable, "-m", "towers_cli.launch", *launcher, "--", *script]
    return subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def disturbed(folder: Path, options: argparse.Namespace) -> list[Event]:
    """Trains to the end, through so many events."""
    rng = random.Random(options.seed)
    chief_at = rng.randrange(options.events)
    events, sent_at, send_at, is_back = [], None, None, False
    launcher = train(
        folder, options.steps, f"--workers={WORKERS}", "--min_workers=1",
        f"--restarts={2 * options.events}", f"--return_seconds={RETURN_SECONDS}",
    )  # fmt: skip
    for line in launcher.stdout:
        if line.startswith("[launcher] ") and " to the next step" in line:
            is_back = True
        found = re.match(r"\[0\] step ([\d,]+)/", line)
        if not found:
            continue
        step, now = int(found[1].replace(",", "")), time.monotonic()
        if sent_at is not None and is_back:
            event = events[-1]
            event.resumed_at, event.workers_then = step, len(workers_of(launcher.pid))
            event.seconds = round(now - sent_at, 1)
            print(as_row({"event": len(events), **dataclasses.asdict(event)}), flush=True)
            sent_at = None
        if sent_at is None and send_at is None:
            send_at = now + rng.uniform(0.2, 3.0)
        if send_at is not None and now > send_at and len(events) < options.events:
            number = signal.SIGSTOP if rng.random() < 0.15 else signal.SIGKILL
            workers = workers_of(launcher.pid)
            index = 0 if len(events) == chief_at else rng.choice(sorted(workers))
            sent_at, send_at, is_back = now, None, False
            events.append(Event(number.name, index, len(workers), step))
            os.kill(workers[index], number)
    if launcher.wait():
        raise RuntimeError(f"the launcher ended with {launcher.returncode}")
    return events


def workers_of(launcher: int) -> dict[int, int]:
    """Index to process of the launcher's workers, as their environment says it."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (process / "environ").read_bytes().split(b"\0")
            (config,) = [v for v in variables if v.startswith(b"TF_CONFIG=")]  # of no zombie
            if parent == launcher:
                found[json.loads(config[10:])["task"]["index"]] = int(process.name)
    return found


def weights_of(folder: Path) -> str:
    """The hash of a run's final weights."""
    return json.loads((folder / "final_model.json").read_text())["weights_sha256"]


if __name__ == "__main__":
    main()
