"""Batches of pictures from a store, as a pure function of seed and step."""

import dataclasses
import os
import pathlib
import shutil
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
    images,
    pictures,
    preprocess,
    reading,
    store,
)

BATCH, SIZE = 8, 16
_OPTIONS = ("augmentation", "random_erasing")


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """33 pictures of different sizes."""
    folder = tmp_path_factory.mktemp("data")
    photos.folder(folder / "pictures", 11)
    return datasets.load(
        "folder", str(folder / "pictures"), "all", image_size=SIZE, store_dir=str(folder)
    )


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


def test_a_split_says_what_it_is(split):
    assert (split.num_examples, split.image_shape) == (33, (SIZE, SIZE, 3))
    assert split.class_names == ("ant", "bee", "cow")
    some = split.some(7)
    assert some.shape == (7, SIZE, SIZE, 3) and some.dtype == np.uint8


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
    for whole, own in zip(taken(source, 0, 3), taken(source, 0, 3, share), strict=True):
        for of_whole, of_own in zip(whole, own, strict=True):
            np.testing.assert_array_equal(of_whole[share.start : share.stop], of_own)


@pytest.mark.long
def test_another_seed_has_other_batches(split, prepared):
    one, other = (taken(images.training(split, prepared, seed), 0, 1)[0] for seed in (3, 4))
    assert not np.array_equal(one[0], other[0])


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
    cut = cuts.at_random(tf.gather(split.store.index.sizes, ids), draws, SIZE)
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
    for of_whole, of_part in zip(whole, part, strict=True):
        np.testing.assert_array_equal(of_whole[2:6], of_part)


def by_hand(split, number: int, cut: cuts.Cut) -> np.ndarray:
    """One picture's square."""
    [content], index = split.store.reader([number]), split.store.index
    kinds, orientations = (
        tf.constant([int(of_all[number])]) for of_all in (index.kinds, index.orientations)
    )
    looks = pictures.looks(kinds, orientations, tf.constant(index.sizes[[number]]), cut, SIZE)
    look = pictures.Looks(*(of_all[0] for of_all in looks))
    return pictures.square(tf.constant(content), look, SIZE).numpy()


def test_evaluation_is_of_the_middle_and_of_each_once(split, prepared):
    found = list(images.evaluated(split, prepared, BATCH))
    assert len(found) == 5
    mask = np.concatenate([batch[2].numpy() for batch in found])
    assert mask.sum() == 33
    labels = np.concatenate([batch[1].numpy() for batch in found])[mask]
    np.testing.assert_array_equal(labels, split.store.index.labels)
    pixels = np.concatenate([batch[0].numpy() for batch in found])[mask]
    for number in (0, 17, 32):
        size = split.store.index.sizes[number : number + 1]
        square = by_hand(split, number, cuts.middle(tf.constant(size), prepared.raw_shape[0]))
        np.testing.assert_array_equal(pixels[number], prepared.evaluate(square[None])[0])


def test_evaluation_of_a_share(split, prepared):
    whole = list(images.evaluated(split, prepared, BATCH))
    own = list(images.evaluated(split, prepared, BATCH, range(2, 5)))
    for of_whole, of_own in zip(whole, own, strict=True):
        for one, other in zip(of_whole, of_own, strict=True):
            np.testing.assert_array_equal(one[2:5], other)


def test_a_store_that_goes_away_is_said(split, tmp_path):
    folder = photos.folder(tmp_path / "pictures", 4)
    own = datasets.load("folder", str(folder), "all", image_size=SIZE, store_dir=str(tmp_path))
    source = images.training(own, images.preprocessing("pad_crop_flip", own), 0)
    (own.store.path / store.shard_name(0)).unlink()
    with pytest.raises(decoded.DataError, match=f"cannot be read: .*Remove {own.store.path}"):
        list(source.batches(0, 2, global_batch_size=4))


class TestTheNewPreprocessing:
    def test_scales_each_colour_as_torchvision_does(self):
        pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3)).astype(np.uint8)
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        expected = (pixels / 255 - mean) / deviation
        np.testing.assert_allclose(preprocess.scale_colours(pixels), expected, atol=1e-5)

    def test_evaluates_224_of_256(self):
        chosen = preprocess.for_images("random_resized_crop", (224, 224, 3))
        assert chosen.raw_shape == (256, 256, 3) and chosen.output_shape == (224, 224, 3)

    def test_takes_no_images_that_are_decoded_already(self):
        pixels = np.zeros((2, 8, 8, 3), np.uint8)
        held = datasets.ImageArrays(pixels, np.zeros(2, np.int32), ("a", "b"), "here", "0")
        with pytest.raises(decoded.DataError, match="already decoded, to 8 x 8: give `image_size`"):
            images.preprocessing("random_resized_crop", held)


class TestLoading:
    def test_a_folder_needs_a_data_dir(self):
        with pytest.raises(decoded.DataError, match="^dataset=folder needs `data_dir`"):
            datasets.load("folder", None, "train")

    def test_shapes_have_one_size(self):
        with pytest.raises(decoded.DataError, match="^image_size=9: the images of .*shapes"):
            datasets.load("shapes", None, "train", image_size=9)

    def test_the_size_where_nobody_asks(self, tmp_path):
        folder = photos.folder(tmp_path / "pictures", 4)
        found = datasets.load("folder", str(folder), "all", store_dir=str(tmp_path))
        assert found.image_shape == (224, 224, 3)

    def test_a_split_of_other_pictures(self, tmp_path):
        flat = photos.folder(tmp_path / "flat", 2)
        split = photos.folder(tmp_path / "split", 2, splits=("train", "test"))
        assert datasets.default_split("folder", str(flat), "test") == "all"
        assert datasets.default_split("folder", str(split), "test") == "test"
        assert datasets.default_split("folder", None, "val") == "val"
        assert datasets.default_split("cifar10", str(flat), "test") == "test"


def prepared_photos(tmp_path, contents, fixed=False, **options):
    """A set of these JPEGs, number n of class n % 2, prepared by TFDS; returns its files."""
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

    config = tfds.download.DownloadConfig(num_shards=options.pop("num_shards", 1))
    builder = Photos(data_dir=str(tmp_path / "data"), **options)
    builder.download_and_prepare(download_config=config)
    return [str(path) for path in builder.info.splits["train"].filepaths]


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("fixed", [True, False], ids=["one size", "different sizes"])
def test_a_tfds_set_from_disk(tmp_path, fixed, file_format):
    """One of different sizes, and any for which a size is asked for."""
    contents = [photos.encoded(photos.picture(24 + (0 if fixed else n), 30, n)) for n in range(10)]
    prepared_photos(tmp_path, contents, fixed, file_format=file_format)
    options = {"store_dir": str(tmp_path / "stores")}
    if fixed:
        held = datasets.load("photos", str(tmp_path / "data"), "train")
        assert isinstance(held, datasets.ImageArrays)
        pixels = {
            tf.io.decode_jpeg(content).numpy().tobytes(): n for n, content in enumerate(contents)
        }
        numbers = [pixels[image.tobytes()] for image in held.some(10)]
        assert sorted(numbers) == list(range(10))
        assert [n % 2 for n in numbers] == held.labels.tolist()
        options["image_size"] = 224
    found = datasets.load("photos", str(tmp_path / "data"), "train", **options)
    assert found.image_shape == (224, 224, 3) and found.class_names == ("ant", "bee")
    assert sorted(found.store.reader(range(10))) == sorted(contents)
    labels = {content: n % 2 for n, content in enumerate(contents)}
    stored = found.store.reader(range(10))
    assert [labels[content] for content in stored] == found.store.index.labels.tolist()
    assert found.store.names()[3] == "train/3"


def in_place(tmp_path, **options):
    return datasets.load(
        "photos", str(tmp_path / "data"), "train", store_dir=str(tmp_path / "stores"), **options
    )


@pytest.fixture
def array_records(tmp_path):
    """The files of 42 pictures that TFDS prepared as ArrayRecord, and the pictures."""
    contents = [photos.encoded(photos.picture(16, 16 + n, n)) for n in range(42)]
    options = {"file_format": "array_record", "num_shards": 5}
    return prepared_photos(tmp_path, contents, **options), contents


def test_array_records_of_tfds_are_read_where_they_are(tmp_path, array_records, monkeypatch):
    """No picture is copied, and it is the same set as one that is."""
    files, contents = array_records
    monkeypatch.setattr(store, "PICTURES_PER_SHARD", 7)
    monkeypatch.setattr(store, "MOST_OPEN_FILES", 2)
    found = in_place(tmp_path)
    assert sorted(path.name for path in found.store.path.iterdir()) == [
        "index.npz",
        "names",
        "store.json",
    ]
    ids = np.random.default_rng(0).permutation(42)
    by_number = found.store.reader(np.arange(42))
    assert found.store.reader(ids) == [by_number[number] for number in ids]
    assert sorted(by_number) == sorted(contents)
    copied = store.open_or_make("copied", Copied(found.store, by_number), tmp_path / "stores")
    assert copied.fingerprint == found.fingerprint
    assert len(list(copied.path.glob("*.array_record"))) == 6


def test_a_file_of_tfds_that_vanishes_or_changes_while_it_is_read(tmp_path, array_records):
    """Each is named, with what to do; the store holds nothing of it that could be removed."""
    files, _ = array_records
    found = in_place(tmp_path)
    os.rename(files[0], files[0] + ".aside")
    remedy = "Copy the set again, or remove that folder and let it be prepared again"
    with pytest.raises(datasets.DataError, match=f"00000-of-00005 cannot be read: .*{remedy}"):
        found.store.reader([0])
    shutil.copy(files[1], files[0])
    counts = found.store.files.counts
    assert counts[0] != counts[1]
    wrong = f"has {counts[1]} records instead of {counts[0]}"
    with pytest.raises(datasets.DataError, match=wrong):
        found.store.reader([0])
    content = bytearray(pathlib.Path(files[2]).read_bytes())
    content[len(content) // 2] ^= 1
    pathlib.Path(files[2]).write_bytes(content)
    with pytest.raises(datasets.DataError, match=f"00002-of-00005 .*{remedy}"):
        found.store.reader(np.arange(sum(counts[:2]), sum(counts[:3])))
    os.remove(files[0])
    with pytest.raises(datasets.DataError, match=f"incomplete .*{remedy}"):
        in_place(tmp_path)


def test_records_without_a_picture_are_refused(tmp_path):
    from input_pipeline import tfds_source

    picture = tfds_source._taking_pictures_out()
    with pytest.raises(ValueError, match="not an example"):
        picture(b"no example")
    with pytest.raises(ValueError, match="0 images"):
        picture(tf.train.Example().SerializeToString())


def test_array_records_in_groups_are_copied(tmp_path, array_records, monkeypatch):
    """Reading one of a group reads the group."""
    from array_record.python import array_record_module

    files, contents = array_records
    for path in files:
        records = list(store.records([path]))
        writer = array_record_module.ArrayRecordWriter(path, "group_size:4")
        for record in records:
            writer.write(record)
        writer.close()
    found = in_place(tmp_path)
    assert len(list(found.store.path.glob("*.array_record"))) == 1
    assert sorted(found.store.reader(np.arange(42))) == sorted(contents)


class Copied:
    """The pictures of a store as a source that has them copied into another."""

    description, identity, files = "pictures of a store", {"source": "a store"}, None

    def __init__(self, found, contents):
        self.class_names, self.num_examples = found.class_names, len(found)
        self._rows = zip(found.names(), found.index.labels.tolist(), contents, strict=True)
        self.num_bytes = sum(map(len, contents))

    def examples(self, first):
        yield from (store.Example(*row) for row in self._rows)


def test_what_reads_ahead_ends_before_python_does(split, monkeypatch):
    """Else the process was aborted now and then: TensorFlow's threads call Python as it ends."""
    calls, read = [], store.Reader.__call__

    def slow(self, ids):
        time.sleep(0.02)
        calls.append(1)
        return read(self, ids)

    monkeypatch.setattr(store.Reader, "__call__", slow)
    how = images.preprocessing("random_resized_crop", split)
    found = images.training(split, how, seed=0).batches(0, 9000, global_batch_size=BATCH)
    next(found)
    reading._close_all()  # as Python calls it at its end
    made = len(calls)
    time.sleep(0.2)
    assert len(calls) <= made + 2  # what was under way
    assert list(found) == []


@pytest.fixture(params=["on disk", "in memory"])
def any_split(request, split):
    return split if request.param == "on disk" else datasets.load("shapes", None, "test")


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
    assert len(set(found)) == len(found)
    again = images.preprocessing("pad_crop_flip", any_split)
    assert images.training(any_split, again, 0).fingerprint == found[0]


def test_another_size_of_the_images_is_another_training(split):
    larger = dataclasses.replace(split, image_size=SIZE + 1)
    assert larger.fingerprint == split.fingerprint
    one, other = (
        images.training(each, images.preprocessing("random_resized_crop", each), 0)
        for each in (split, larger)
    )
    assert one.fingerprint != other.fingerprint


def test_preprocessing_of_images_of_another_size_is_refused(any_split):
    other = preprocess.for_images("pad_crop_flip", (SIZE + 4, SIZE, 3))
    message = r"was made for images of \[20, 16, 3\], but those of this split are"
    with pytest.raises(ValueError, match=message):
        images.training(any_split, other, 0)
    with pytest.raises(ValueError, match=message):
        images.evaluated(any_split, other, BATCH)


def test_crops_of_pictures_are_not_those_of_images_in_memory():
    held = datasets.load("shapes", None, "test")
    crops = preprocess.for_images("random_resized_crop", held.image_shape)
    for use in (lambda: images.training(held, crops, 0), lambda: images.evaluated(held, crops, 8)):
        with pytest.raises(decoded.DataError, match="crops pictures while it decodes them"):
            use()
