"""Reads an image-classification set through TensorFlow Datasets (TFDS), prepared first if need be.

TFDS itself waits minutes for a network that is not there. So the order is: is the set prepared? are
its archives in `<data_dir>/downloads/manual/`, where TFDS looks first? can the host of the first be
reached within seconds? Only then does TFDS download.
"""

import contextlib
import difflib
import hashlib
import json
import logging
import math
import os
import pathlib
import re
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from . import checks, images

NETWORK_CHECK_SECONDS = 4.0

_READ_BYTES, _READ_PICTURES = 2**24, 256  # of images; encoded: at a time

_log = logging.getLogger(__name__)


def load(
    name: str, data_dir: pathlib.Path, split: str, image_size: int | None, read_only: bool
) -> images.Images:
    """Loads one split, as `datasets.load`: decoded, or as pictures that stay encoded."""
    builder = open_prepared(name, data_dir, read_only)
    splits = [name for name, info in builder.info.splits.items() if info.num_examples]
    checks.check_split(builder.name, split, splits)
    if image_size is not None or None in builder.info.features["image"].shape:
        return _pictures(builder, split, image_size or images.IMAGE_SIZE)
    names = tuple(builder.info.features["label"].names)
    arrays = read(builder, split)
    return images.ImageArrays(*arrays, class_names=names, source=_source(builder))


def open_prepared(name: str, data_dir: pathlib.Path, read_only: bool) -> tfds.core.DatasetBuilder:
    """A builder whose data lie in `data_dir`, prepared now if they did not, unless `read_only`.

    The name may have a configuration and a version: `set/config:1.0.0`.
    """
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=str(data_dir))
    except Exception as error:  # whatever TFDS raises of names, files and missing packages
        problem = f"dataset={name} cannot be opened: {_reason(error)} (in {data_dir})"
        if isinstance(error, tfds.core.registered.DatasetNotFoundError):
            known = ["shapes", "folder", *tfds.list_builders(with_community_datasets=False)]
            near = difflib.get_close_matches(re.split("[/:]", name.lower())[0], known)
            problem += f". Did you mean {' or '.join(near) or 'cifar10, cifar100 or shapes'}?"
        raise checks.DataError(problem) from error
    _check_features(builder)
    # TFDS would warn of a folder without data where there is no folder at all.
    if builder.data_path.exists():
        if not builder.is_prepared():  # TFDS reads it as a set without splits
            raise checks.DataError(f"{builder.data_path} holds no data set; remove the folder")
        return builder
    if read_only:
        raise checks.DataError(
            f"{builder.name} is not prepared in {builder.data_dir_root}, and a dry run "
            "(`read_only`) downloads and prepares nothing. Train once without it, or point "
            "`data_dir` to a folder that holds the set prepared."
        )
    _prepare(builder)
    return builder


def _reason(error: BaseException) -> str:
    """What TFDS or TensorFlow says, on one line, without the call that they put before it."""
    line = (str(error).strip().splitlines() or [""])[0].rpartition('}": ')[2]
    line = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)
    says_it_all = type(error) in (AssertionError, ValueError)
    return line if says_it_all else f"{type(error).__name__}: {line}"


def _check_features(builder: tfds.core.DatasetBuilder) -> None:
    """Refuses a set that is not image classification, before anything is downloaded."""
    features = builder.info.features
    is_dict = isinstance(features, tfds.features.FeaturesDict)
    by_name: Any = dict(features.items()) if is_dict else {}
    image, label = by_name.get("image"), by_name.get("label")
    is_image = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    is_class = isinstance(label, tfds.features.ClassLabel) and label.num_classes
    if not (is_image and image.shape[-1] and is_class):
        raise checks.DataError(
            f"dataset={builder.name} cannot be used: it must have `image` (uint8 [height, width, "
            f"channels]) and `label` (a class), but has {' '.join(repr(features).split())}."
        )


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Downloads (or takes the archives brought by hand) and prepares."""
    name, root = builder.name, pathlib.Path(builder.data_dir_root)
    manual = root / "downloads" / "manual"
    missing = {}  # archives, by their addresses
    for url, info in (builder.url_infos or {}).items():
        archive = info.filename or os.path.basename(urllib.parse.urlsplit(url).path)
        if not (manual / archive).is_file():
            missing[url] = archive
    by_hand = (
        f"By hand: put {', '.join([*missing.values()][:3]) or 'its files'} in {manual}/, or point "
        "`data_dir` to a folder where it is prepared. dataset=shapes needs no files at all."
    )
    for url in [url for url in missing if url.startswith("http")][:1]:
        if problem := _unreachable(url):
            raise checks.DataError(
                f"{name} is not in {root}, and {urllib.parse.urlsplit(url).hostname} cannot be "
                f"reached to download it ({problem}; https_proxy and the like count). {by_hand}"
            )
        _log.warning("Downloading %s to %r; this can take a while.", name, str(root))
    try:
        builder.download_and_prepare()
    except Exception as error:  # of the network, the disk, archives, and packages that are missing
        raise checks.DataError(
            f"{name} could not be downloaded and prepared in {root}: {_reason(error)} {by_hand}"
        ) from error


def _unreachable(url: str) -> str:
    """Why this address does not answer within seconds; empty if it does."""
    import requests  # as TFDS does, so the same proxies count

    problems = ["timeout"]

    def ask() -> None:
        try:
            requests.head(url, timeout=NETWORK_CHECK_SECONDS).close()
            problems.append("")
        except requests.exceptions.RequestException as error:
            problems.append(type(error).__name__)  # its text may have a proxy's password in it

    # In a thread, because the look-up of a name heeds no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(NETWORK_CHECK_SECONDS)
    return problems[-1]


def _source(builder: tfds.core.DatasetBuilder) -> str:
    return f"TFDS {builder.info.full_name} in {builder.data_dir_root}"


def read(builder: tfds.core.DatasetBuilder, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one split whose images have one size, in the order of its files.

    Returns:
      images: uint8 [n, height, width, channels]; labels: int64 [n].
    """
    shape = builder.info.features["image"].shape
    count = builder.info.splits[split].num_examples
    checks.check_memory(
        f"dataset={builder.name} is too large: {count:,} images of {list(shape)}",
        count * math.prod(shape),
        "With `image_size` the pictures are decoded when they are needed.",
    )

    def decode(content, label):
        image = tf.io.decode_image(content, shape[-1], expand_animations=False)
        return tf.ensure_shape(image, shape), label

    pixels, labels = np.empty((count, *shape), np.uint8), np.empty(count, np.int64)
    with _damage_named(builder):
        examples = _examples(builder, split).map(decode, tf.data.AUTOTUNE)
        at_a_time = max(1, min(count, _READ_BYTES // math.prod(shape)))
        for number, batch in enumerate(examples.batch(at_a_time).as_numpy_iterator()):
            place = slice(number * at_a_time, number * at_a_time + len(batch[1]))
            pixels[place], labels[place] = batch
    return pixels, labels


def _pictures(
    builder: tfds.core.DatasetBuilder, split: str, image_size: int
) -> images.EncodedImages:
    """The pictures of a split, which stay encoded: on disk in ArrayRecord files, else in memory."""
    info = builder.info.splits[split]
    with _damage_named(builder):
        files = [(os.path.basename(path), os.path.getsize(path)) for path in info.filepaths]
        records = _records(builder, split)
    about = {
        "name": builder.info.full_name,
        "split": split,
        "class_names": builder.info.features["label"].names,
        "files": files,
    }
    if records is None:
        checks.check_memory(
            f"dataset={builder.name} is too large: the pictures of {split}",
            sum(size for _, size in files),
            "As ArrayRecord files they are read from disk; this adds such files to the set: "
            "pip install apache-beam mlcroissant && tfds convert_format "
            f"--dataset_version_dir={builder.data_path} --out_file_format=array_record",
        )
        with _damage_named(builder):
            batches = _examples(builder, split).batch(_READ_PICTURES).as_numpy_iterator()
            pairs = (pair for batch in batches for pair in zip(*batch, strict=True))
            records = [{"image": image, "label": label} for image, label in pairs]

    def read_one(number: int) -> tuple[bytes, int]:
        try:
            example = records[number]
        except Exception as error:  # whatever the reader of damaged files raises
            raise ValueError(_reason(error)) from error
        return bytes(example["image"]), int(example["label"])

    return images.EncodedImages(
        read=read_one,
        name=lambda number: f"{split}/{number}",
        num_examples=info.num_examples,
        class_names=tuple(about["class_names"]),
        source=_source(builder),
        fingerprint=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
        image_size=image_size,
    )


def _records(builder: tfds.core.DatasetBuilder, split: str):
    """The split's examples with random access, undecoded; None without ArrayRecord files."""
    # Read from the files alone: a builder with code does not know of formats added later.
    on_disk = tfds.builder_from_directory(builder.data_path)
    if "array_record" not in {kind.value for kind in on_disk.info.available_file_formats()}:
        return None
    return on_disk.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})


def _examples(builder: tfds.core.DatasetBuilder, split: str) -> tf.data.Dataset:
    """(encoded picture, label) in the order of the split's files, all of them or an error."""
    if builder.info.as_proto.file_format == "array_record":
        records = _records(builder, split)
        examples = tf.data.Dataset.from_generator(
            lambda: ((record["image"], record["label"]) for record in records),
            output_signature=(tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)),
        )
    else:
        skipping = {"image": tfds.decode.SkipDecoding()}
        examples = builder.as_dataset(
            split=split,
            shuffle_files=False,
            decoders=tfds.decode.PartialDecoding({"image": True, "label": True}, skipping),
            read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
        ).map(lambda example: (example["image"], example["label"]))
    count = builder.info.splits[split].num_examples
    return examples.apply(tf.data.experimental.assert_cardinality(count))


@contextlib.contextmanager
def _damage_named(builder: tfds.core.DatasetBuilder) -> Iterator[None]:
    """Makes a sentence of whatever the readers of files raise."""
    try:
        yield
    except Exception as error:
        raise checks.DataError(
            f"{builder.name} in {builder.data_path} cannot be read: {_reason(error)}. Copy the set "
            "again, or remove that folder and let it be prepared again."
        ) from error
