"""A small data set prepared as TensorFlow Datasets does, for tests of what reads one."""

from pathlib import Path

import numpy as np


def prepare(
    data_dir: Path,
    splits: tuple[str, ...] = ("train", "test"),
    num_shards: int = 1,
    size: tuple[int, int] = (4, 6),
) -> None:
    """Prepares `tiny_photos`: RGB of one size, image i all i, label i % 3, 25 in each split."""
    import tensorflow_datasets as tfds

    class TinyPhotos(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(*size, 3), encoding_format="png"),
                "label": tfds.features.ClassLabel(names=["ant", "bee", "cow"]),
                "remark": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples() for split in splits}

        def _generate_examples(self):
            for i in range(25):
                image = np.full((*size, 3), i, np.uint8)
                yield i, {"image": image, "label": i % 3, "remark": "a remark"}

    config = tfds.download.DownloadConfig(num_shards=num_shards)
    TinyPhotos(data_dir=str(data_dir)).download_and_prepare(download_config=config)
