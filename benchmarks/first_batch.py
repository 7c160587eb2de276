"""From a finished store to its first batch: seconds for so many pictures.

    python -m benchmarks.first_batch --pictures=1300000 --folder=/tmp/store

The store is made of one small JPEG many times over, about 2 GB for 1.3 million of them.
"""

import io
import pathlib
import statistics
import time

import numpy as np
from absl import app, flags
from PIL import Image

from input_pipeline import images, pictures, store, stored_images

_PICTURES = flags.DEFINE_integer("pictures", 100_000, "How many.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", None, "Where the store is made, or lies.", required=True)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each start is measured.", lower_bound=1)
_BATCH, _SIZE, _CLASSES = 128, 64, 1000


class _Source:
    """What `store` records about where pictures came from."""

    description, class_names, files = "one JPEG", tuple(map(str, range(_CLASSES))), None


def make(path: pathlib.Path, count: int) -> None:
    """Writes a store of `count` pictures as `store.open_or_make` does, without looking at each."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG", quality=30)
    header = pictures.Header(pictures.JPEG, 64, 48, 1)

    path.mkdir(parents=True)
    parts = []
    for number, first in enumerate(range(0, count, store.PICTURES_PER_SHARD)):
        last = min(first + store.PICTURES_PER_SHARD, count)
        looked_at = (
            (store.Example(f"{place}.jpg", place % _CLASSES, buffer.getvalue()), header)
            for place in range(first, last)
        )
        parts.append(store._write_part(path, number, looked_at, last - first, [], in_place=False))
    store._finish(path, _Source, parts)


def first_batch(path: pathlib.Path, step: int) -> float:
    """Seconds from opening the store to the batch of that step."""
    began = time.perf_counter()
    split = stored_images.StoredImages(store._open(path, _Source), _SIZE, "")
    how = images.preprocessing("random_resized_crop", split)
    source = images.training(split, how, seed=0)
    next(source.batches(step, step + 100, global_batch_size=_BATCH))
    return time.perf_counter() - began


def main(_) -> None:
    """Prints the least, the median and the largest of the rounds, from the start and resumed."""
    path = pathlib.Path(_FOLDER.value) / str(_PICTURES.value)
    if not path.exists():
        make(path, _PICTURES.value)
    first_batch(path, 0)  # TensorFlow's own start
    for step in (0, 1_000_000):
        taken = sorted(first_batch(path, step) for _ in range(_ROUNDS.value))
        print(
            f"{_PICTURES.value:,} pictures, batch of step {step:,}: {taken[0]:.2f} s, "
            f"median {statistics.median(taken):.2f}, at most {taken[-1]:.2f}"
        )


if __name__ == "__main__":
    app.run(main)
