"""Memory and time of a run on a large set of pictures.

    python -m benchmarks.large_set --folder=/tmp/large [--gigabytes=1,20]

FOLDER must not exist.

Generated photographs of 100 to 800 pixels a side; files are links to 2,000 different ones, and the
store, which holds the bytes, is as large as the set. One process makes the store and trains, the
next one finds it and trains.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from absl import app, flags

from benchmarks import input as of_input

_FOLDER = flags.DEFINE_string("folder", None, "Where all is made.", required=True)
_SETS = flags.DEFINE_list("gigabytes", ["1", "20"], "Sizes of the sets.")
_STEPS = flags.DEFINE_integer("steps", 60, "Of a run.", lower_bound=1)
_MODEL = flags.DEFINE_string("model", "MobileNetV3Small", "As of train.py.")
_BATCH, _DIFFERENT, _CLASSES = 32, 2000, 10
_ROOT = Path(__file__).resolve().parents[1]


def make(folder: Path, gigabytes: float) -> int:
    """The set, from `folder`'s different pictures; returns how many pictures it has."""
    if not (folder / "pictures").exists():
        of_input.make_pictures(folder, _DIFFERENT)
    different = sorted((folder / "pictures").glob("*/*.jpg"))
    size, count = sum(path.stat().st_size for path in different), 0
    whole = folder / f"set-{gigabytes:g}"
    for turn in range(max(1, round(gigabytes * 1e9 / size))):
        for number, path in enumerate(different):
            link = whole / f"class{number % _CLASSES}" / f"{turn:06d}-{number:06d}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)
            count += 1
    return count


def train(folder: Path, gigabytes: float, run: str) -> tuple[float, float]:
    """Seconds of a run of the command, and the most memory it had, in MiB."""
    command = [
        sys.executable, str(_ROOT / "train.py"), "--dataset=folder",
        f"--data_dir={folder / f'set-{gigabytes:g}'}", f"--store_dir={folder / 'stores'}",
        f"--train_dir={folder / run}", f"--model={_MODEL.value}", "--image_size=224",
        "--preprocessing=random_resized_crop", f"--global_batch_size={_BATCH}",
        "--num_towers=2", "--num_microbatches=2", f"--max_steps={_STEPS.value}",
        "--eval_every_epochs=0", "--summary_every_steps=0",
    ]  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the run has failed")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def main(_) -> None:
    """Prints a row for each set."""
    folder = Path(_FOLDER.value).absolute()
    if folder.exists():
        raise app.UsageError(
            f"--folder={folder}: exists already, so its runs would be finished; name a new one"
        )
    print("| set, GB | pictures | with the store to be made: s, MiB | with it there: s, MiB |")
    print("|---|---|---|---|")
    for gigabytes in map(float, _SETS.value):
        count = make(folder, gigabytes)
        turns = [train(folder, gigabytes, f"run-{gigabytes:g}-{turn}") for turn in range(2)]
        cells = (f"{seconds:,.0f}, {mebibytes:,.0f}" for seconds, mebibytes in turns)
        print(f"| {gigabytes:g} | {count:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
