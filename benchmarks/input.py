"""Pictures per second that loaders reach: ours, tf.data over TFRecords, Grain, PyTorch.

    python -m benchmarks.input [--peers_python=PYTHON] [--output=docs/measurements/input.jsonl]
    python -m benchmarks.input --augmented --peers_python=PYTHON

The job is the same for all: a random part of a JPEG (8 to 100 % of its area), scaled to 224 x 224,
mirrored by a coin, each colour scaled; batches of 128. Pictures of 100 to 800 pixels a side are
made for it. The first row is `tf.io.decode_jpeg` of bytes in memory on all cores, and nothing else.
`--augmented` compares instead towers and torchvision, without augmentation and with each kind.
Sides take turns, each turn in a process of its own. Grain, PyTorch, torchvision, Pillow and
simplejpeg are those of PYTHON, which may be that of another environment.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import turns
from input_pipeline import augment

HEAD = """\
| loader | pictures/s | share of decoding alone | peak memory, MB |
|---|---|---|---|"""
DECODING = "`tf.io.decode_jpeg` of bytes in memory, nothing else"
# Name to program and its argument; those of another Python last.
OURS = {
    DECODING: "decode",
    "towers": "towers",
    "tf.data over TFRecords": "tfrecords",
}
PEERS = {
    "Grain, Pillow": "grain",
    "PyTorch `DataLoader`, Pillow": "pillow",
    "PyTorch `DataLoader`, simplejpeg and Pillow's resize": "simplejpeg",
}
# With augmentation; `augment.NAMES` are the same in torchvision.
AUGMENTED = {DECODING: "decode"} | {f"towers, {name}": f"towers:{name}" for name in augment.NAMES}
AUGMENTED_PEERS = {
    f"PyTorch `DataLoader` and torchvision, {name}": f"torchvision:{name}" for name in augment.NAMES
}
MADE_BEFORE = {"towers", "towers:none", "tfrecords"}  # a store, or the TFRecords
LEAST_SIDE, MOST_SIDE = 100, 800


def photograph(rng: np.random.Generator) -> Image.Image:
    """A picture with edges, areas and grain, which JPEG encodes to the size of a photograph."""
    height, width = rng.integers(LEAST_SIDE, MOST_SIDE + 1, 2)
    coarse = rng.integers(0, 256, (12, 12, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))


def make_pictures(folder: Path, count: int) -> None:
    """So many pictures in ten classes."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / "pictures" / f"class{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(rng).save(path, quality=88)


def one_turn(python: str, program: str, side: str, folder: Path, batches: int) -> dict:
    """`pictures_per_second` and `peak_megabytes` of one process."""
    call = [python, "-m", f"benchmarks.peers.{program}", side, str(folder), str(batches)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        line = process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the loaders' own processes
        process.wait()
        if not line:
            errors.seek(0)
            raise SystemExit(f"{side} ended: {errors.read()[-1500:]}")
    return json.loads(line)


def main():
    """Measures, and prints a table."""
    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("--pictures", type=int, default=3000)
    parser.add_argument("--batches", type=int, default=40, help="of a turn")
    parser.add_argument(
        "--peers_python",
        help="of an environment with grain, torch, torchvision, Pillow and simplejpeg",
    )
    parser.add_argument("--augmented", action="store_true", help="compare augmentations instead")
    options = parser.parse_args()
    ours, peers = (AUGMENTED, AUGMENTED_PEERS) if options.augmented else (OURS, PEERS)
    sides = [(name, sys.executable, "pictures", side) for name, side in ours.items()]
    if options.peers_python:
        python = options.peers_python
        sides += [(n, python, "pictures_elsewhere", side) for n, side in peers.items()]
    found: dict[str, list[dict]] = {name: [] for name, *_ in sides}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_pictures(folder, options.pictures)
        for side in MADE_BEFORE.intersection(ours.values()):
            one_turn(sys.executable, "pictures", side, folder, 1)
        for number in range(1, options.rounds + 1):
            for name, python, program, side in sides:
                found[name].append(one_turn(python, program, side, folder, options.batches))
                rate = found[name][-1]["pictures_per_second"]
                print(f"round {number}: {name} {rate:,.0f}/s", file=sys.stderr, flush=True)
    decoding = [turn["pictures_per_second"] for turn in found[DECODING]]
    rows = []
    for name, of_side in found.items():
        rates = [turn["pictures_per_second"] for turn in of_side]
        rows.append(
            {
                "loader": name,
                "pictures_per_second": round(sorted(rates)[len(rates) // 2]),
                "all": [round(rate) for rate in rates],
                "share_of_decoding": turns.median_ratio(rates, decoding),
                "peak_megabytes": round(max(turn["peak_megabytes"] for turn in of_side)),
                "versions": of_side[0].get("versions", {}),
            }
            | turns.conditions()
        )
    turns.report(HEAD, rows, as_row, options.output)


def as_row(row: dict) -> str:
    """One row of the table."""
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    name = row["loader"] + (f" ({versions})" if versions else "")
    return (
        f"| {name} | {row['pictures_per_second']:,} | {row['share_of_decoding']:.2f} | "
        f"{row['peak_megabytes']:,} |"
    )


if __name__ == "__main__":
    main()
