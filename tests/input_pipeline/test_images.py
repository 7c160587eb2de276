"""Batches of pictures that are decoded when they are needed, as a function of seed and step."""

import dataclasses
import functools

import numpy as np
import photos
import psutil
import pytest
import tensorflow as tf
import toys

from input_pipeline import batches, checks, datasets, images, mixing, pictures, preprocess

BATCH, SIZE = 8, 16


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """33 pictures of different sizes; one is a PNG, and one turned by EXIF."""
    root = photos.folder(tmp_path_factory.mktemp("data") / "pictures", 11)
    (root / "ant" / "000.jpg").write_bytes(photos.encoded(photos.picture(40, 30), "PNG"))
    exif = photos.Image.Exif()
    exif[0x0112] = 6
    (root / "ant" / "001.jpg").write_bytes(photos.encoded(photos.picture(40, 30), exif=exif))
    return datasets.load("folder", str(root), "all", image_size=SIZE)


def preparation(split, name, augmentation="none", random_erasing=0.0, **alphas):
    mixed = mixing.Mixing(**alphas, num_classes=len(split.class_names))
    return preprocess.for_images(name, split.image_shape, augmentation, random_erasing, mixed)


PREPARED = [
    ("random_resized_crop", {"random_erasing": 0.5, "mixup_alpha": 0.4, "cutmix_alpha": 1.0}),
    ("random_resized_crop", {}),
    ("random_resized_crop", {"augmentation": "trivial_augment", "random_erasing": 0.5}),
    ("pad_crop_flip", {}),
    ("pad_crop_flip", {"augmentation": "rand_augment", "random_erasing": 0.5}),
]


@pytest.fixture(
    params=[PREPARED[0], *(pytest.param(each, marks=pytest.mark.long) for each in PREPARED[1:])]
)
def prepared(request, split):
    name, more = request.param
    return preparation(split, name, **more)


def taken(source, first, last) -> list[tuple]:
    batches = source.batches(first, last, global_batch_size=BATCH)
    return [tuple(part.numpy() for part in batch) for batch in batches]


def test_a_batch_is_the_same_wherever_reading_begins(split, prepared):
    source = images.training(split, prepared, seed=3)
    whole = taken(source, 0, 33)
    labels = np.concatenate([labels for _, labels in whole])
    for epoch in range(0 if labels.ndim == 2 else 8):  # each picture once
        assert np.bincount(labels[epoch * 33 :][:33]).tolist() == [11, 11, 11]
    assert whole[0][0].shape == (BATCH, SIZE, SIZE, 3) and whole[0][0].dtype == np.float32
    np.testing.assert_equal(taken(source, 4, 7), whole[4:7])


def test_a_picture_is_cut_then_augmented_then_mixed(split):
    options = {"augmentation": "trivial_augment", "random_erasing": 1.0, "mixup_alpha": 0.4}
    how = preparation(split, "random_resized_crop", **options)
    [result] = taken(images.training(split, how, seed=3), 2, 3)
    ids = batches.example_ids(2, num_examples=33, global_batch_size=BATCH, seed=3)
    seed = batches.augmentation_seed(2, seed=3)
    draws = batches.Draws(seed, tf.zeros([BATCH], tf.bool), BATCH)
    drawn = draws.uniform(images._CUT_DRAW, [pictures.NUMBERS_OF_A_CUT]).numpy().tolist()
    contents, labels = zip(*map(split.read, ids.numpy()), strict=True)
    squares = [
        pictures.square(content, functools.partial(pictures.at_random, drawn=numbers), SIZE)
        for content, numbers in zip(contents, drawn, strict=True)
    ]
    expected = how.mixed(how.in_training(tf.stack(squares), draws), np.array(labels), draws)
    toys.assert_close(result, expected, rtol=0, atol=1e-5)


def test_evaluation_is_of_the_middle_and_of_each_once(split, prepared):
    evaluated = images.evaluated(split, prepared, BATCH)
    for _ in range(2):
        result = list(evaluated)
        assert [len(labels) for _, labels in result] == [8, 8, 8, 8, 1]
    labels = np.concatenate([labels for _, labels in result])
    np.testing.assert_array_equal(labels, [0] * 11 + [1] * 11 + [2] * 11)
    pixels = np.concatenate([pixels for pixels, _ in result])
    for number in (0, 17, 32):
        square = pictures.square(split.read(number)[0], pictures.middle, prepared.raw_shape[0])
        np.testing.assert_array_equal(pixels[number], prepared.evaluate(square[None])[0])


def test_a_label_without_a_class_is_refused(split):
    wrong = dataclasses.replace(split, read=lambda number: (split.read(number)[0], -1))
    with pytest.raises(checks.DataError, match="has label -1: must be 0 to 2"):
        wrong.some(1)


def tfds_set(tmp_path, count, size=(None, None), **options) -> tuple[str, list[bytes]]:
    """Where a set of so many JPEGs lies, number n of class n % 3; and the JPEGs."""
    sizes = [(size[0] or 24 + n, size[1] or 30) for n in range(count)]
    contents = [photos.encoded(photos.picture(*each, n)) for n, each in enumerate(sizes)]
    photos.prepare_tiny(tmp_path / "data", ("train",), 3, size, contents, **options)
    return str(tmp_path / "data"), contents


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("size", [(24, 30), (None, None)], ids=["one size", "different sizes"])
def test_a_tfds_set_of_pictures(tmp_path, size, file_format):
    """One of different sizes, and any for which a size is asked for."""
    where, contents = tfds_set(tmp_path, 10, size, file_format=file_format)
    if size[0]:
        held = datasets.load("tiny_photos", where, "train")
        assert isinstance(held, datasets.ImageArrays)
        pixels = [tf.io.decode_jpeg(content).numpy().tobytes() for content in contents]
        numbers = [pixels.index(image.tobytes()) for image in held.some(10)]
        assert sorted(numbers) == list(range(10))
        assert [n % 3 for n in numbers] == held.labels.tolist()
    result = datasets.load("tiny_photos", where, "train", image_size=224 if size[0] else None)
    assert result.image_shape == (224, 224, 3) and result.class_names == ("ant", "bee", "cow")
    assert dict(map(result.read, range(10))) == {jpeg: n % 3 for n, jpeg in enumerate(contents)}
    assert result.name(3) == "train/3"


def test_tfrecords_too_large_for_memory_are_refused_with_the_command_that_converts_them(
    tmp_path, monkeypatch
):
    where, _ = tfds_set(tmp_path, 4, file_format="tfrecord")
    memory = psutil.virtual_memory()._replace(available=10**6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    command = f"tfds convert_format --dataset_version_dir={where}/tiny_photos/1.0.0 --out_file"
    with pytest.raises(checks.DataError, match=command):
        datasets.load("tiny_photos", where, "train")


def test_array_records_that_are_damaged_are_named(tmp_path):
    where, _ = tfds_set(tmp_path, 42, file_format="array_record")
    [path, *_] = sorted((tmp_path / "data").rglob("*.array_record*"))
    result = datasets.load("tiny_photos", where, "train", image_size=SIZE)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(checks.DataError, match="train/0 cannot be read"):
        result.some(1)
    path.unlink()
    with pytest.raises(checks.DataError, match=path.name):
        datasets.load("tiny_photos", where, "train", image_size=SIZE)


@pytest.fixture(params=["encoded", "in memory"])
def any_split(request, split):
    if request.param == "encoded":
        return split
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    labels = np.arange(40, dtype=np.int32) % 10
    return datasets.ImageArrays(pixels, labels, class_names=tuple("0123456789"), source="drawn")


def test_a_training_has_a_fingerprint_of_all_that_decides_its_batches(any_split):
    options = [
        {"name": "pad_crop_flip"},
        {"name": "shift_alternating_flip"},
        *({"augmentation": name} for name in ("trivial_augment", "rand_augment")),
        *({"random_erasing": share} for share in (0.5, 0.25)),
        *({name: 0.4} for name in ("mixup_alpha", "cutmix_alpha")),
    ]
    splits = [any_split] * len(options)
    if not isinstance(any_split, datasets.ImageArrays):
        splits.append(dataclasses.replace(any_split, image_size=SIZE + 1))
        options.append({})

    def fingerprint(split, options, seed=0):
        how = preparation(split, **({"name": "pad_crop_flip"} | options))
        return images.training(split, how, seed).fingerprint

    result = [*map(fingerprint, splits, options), fingerprint(any_split, {}, 1)]
    assert len(set(result)) == len(result)
    assert fingerprint(any_split, {}) == result[0]


def test_preprocessing_of_other_images_is_refused(any_split):
    other = preprocess.for_images("pad_crop_flip", (SIZE + 4, SIZE, 3))
    for use in (images.training, images.evaluated):
        with pytest.raises(ValueError, match=r"was made for images of \[20, 16, 3\], but"):
            use(any_split, other, BATCH)
    if isinstance(any_split, datasets.ImageArrays):
        crops = preprocess.for_images("random_resized_crop", any_split.image_shape)
        with pytest.raises(checks.DataError, match="crops pictures while it decodes them"):
            images.training(any_split, crops, 0)
