"""Kills a training again and again, and measures what was lost.

    python -m benchmarks.kills --kills=20 --seed=0

`train.py` runs as a process that gets SIGKILL while it starts, trains, writes a checkpoint,
evaluates or exports, at a moment drawn at random, and is then started again. In the end the run is
compared with one that was left alone.
"""

import argparse
import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import turns
from towers.runs import checkpoints, run_folder

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT_EVERY, EVALUATE_EVERY, LAST_STEP = 10, 50, 500  # steps; an epoch has 50
FLAGS = (
    "--recipe=shapes",
    "--global_batch_size=100",  # of shapes's 5,000 training images
    "--microbatch_size=50",
    "--log_every_steps=1",
    f"--checkpoint_every_steps={CHECKPOINT_EVERY}",
    "--checkpoints_to_keep=3",
    "--train_epochs=10",
    "--eval_every_epochs=1",
    f"--max_steps={LAST_STEP}",
)
MOMENTS = ("starting", "training", "checkpoint", "evaluation")
HEAD = """\
| kill | while | after step | newest checkpoint | continued from | steps to repeat |
|---|---|---|---|---|---|"""


@dataclasses.dataclass
class Kill:
    """One life of the training, and its end.

    Attributes:
      moment: what it was doing.
      after_step: the last step that it reported; 0 for none.
      checkpoint: the newest one there when it was dead; 0 for none.
      resumed_from: the step that training continued from.
    """

    moment: str
    after_step: int
    checkpoint: int
    resumed_from: int | None = None


def main():
    """Prints a table with one row for each kill, and how the two runs compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--output", help="file of one JSON object per line to add the figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        killed, alone = Path(folder) / "killed", Path(folder) / "alone"
        kills = torment(killed, options.kills, options.seed)
        Life(alone).end()
        rows = [{"kill": i} | dataclasses.asdict(kill) for i, kill in enumerate(kills, start=1)]
        turns.report(HEAD, rows, as_row, options.output)
        for path in (killed, alone):
            summary = run_folder.RunFolder(str(path)).read_final_summary()
            print(f"{path.name}: step {summary['step']}, sha256 {summary['weights_sha256'][:16]}")


def torment(folder: Path, number: int, seed: int) -> list[Kill]:
    """Trains in `folder` to its end, killed `number` times; the last fifth while it exports."""
    draw, exports = random.Random(seed), number // 5
    moments = [MOMENTS[index % len(MOMENTS)] for index in range(number - exports)]
    draw.shuffle(moments)
    moments += ["export"] * exports
    kills: list[Kill] = []
    while True:
        life = Life(folder)
        if len(kills) < number:
            life.come_to(moments[len(kills)], draw)
            life.process.kill()
        life.end()
        for kill in kills:
            if kill.resumed_from is None:  # or the next start was killed before it reported one
                kill.resumed_from = life.began_at
        if life.process.returncode == -signal.SIGKILL:
            kills.append(Kill(moments[len(kills)], life.last_step, newest_step(folder)))
        elif len(kills) == number:
            return kills
        else:  # the moment was missed and the run has ended: it is to export again
            (folder / "final_model.json").unlink()


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max(checkpoints.by_step(folder / "checkpoints"), default=0)


class Life:
    """A process that trains, and what it prints.

    Attributes:
      process: of `train.py`.
      began_at: the step that it continued from; None before it reported one.
      last_step: the last step that it reported.
      evaluated: the step of the last evaluation that it reported.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.began_at: int | None = None
        self.last_step = self.evaluated = 0
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *FLAGS, f"--train_dir={folder}"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
        )

    def come_to(self, moment: str, draw: random.Random) -> None:
        """Returns at a moment of that kind."""
        if moment == "starting":
            time.sleep(draw.uniform(0, 4))
        elif moment == "training":
            self._read_until(lambda: self._has_made_a_step())
            time.sleep(draw.uniform(0, 0.4))
        elif moment == "checkpoint":
            self._read_until(
                lambda: self._has_made_a_step() and (self.last_step + 1) % CHECKPOINT_EVERY == 0
            )
            self._wait_for_file("checkpoints/step-*.partial")
            time.sleep(draw.uniform(0, 0.02))
        elif moment == "evaluation":
            self._read_until(
                lambda: self._has_made_a_step() and self.last_step % EVALUATE_EVERY == 0
            )
            time.sleep(draw.uniform(0, 0.2))
        else:
            # A run that stands at its last step exports without another evaluation.
            self._read_until(lambda: LAST_STEP in (self.evaluated, self.began_at))
            self._wait_for_file("final_model.partial.keras")
            time.sleep(draw.uniform(0, 0.005))

    def end(self) -> None:
        """Reads the rest of what it prints."""
        self._read_until(lambda: False)
        self.process.wait()

    def _has_made_a_step(self) -> bool:
        return self.last_step > (self.began_at or 0)

    def _read_until(self, is_there: Callable[[], bool]) -> None:
        while not is_there() and (line := self.process.stdout.readline()):
            if match := re.match(r"continuing at step (\d+)$", line):
                self.began_at = self.last_step = int(match[1])
            elif match := re.match(r"step (\d+)/", line):
                self.began_at = self.began_at or 0
                self.last_step = int(match[1])
            elif match := re.match(r"test at step (\d+):", line):
                self.evaluated = int(match[1])

    def _wait_for_file(self, pattern: str) -> None:
        """Looks for a file as often as it can, until the process has ended."""
        while self.process.poll() is None and not any(self._folder.glob(pattern)):
            time.sleep(0.0005)


def as_row(row: dict) -> str:
    """One row of the table."""
    after = row["after_step"]  # 0: it was killed before it reported a step
    again = max(0, after - row["resumed_from"])
    return (
        f"| {row['kill']} | {row['moment']} | {after or '–'} | {row['checkpoint']} "
        f"| {row['resumed_from']} | {again} |"
    )


if __name__ == "__main__":
    main()
