"""A small data set prepared as TensorFlow Datasets does, for tests of what reads one."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def prepare(
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
