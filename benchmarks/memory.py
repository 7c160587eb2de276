"""What a data set costs in memory: the peak of whole runs beside the size of their images.

    python -m benchmarks.memory

A synthetic set is prepared as TensorFlow Datasets does, in a temporary folder. One run decodes it,
the next has it from the cache, and a third has one image for each split: what a run takes by
itself.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import turns

HEAD = """\
| run | images, MB | peak memory, MB | above a run on two images, MB | relative to the images |
|---|---|---|---|---|"""
SIDE = 128  # pixels, along each side of an image
IMAGE_MEGABYTES = SIDE * SIDE * 3 / 2**20


def main():
    """Measures, and prints a table."""
    parser = turns.parser(__doc__, rounds=1)
    parser.add_argument(
        "--megabytes", type=int, default=1200, help="of images, a tenth of them test"
    )
    options = parser.parse_args()
    turns.report(HEAD, measure(options.megabytes), as_row, options.output)


def measure(megabytes: int) -> list[dict]:
    """One object for each run."""
    count = round(megabytes / IMAGE_MEGABYTES)
    with tempfile.TemporaryDirectory() as folder:
        prepare("small", Path(folder), {"train": 1, "test": 1})
        prepare("large", Path(folder), {"train": count - count // 10, "test": count // 10})
        by_itself = peak_megabytes("small", folder)
        runs = {"decodes": "large", "from the cache": "large"}
        peaks = {run: peak_megabytes(name, folder) for run, name in runs.items()}
    size = count * IMAGE_MEGABYTES
    return [
        {
            "run": run,
            "images_megabytes": round(size),
            "peak_megabytes": round(peak),
            "above_megabytes": round(peak - by_itself),
            "to_the_images": round((peak - by_itself) / size, 2),
        }
        | turns.conditions()
        for run, peak in peaks.items()
    ]


def prepare(name: str, data_dir: Path, counts: dict[str, int]) -> None:
    """Prepares a set of images of one colour each, which are quick to write and to decode."""
    import tensorflow_datasets as tfds

    def info(self):
        features = {
            "image": tfds.features.Image(shape=(SIDE, SIDE, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def examples(self, count):
        for i in range(count):
            image = np.full((SIDE, SIDE, 3), i % 256, np.uint8)
            yield i, {"image": image, "label": i % 10}

    members = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": lambda self, _: {
            split: self._generate_examples(count) for split, count in counts.items()
        },
        "_generate_examples": examples,
        "__module__": __name__,
    }
    base = tfds.core.GeneratorBasedBuilder
    made = type(name.title(), (base,), members, skip_registration=True)
    tfds.disable_progress_bar()
    made(data_dir=str(data_dir)).download_and_prepare()


def peak_megabytes(name: str, folder: str) -> float:
    """The peak of resident memory of a run of a few steps."""
    with tempfile.TemporaryDirectory() as run:
        arguments = [
            f"--train_dir={run}/run", f"--dataset={name}", f"--data_dir={folder}",
            "--global_batch_size=16", "--max_steps=3", "--summary_every_steps=0",
        ]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "train.py", *arguments],
            stdout=subprocess.DEVNULL, env=os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"},
        )  # fmt: skip
        peak = 0.0
        while process.poll() is None:
            peak = turns.peak_megabytes(process.pid) or peak
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"train.py {' '.join(arguments)} ended with {process.returncode}")
    return peak


def as_row(row: dict) -> str:
    """One row of the table."""
    return (
        f"| {row['run']} | {row['images_megabytes']:,} | {row['peak_megabytes']:,} | "
        f"{row['above_megabytes']:,} | {row['to_the_images']:.2f} |"
    )


if __name__ == "__main__":
    main()
