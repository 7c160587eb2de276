"""Images per second of a folder of JPEGs, and of arrays, beside other libraries that read them.

    python -m benchmarks.input pictures --peer_python=...

`pictures/class/*.jpg` become squares of 224 x 224, 64 a batch, by a random crop and a mirroring;
`image_dataset_from_directory` only scales them. Arrays are 50,000 of 32 x 32, 128 a batch, as they
are. Each run is a process of its own, with as many threads or processes as there are cores; the
libraries take turns. The first batch counts from the end of the imports.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

SIZE, CORES = 224, len(os.sched_getaffinity(0))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [50000, 32, 32, 3], and labels, int64 [50000]."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (50_000, 32, 32, 3), np.uint8), random.integers(0, 10, 50_000)


# Each begins with its imports, which are not measured.


def towers(folder: str, batch: int, augment: str = "none") -> Iterator:
    from input_pipeline import arrays as by_step
    from input_pipeline import datasets, images, preprocess

    yield
    if folder:
        split = datasets.load("folder", folder, "all", image_size=SIZE)
        how = preprocess.for_images("random_resized_crop", split.image_shape, augment)
        source = images.training(split, how, 0)
    else:
        how = preprocess.for_images("pad_crop_flip", (32, 32, 3), augment)
        source = by_step.batches(*arrays(), augment=None if augment == "none" else how.in_training)
    yield from source.batches(0, 10**9, global_batch_size=batch)


def tf_data(folder: str, batch: int) -> Iterator:
    import keras
    import tensorflow as tf

    yield
    if folder:
        data = keras.utils.image_dataset_from_directory(
            folder, image_size=(SIZE, SIZE), batch_size=batch, verbose=False
        )
    else:
        data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(50_000).batch(batch)
    yield from data.repeat().prefetch(tf.data.AUTOTUNE)


class Pictures:
    """Each a random square part, as a `Dataset` of PyTorch's or a source of Grain's."""

    def __init__(self, folder: str):
        self._paths = sorted(pathlib.Path(folder).glob("*/*"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> np.ndarray:
        from PIL import Image

        random = np.random.default_rng()
        with Image.open(self._paths[number]) as image:
            side = np.sqrt(random.uniform(0.08, 1)) * min(image.size)
            left, top = random.uniform(0, np.subtract(image.size, side))
            box = left, top, left + side, top + side
            pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), 2, box=box))
        return (pixels[:, :: random.choice([-1, 1])].astype(np.float32) - 120.0) * (1 / 58.0)


def pytorch(folder: str, batch: int) -> Iterator:
    import torch

    yield
    data = Pictures(folder) if folder else list(zip(*arrays(), strict=True))
    workers = {"num_workers": CORES, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, **workers)
    while True:
        yield from loader


def grain(folder: str, batch: int) -> Iterator:
    import grain as library

    yield
    source = Pictures(folder) if folder else list(zip(*arrays(), strict=True))
    data = library.MapDataset.source(source).shuffle(seed=0).repeat()
    yield from data.to_iter_dataset(library.ReadOptions(num_threads=CORES)).batch(batch)


SIDES = {"towers": towers, "tf.data": tf_data, "pytorch": pytorch, "grain": grain}
HEAD = "| what | library | images/s | first batch, s |\n|---|---|---|---|"


def side(what: str, name: str, folder: str, seconds: str, *augment: str) -> None:
    """Prints the seconds to the first batch, and images per second after a tenth of the time."""
    reading = SIDES[name](*((folder, 64) if what == "folder" else ("", 128)), *augment)
    next(reading)  # what it imports
    begun = time.perf_counter()
    next(reading)
    first, warm = time.perf_counter() - begun, time.perf_counter() + float(seconds) / 10
    begun, images = None, 0
    for batch in reading:
        now = time.perf_counter()
        if begun is None and now > warm:
            begun = now
        elif begun is not None:
            images += len(batch[0] if isinstance(batch, (tuple, list)) else batch)
            if now > begun + float(seconds):
                print(first, images / (now - begun), flush=True)
                os._exit(0)


def main() -> None:
    """Measures, and prints a table."""
    from benchmarks import turns

    parser = turns.parser(__doc__, rounds=3)
    parser.add_argument("folder", help="of pictures, with a folder in it for each class")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument("--peer_python", default=sys.executable, help="that has PyTorch and Grain")
    parser.add_argument("--augment", help="of towers alone, such as trivial_augment")
    options = parser.parse_args()
    augment = [options.augment] if options.augment else []
    names = ["towers"] if augment else SIDES
    found: dict[tuple, list] = {(w, name): [] for w in ("folder", "arrays") for name in names}
    for _ in range(options.rounds):
        for (what, name), values in found.items():
            python = options.peer_python if name in ("pytorch", "grain") else sys.executable
            command = [python, "-m", "benchmarks.input", "side", what, name, options.folder]
            done = subprocess.run(
                [*command, str(options.seconds), *augment], stdout=subprocess.PIPE, check=True
            )
            values.append([float(word) for word in done.stdout.split()])
    rows = (
        {"what": what, "library": name, "first_and_rate": values} | turns.conditions()
        for (what, name), values in found.items()
    )
    turns.report(HEAD, rows, as_row, options.output)


def as_row(row: dict) -> str:
    """One row of the table."""
    first, rate = map(statistics.median, zip(*row["first_and_rate"], strict=True))
    return f"| {row['what']} | {row['library']} | {rate:,.0f} | {first:.2f} |"


if __name__ == "__main__":
    side(*sys.argv[2:]) if sys.argv[1:2] == ["side"] else main()
