"""Pictures of different sizes and formats, for tests of what reads them."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = {"ant": (200, 60, 60), "bee": (60, 200, 60), "cow": (60, 60, 200)}


def picture(height: int, width: int, seed: int = 0, colour=(128, 128, 128)) -> Image.Image:
    """Smooth noise around a colour, which a JPEG keeps."""
    noise = np.random.default_rng(seed).normal(0, 40, (-(-height // 8), -(-width // 8), 3))
    noise = noise.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    return Image.fromarray(np.clip(noise + np.array(colour), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    """The bytes of a file of that format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def folder(root: Path, count: int = 12, splits: tuple[str, ...] = ("",), first: int = 0) -> Path:
    """So many JPEGs of 24 to 60 pixels a side in the folder of each class, of each split."""
    sizes = np.random.default_rng(first).integers(24, 60, (len(splits), len(CLASSES), count, 2))
    for of_split, split in zip(sizes, splits, strict=True):
        for of_class, (name, colour) in zip(of_split, CLASSES.items(), strict=True):
            place = root / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number, (height, width) in enumerate(of_class):
                image = picture(height, width, number + len(split), colour)
                image.save(place / f"{first + number:03d}.jpg", quality=90)
    return root


def names(split) -> list[str]:
    """What a person calls each image of a split of a data set."""
    return list(map(split.name, range(split.num_examples)))


def prepare_tiny(
    data_dir: Path,
    splits: tuple[str, ...] = ("train", "test"),
    num_shards: int = 1,
    size: tuple[int | None, int | None] = (4, 6),
    contents: Sequence[bytes] = (),
    **options,
) -> None:
    """Prepares `tiny_photos`: label i % 3; of these JPEGs, or RGB of one size, image i all i, 25.

    `options` are those of TFDS's builder, such as `file_format`.
    """
    import tensorflow_datasets as tfds

    class TinyPhotos(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            kind = "jpeg" if contents else "png"
            features = {
                "image": tfds.features.Image(shape=(*size, 3), encoding_format=kind),
                "label": tfds.features.ClassLabel(names=["ant", "bee", "cow"]),
                "remark": tfds.features.Text(),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples() for split in splits}

        def _generate_examples(self):
            plain = (np.full((*size, 3), i, np.uint8) for i in range(25))
            for i, image in enumerate(map(io.BytesIO, contents) if contents else plain):
                yield i, {"image": image, "label": i % 3, "remark": "a remark"}

    config = tfds.download.DownloadConfig(num_shards=num_shards)
    TinyPhotos(data_dir=str(data_dir), **options).download_and_prepare(download_config=config)
