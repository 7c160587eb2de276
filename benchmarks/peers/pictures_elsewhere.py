"""Sides of `benchmarks.input` without TensorFlow: Grain and PyTorch.

    python -m benchmarks.peers.pictures_elsewhere grain|pillow|simplejpeg FOLDER BATCHES
    python -m benchmarks.peers.pictures_elsewhere torchvision:AUGMENTATION FOLDER BATCHES

At the settings that were fastest on two cores: as many processes as cores.
"""

import importlib.metadata
import io
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

BATCH, SIZE = 128, 224
WARM_UP = 8  # batches
MEAN = np.array([123.675, 116.28, 103.53], np.float32)
DEVIATION = np.array([58.395, 57.12, 57.375], np.float32)


def part(height: int, width: int, random_: random.Random) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part, by torchvision's rule."""
    for _ in range(10):
        area = height * width * random_.uniform(0.08, 1.0)
        ratio = math.exp(random_.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random_.randint(0, height - h), random_.randint(0, width - w), h, w
    return 0, 0, height, width


def prepared(image: Image.Image, random_: random.Random) -> np.ndarray:
    """A random part of a picture, scaled, mirrored by a coin, with its colours scaled."""
    top, left, h, w = part(image.height, image.width, random_)
    image = image.resize(
        (SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h)
    )
    pixels = np.asarray(image, np.float32)
    if random_.random() < 0.5:
        pixels = pixels[:, ::-1]
    return (pixels - MEAN) / DEVIATION


def by_pillow(content: bytes) -> Image.Image:
    """Decoded by Pillow."""
    return Image.open(io.BytesIO(content)).convert("RGB")


def by_simplejpeg(content: bytes) -> Image.Image:
    """Decoded by simplejpeg."""
    import simplejpeg

    return Image.fromarray(simplejpeg.decode_jpeg(content))


class Files:
    """The pictures of a folder by their numbers, for the loaders below."""

    def __init__(self, folder: Path, decode, prepare=prepared):
        self.paths = sorted(folder.glob("pictures/*/*.jpg"))
        self.decode, self.prepare = decode, prepare

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number: int):
        content = self.paths[number].read_bytes()
        return self.prepare(self.decode(content), random.Random(number))


class Transformed:
    """`prepared` by a transform of torchvision, which draws its own random numbers."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image: Image.Image, random_: random.Random):
        return self.transform(image)


def of_torchvision(folder: Path, augmentation: str) -> Iterator:
    """PyTorch's DataLoader with torchvision's transforms of Pillow's images, its usual form."""
    import torch
    from torchvision.transforms import v2

    augment = {
        "none": [],
        "trivial_augment": [v2.TrivialAugmentWide()],
        "rand_augment": [v2.RandAugment()],
        "colour_jitter": [v2.ColorJitter(0.4, 0.4, 0.4)],
    }[augmentation]
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            *augment,
            v2.PILToTensor(),
            v2.ToDtype(torch.float32),
            v2.Normalize(MEAN.tolist(), DEVIATION.tolist()),
        ]
    )
    return of_torch(folder, by_pillow, Transformed(transform))


def of_torch(folder: Path, decode, prepare=prepared) -> Iterator:
    """PyTorch's DataLoader."""
    import torch
    from torch.utils import data

    torch.set_num_threads(1)
    files = Files(folder, decode, prepare)
    endless = data.RandomSampler(files, num_samples=10**8)  # one permutation after the other
    return iter(data.DataLoader(files, BATCH, sampler=endless, num_workers=os.cpu_count()))


def of_grain(folder: Path) -> Iterator:
    """Grain's DataLoader over the files themselves."""
    import grain.python as grain

    files = Files(folder, by_pillow)
    return iter(
        grain.DataLoader(
            data_source=files,
            sampler=grain.IndexSampler(
                len(files), grain.NoSharding(), shuffle=True, num_epochs=None, seed=0
            ),
            operations=[grain.Batch(BATCH, drop_remainder=True)],
            worker_count=os.cpu_count(),
        )
    )


SIDES = {
    "grain": of_grain,
    "pillow": lambda folder: of_torch(folder, by_pillow),
    "simplejpeg": lambda folder: of_torch(folder, by_simplejpeg),
    "torchvision": of_torchvision,
}
USED = {"grain": ("grain", "pillow"), "pillow": ("torch", "pillow"),
        "simplejpeg": ("torch", "simplejpeg"),
        "torchvision": ("torch", "torchvision", "pillow")}  # fmt: skip


def measure(batches: Iterator, count: int, packages: tuple[str, ...] = ()) -> None:
    """Takes so many batches after the warm-up, and prints what was measured as JSON."""
    for _ in range(WARM_UP):
        next(batches)
    begun = time.perf_counter()
    for _ in range(count):
        next(batches)
    seconds = time.perf_counter() - begun
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(
        json.dumps(
            {
                "pictures_per_second": count * BATCH / seconds,
                "peak_megabytes": peak / 1024,
                "versions": {name: importlib.metadata.version(name) for name in packages},
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    side, *augmentation = sys.argv[1].split(":")
    measure(SIDES[side](Path(sys.argv[2]), *augmentation), int(sys.argv[3]), USED[side])
