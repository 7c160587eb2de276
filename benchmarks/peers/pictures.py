"""Sides of `benchmarks.input` that are TensorFlow's: decoding alone, towers, tf.data.

python -m benchmarks.peers.pictures decode|towers[:AUGMENTATION]|tfrecords FOLDER BATCHES
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import towers  # before TensorFlow: it sets it up
from benchmarks.peers import pictures_elsewhere
from input_pipeline import datasets, images

import tensorflow as tf  # isort: skip

BATCH, SIZE = pictures_elsewhere.BATCH, pictures_elsewhere.SIZE
SHUFFLED = 2000  # pictures in tf.data's buffer, which has to be large to shuffle well


def decode(folder: Path) -> Iterator:
    """Bytes in memory to pixels, on all cores."""
    contents = [path.read_bytes() for path in sorted(folder.glob("pictures/*/*.jpg"))]
    return iter(
        tf.data.Dataset.from_tensor_slices(contents)
        .repeat()
        .map(
            lambda content: tf.shape(tf.io.decode_jpeg(content, channels=3))[0],
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )


def of_towers(folder: Path, augmentation: str = "none") -> Iterator:
    """This package's own."""
    split = datasets.load(
        "folder", str(folder / "pictures"), "all", image_size=SIZE, store_dir=str(folder / "stores")
    )
    prepared = images.preprocessing("random_resized_crop", split, augmentation=augmentation)
    return iter(images.training(split, prepared, 0).batches(0, 10**6, global_batch_size=BATCH))


def tfrecords(folder: Path) -> Iterator:
    """TFRecords, a shuffling buffer, and TensorFlow's own operations for each picture."""
    file = folder / "pictures.tfrecord"
    if not file.exists():
        with tf.io.TFRecordWriter(str(file)) as writer:
            for path in sorted(folder.glob("pictures/*/*.jpg")):
                feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
                example = tf.train.Example(features=tf.train.Features(feature={"image": feature}))
                writer.write(example.SerializeToString())

    def example(record):
        features = {"image": tf.io.FixedLenFeature([], tf.string)}
        content = tf.io.parse_single_example(record, features)["image"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(content),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.io.decode_and_crop_jpeg(content, box, channels=3)
        pixels = tf.image.resize(pixels, (SIZE, SIZE), antialias=True)
        pixels = tf.image.random_flip_left_right(pixels)
        return (pixels - pictures_elsewhere.MEAN) / pictures_elsewhere.DEVIATION

    return iter(
        tf.data.TFRecordDataset(str(file))
        .repeat()
        .shuffle(SHUFFLED)
        .map(example, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )


SIDES = {"decode": decode, "towers": of_towers, "tfrecords": tfrecords}

if __name__ == "__main__":
    towers.devices.use_intra_op_threads(1)
    side, *augmentation = sys.argv[1].split(":")
    batches = SIDES[side](Path(sys.argv[2]), *augmentation)
    pictures_elsewhere.measure(batches, int(sys.argv[3]))
