"""Batches of pictures that are decoded when they are needed, as a function of seed and step."""

import dataclasses
import os
import time

import numpy as np
import photos
import pytest
import tensorflow as tf

from input_pipeline import (
    batches,
    cuts,
    datasets,
    decoded,
    distortions,
    encoded,
    images,
    pictures,
    preprocess,
    reading,
)

BATCH, SIZE = 8, 16
_OPTIONS = ("augmentation", "random_erasing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """33 pictures of different sizes."""
    return photos.folder(tmp_path_factory.mktemp("data") / "pictures", 11)


@pytest.fixture(scope="module")
def split(folder):
    return datasets.load("folder", str(folder), "all", image_size=SIZE)


@pytest.fixture(
    params=[
        pytest.param(("random_resized_crop",), marks=pytest.mark.long),
        ("random_resized_crop", "none", 0.5),
        pytest.param(("random_resized_crop", "trivial_augment", 0.5), marks=pytest.mark.long),
        pytest.param(("pad_crop_flip",), marks=pytest.mark.long),
        pytest.param(("pad_crop_flip", "rand_augment", 0.5), marks=pytest.mark.long),
    ],
    ids=lambda param: "-".join(map(str, param)),
)
def prepared(request, split):
    name, *more = request.param
    return images.preprocessing(name, split, **dict(zip(_OPTIONS, more, strict=False)))


def taken(source, first, last, share=None) -> list[tuple]:
    batches = source.batches(first, last, global_batch_size=BATCH, share=share)
    return [tuple(part.numpy() for part in batch) for batch in batches]


def test_batches_hold_each_picture_once_an_epoch(split, prepared):
    source = images.training(split, prepared, seed=3)
    labels = np.concatenate([labels for _, labels in taken(source, 0, 33)])
    for epoch in range(8):
        assert np.bincount(labels[epoch * 33 : epoch * 33 + 33]).tolist() == [11, 11, 11]
    assert labels.dtype == np.int32


def test_a_batch_is_the_same_wherever_a_run_goes_on(split, prepared):
    source = images.training(split, prepared, seed=3)
    whole, later = taken(source, 0, 7), taken(source, 4, 7)
    for (images_, labels), (images_later, labels_later) in zip(whole[4:], later, strict=True):
        np.testing.assert_array_equal(images_, images_later)
        np.testing.assert_array_equal(labels, labels_later)
    assert whole[0][0].shape == (BATCH, SIZE, SIZE, 3) and whole[0][0].dtype == np.float32


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(range(0, 3), marks=pytest.mark.long),
        range(3, 8),
        pytest.param(range(5, 6), marks=pytest.mark.long),
    ],
)
def test_a_share_is_that_of_the_whole_batch(split, prepared, share):
    source = images.training(split, prepared, seed=3)
    for whole, part in zip(taken(source, 0, 3), taken(source, 0, 3, share), strict=True):
        for in_whole, in_part in zip(whole, part, strict=True):
            np.testing.assert_array_equal(in_whole[share.start : share.stop], in_part)


@pytest.mark.long
def test_augmentation_is_of_the_same_parts(split):
    """One picture is cut, then augmented, then scaled, then a rectangle is erased."""
    plain, augmented = (
        images.preprocessing("random_resized_crop", split, **more)
        for more in ({}, {"augmentation": "trivial_augment", "random_erasing": 1.0})
    )
    [whole, *_], [changed, *_] = (
        taken(images.training(split, how, seed=3), 0, 1) for how in (plain, augmented)
    )
    ids = batches.example_ids(0, num_examples=33, global_batch_size=BATCH, seed=3)
    drawn_from = batches.augmentation_seed(0, seed=3)
    draws = batches.Draws(drawn_from, tf.zeros([BATCH], tf.bool), None, BATCH)
    cut = cuts.at_random(headers(split, ids.numpy())[:, :2], draws, SIZE)
    plan = augmented.augmentation.plan(draws, BATCH)
    for place, number in enumerate(ids.numpy()):
        square = by_hand(split, number, cuts.Cut(*(part[place : place + 1] for part in cut)))
        expected = preprocess.scale_colours(square[np.newaxis]).numpy()
        np.testing.assert_array_equal(whole[0][place], expected[0])
        pixels = tf.constant(np.clip(np.rint(square), 0, 255).astype(np.uint8))
        pixels = distortions.apply(pixels, plan.operations[place, 0], plan.values[place, 0])
        expected = preprocess.scale_colours(pixels[tf.newaxis]).numpy()[0]
        top, left, height, width = plan.erased[place].numpy()
        expected[top : top + height, left : left + width] = 0.0
        np.testing.assert_array_equal(changed[0][place], expected)
    np.testing.assert_array_equal(whole[1], changed[1])


def test_pictures_are_mixed_last_and_the_same_in_shares(split):
    plain, mixed = (
        images.preprocessing("random_resized_crop", split, random_erasing=0.5, **alphas)
        for alphas in ({}, {"mixup_alpha": 0.4, "cutmix_alpha": 1.0})
    )
    [unmixed], [whole] = (
        taken(images.training(split, how, seed=3), 2, 3) for how in (plain, mixed)
    )
    drawn_from = batches.augmentation_seed(2, seed=3)
    draws = batches.Draws(drawn_from, tf.zeros([BATCH], tf.bool), None, BATCH)
    for found, expected in zip(whole, mixed.mixed(*unmixed, draws), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert whole[1].shape == (BATCH, 3) and np.abs(whole[0] - unmixed[0]).max() > 0.1
    [part] = taken(images.training(split, mixed, seed=3), 2, 3, range(2, 6))
    for in_whole, in_part in zip(whole, part, strict=True):
        np.testing.assert_array_equal(in_whole[2:6], in_part)


def headers(split, numbers) -> tf.Tensor:
    return tf.constant([pictures.header(split.read(number)[0]) for number in numbers])


def by_hand(split, number: int, cut: cuts.Cut) -> np.ndarray:
    """One picture's square."""
    looks = pictures.looks(headers(split, [number]), cut, SIZE)
    look = pictures.Looks(*(values[0] for values in looks))
    return pictures.square(tf.constant(split.read(number)[0]), look, SIZE).numpy()


def test_evaluation_is_of_the_middle_and_of_each_once(split, prepared):
    evaluated = images.evaluated(split, prepared, BATCH)
    for _ in range(2):
        found = list(evaluated)
        assert [len(labels) for _, labels in found] == [8, 8, 8, 8, 1]
    labels = np.concatenate([labels for _, labels in found])
    np.testing.assert_array_equal(labels, [0] * 11 + [1] * 11 + [2] * 11)
    pixels = np.concatenate([pixels for pixels, _ in found])
    for number in (0, 17, 32):
        sizes = headers(split, [number])[:, :2]
        square = by_hand(split, number, cuts.middle(sizes, prepared.raw_shape[0]))
        np.testing.assert_array_equal(pixels[number], prepared.evaluate(square[None])[0])


class TestBroken:
    """Three of 33 pictures cannot be used."""

    @pytest.fixture
    def broken(self, tmp_path):
        root = photos.folder(tmp_path / "pictures", 11)
        (root / "ant" / "003.jpg").write_bytes(b"<html>not found</html>")
        content = (root / "bee" / "004.jpg").read_bytes()
        (root / "bee" / "004.jpg").write_bytes(content[:-100])
        (root / "cow" / "005.jpg").write_bytes(b"")
        return root

    @pytest.mark.parametrize("use", ["training", "evaluation", "look"])
    def test_the_first_that_is_met_is_named(self, broken, use):
        split = datasets.load("folder", str(broken), "all", image_size=SIZE)
        how = images.preprocessing("random_resized_crop", split)
        with pytest.raises(decoded.DataError, match=r"(ant/003|bee/004|cow/005).jpg .*skip_broken"):
            if use == "training":
                list(images.training(split, how, 0).batches(0, 5, global_batch_size=BATCH))
            elif use == "evaluation":
                list(images.evaluated(split, how, BATCH))
            else:
                split.at([33 - 1, 22 + 5])

    def test_all_are_listed_and_left_out(self, broken, capfd):
        whole = datasets.load("folder", str(broken), "all", image_size=SIZE)
        assert [whole.name(number) for number, _ in whole.broken()] == [
            "ant/003.jpg", "bee/004.jpg", "cow/005.jpg"
        ]  # fmt: skip
        split = datasets.load("folder", str(broken), "all", image_size=SIZE, skip_broken=True)
        said = capfd.readouterr().err
        for name in (
            "ant/003.jpg is not JPEG",
            "bee/004.jpg cannot be decoded",
            "005.jpg is empty",
        ):
            assert name in said
        assert split.num_examples == 30 and split.fingerprint != whole.fingerprint
        assert split.names() == [n for n in whole.names() if n not in said]
        how = images.preprocessing("pad_crop_flip", split)
        labels = np.concatenate([labels for _, labels in images.evaluated(split, how, BATCH)])
        assert np.bincount(labels).tolist() == [10, 10, 10]

    def test_a_label_without_a_class_is_refused(self, split):
        wrong = dataclasses.replace(split, read=lambda number: (split.read(number)[0], -1))
        with pytest.raises(decoded.DataError, match="has label -1: must be 0 to 2"):
            wrong.at([3])


class TestTheNewPreprocessing:
    def test_scales_each_colour_as_torchvision_does(self):
        pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3)).astype(np.uint8)
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        expected = (pixels / 255 - mean) / deviation
        np.testing.assert_allclose(preprocess.scale_colours(pixels), expected, atol=1e-5)


class TestLoading:
    def test_a_folder_needs_a_data_dir(self):
        with pytest.raises(decoded.DataError, match="^dataset=folder needs `data_dir`"):
            datasets.load("folder", None, "train")

    def test_shapes_have_one_size(self):
        with pytest.raises(decoded.DataError, match="^image_size=9: the images of .*shapes"):
            datasets.load("shapes", None, "train", image_size=9)

    def test_a_split_of_other_pictures(self, folder, tmp_path):
        split = photos.folder(tmp_path / "split", 2, splits=("train", "test"))
        assert datasets.default_split("folder", str(folder), "test") == "all"
        assert datasets.default_split("folder", str(split), "test") == "test"
        assert datasets.default_split("folder", None, "val") == "val"
        assert datasets.default_split("cifar10", str(folder), "test") == "test"


def prepared_photos(tmp_path, contents, fixed=False, **options) -> None:
    """A set of these JPEGs, number n of class n % 2, prepared by TFDS."""
    import tensorflow_datasets as tfds

    class Photos(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            shape = (24, 30, 3) if fixed else (None, None, 3)
            features = {
                "image": tfds.features.Image(shape=shape, encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=["ant", "bee"]),
                "place": tfds.features.Text(),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for n, content in enumerate(contents):
                path = tmp_path / f"{n}.jpg"
                path.write_bytes(content)
                yield n, {"image": os.fspath(path), "label": n % 2, "place": "a meadow"}

    config = tfds.download.DownloadConfig(num_shards=3)
    builder = Photos(data_dir=str(tmp_path / "data"), **options)
    builder.download_and_prepare(download_config=config)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("fixed", [True, False], ids=["one size", "different sizes"])
def test_a_tfds_set_of_pictures(tmp_path, monkeypatch, fixed, file_format):
    """One of different sizes, and any for which a size is asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    contents = [photos.encoded(photos.picture(24 + (0 if fixed else n), 30, n)) for n in range(10)]
    prepared_photos(tmp_path, contents, fixed, file_format=file_format)
    if fixed:
        held = datasets.load("photos", str(tmp_path / "data"), "train")
        assert isinstance(held, datasets.ImageArrays)
        pixels = {
            tf.io.decode_jpeg(content).numpy().tobytes(): n for n, content in enumerate(contents)
        }
        numbers = [pixels[image.tobytes()] for image in held.some(10)]
        assert sorted(numbers) == list(range(10))
        assert [n % 2 for n in numbers] == held.labels.tolist()
    size = 224 if fixed else None
    found = datasets.load("photos", str(tmp_path / "data"), "train", image_size=size)
    assert found.image_shape == (224, 224, 3) and found.class_names == ("ant", "bee")
    labels = {content: n % 2 for n, content in enumerate(contents)}
    read = dict(map(found.read, range(10)))
    assert read == labels
    assert found.name(3) == "train/3"


def test_tfrecords_too_large_for_memory_are_refused_with_the_command_that_converts_them(
    tmp_path, monkeypatch
):
    import psutil

    prepared_photos(tmp_path, [photos.encoded(photos.picture(20 + n, 30)) for n in range(4)])
    memory = psutil.virtual_memory()._replace(available=10**6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    command = f"tfds convert_format --dataset_version_dir={tmp_path}/data/photos/1.0.0 --out_file"
    with pytest.raises(decoded.DataError, match=command):
        datasets.load("photos", str(tmp_path / "data"), "train")


def test_array_records_that_are_damaged_are_named(tmp_path):
    contents = [photos.encoded(photos.picture(16, 16 + n, n)) for n in range(42)]
    prepared_photos(tmp_path, contents, file_format="array_record")
    [path, *_] = sorted((tmp_path / "data").rglob("*.array_record*"))
    found = datasets.load("photos", str(tmp_path / "data"), "train", image_size=SIZE)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(decoded.DataError, match="train/0 cannot be read"):
        found.at([0])
    path.unlink()
    with pytest.raises(decoded.DataError, match=f"incomplete .*{path.name}"):
        datasets.load("photos", str(tmp_path / "data"), "train", image_size=SIZE)


def test_what_reads_ahead_ends_before_python_does(split):
    """Else the process was aborted now and then: TensorFlow's threads call Python as it ends."""
    calls = []

    def slow(number):
        time.sleep(0.005)
        calls.append(number)
        return split.read(number)

    slowly = dataclasses.replace(split, read=slow)
    how = images.preprocessing("random_resized_crop", split)
    found = images.training(slowly, how, seed=0).batches(0, 9000, global_batch_size=BATCH)
    next(found)
    reading._close_all()  # as Python calls it at its end
    made = len(calls)
    time.sleep(0.2)
    assert len(calls) <= made + 2 * BATCH  # what was under way
    assert list(found) == []


@pytest.fixture(params=["encoded", "in memory"])
def any_split(request, split):
    if request.param == "encoded":
        return split
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    labels = np.arange(40, dtype=np.int32) % 10
    return datasets.ImageArrays(pixels, labels, tuple("0123456789"), "drawn", "0")


def test_a_training_has_a_fingerprint_of_all_that_decides_its_batches(any_split):
    options = [
        {},
        {"augmentation": "trivial_augment"},
        {"random_erasing": 0.5},
        {"random_erasing": 0.25},
        {"mixup_alpha": 0.4},
        {"cutmix_alpha": 0.4},
    ]
    prepared = [images.preprocessing("pad_crop_flip", any_split, **each) for each in options]
    prepared.append(images.preprocessing("shift_alternating_flip", any_split))
    found = [images.training(any_split, each, 0).fingerprint for each in prepared]
    found.append(images.training(any_split, prepared[0], 1).fingerprint)
    if isinstance(any_split, encoded.EncodedImages):
        larger = dataclasses.replace(any_split, image_size=SIZE + 1)
        how = images.preprocessing("pad_crop_flip", larger)
        found.append(images.training(larger, how, 0).fingerprint)
    assert len(set(found)) == len(found)
    again = images.preprocessing("pad_crop_flip", any_split)
    assert images.training(any_split, again, 0).fingerprint == found[0]


def test_preprocessing_of_other_images_is_refused(any_split):
    other = preprocess.for_images("pad_crop_flip", (SIZE + 4, SIZE, 3))
    with pytest.raises(ValueError, match=r"was made for images of \[20, 16, 3\], but"):
        images.training(any_split, other, 0)
    with pytest.raises(ValueError, match=r"was made for images of \[20, 16, 3\], but"):
        images.evaluated(any_split, other, BATCH)
    if isinstance(any_split, datasets.ImageArrays):
        crops = preprocess.for_images("random_resized_crop", any_split.image_shape)
        with pytest.raises(decoded.DataError, match="crops pictures while it decodes them"):
            images.training(any_split, crops, 0)
