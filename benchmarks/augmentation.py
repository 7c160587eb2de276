"""What augmentation costs: batches of uint8 images in memory, by turns, in images/s.

python -m benchmarks.augmentation
"""

import statistics
import time

import numpy as np
from absl import app, flags

from input_pipeline import augment, batches, mixing, preprocess

_ROUNDS = flags.DEFINE_integer("rounds", 3, "Turns of each.", lower_bound=1)
_SIZES = {32: (128, 40), 224: (32, 12)}  # of an image: batch, and how many are timed
_WARM_UP, _IMAGES, _CLASSES = 4, 512, 10
_MIXED = {
    "mixup": mixing.Mixing(0.2, 0.0, _CLASSES),
    "cutmix": mixing.Mixing(0.0, 1.0, _CLASSES),
}


def rate(images: np.ndarray, name: str) -> float:
    """Images/s with `pad_crop_flip` and that augmentation, or mixed so."""
    augmentation = "none" if name in _MIXED else name
    how = preprocess.for_images("pad_crop_flip", images.shape[1:], augmentation)
    batch, count = _SIZES[images.shape[1]]
    made = batches.training_batches(
        images,
        np.zeros(len(images), np.int32),
        global_batch_size=batch,
        seed=0,
        last_step=_WARM_UP + count,
        preprocess=how.in_training,
        mix=_MIXED.get(name),
    )
    reading = iter(made)
    for _ in range(_WARM_UP):
        next(reading)
    began = time.perf_counter()
    for _ in reading:
        pass
    return batch * count / (time.perf_counter() - began)


def main(_) -> None:
    """Prints medians, and their share of the rate without augmentation."""
    for size in _SIZES:
        images = np.random.default_rng(0).integers(0, 256, (_IMAGES, size, size, 3), np.uint8)
        rates: dict[str, list[float]] = {name: [] for name in (*augment.NAMES, *_MIXED)}
        for _ in range(_ROUNDS.value):
            for name, found in rates.items():
                found.append(rate(images, name))
        plain = statistics.median(rates["none"])
        for name, found in rates.items():
            median = statistics.median(found)
            print(f"{size} x {size}  {name:16}{median:>8,.0f} images/s  {median / plain:.2f}")


if __name__ == "__main__":
    app.run(main)
