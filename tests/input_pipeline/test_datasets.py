"""Data sets by name: prepared ones, and what is said where there are none."""

import contextlib
import dataclasses
import functools
import http.server
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import photos
import psutil
import pytest
import tensorflow as tf

from input_pipeline import checks, datasets, shapes, tfds_source
from towers import hashes, machine


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """A proxy that does not answer."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")


def refusal(message: str, data_dir, name: str = "tiny_photos", split: str = "train") -> str:
    """What is said, in one line, of a set that cannot be loaded."""
    with pytest.raises(datasets.DataError, match=message) as caught:
        datasets.load(name, str(data_dir), split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_prepared_set_is_read_whole_with_labels_and_names(tmp_path):
    photos.prepare_tiny(tmp_path, num_shards=3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    train = datasets.load("tiny_photos", str(tmp_path), "train")
    assert train.images.shape == (25, 4, 6, 3) and train.images.dtype == np.uint8
    values = train.images[:, 0, 0, 0].astype(np.int32)
    assert (train.images == values[:, None, None, None]).all()
    assert sorted(values) == list(range(25))
    np.testing.assert_array_equal(train.labels, values % 3)
    assert train.labels.dtype == np.int32 and train.class_names == ("ant", "bee", "cow")
    assert "tiny_photos/1.0.0" in train.source and str(tmp_path) in train.source
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_fingerprint_is_of_the_images_and_labels(tmp_path):
    first, copied = tmp_path / "first", tmp_path / "copied"
    photos.prepare_tiny(first)
    before = datasets.load("tiny_photos", str(first), "train").fingerprint
    os.rename(first, copied)
    (path,) = copied.rglob("*train.tfrecord*")
    os.utime(path, (1, 1))
    result = datasets.load("tiny_photos", str(copied), "train")
    assert result.fingerprint == before == hashes.sha256([result.images, result.labels])
    result.labels[3] += 1
    assert dataclasses.replace(result).fingerprint != before


def test_a_missing_split_is_answered_with_those_there_are(tmp_path):
    photos.prepare_tiny(tmp_path, splits=("train", "validation"))
    assert len(datasets.load("tiny_photos", str(tmp_path), "validation").images) == 25
    for split in ("test", "train[:5]", "train+validation", "all"):
        refusal("has no split '.*'; it has train, validation", tmp_path, split=split)
    refusal("no split 'validation'; it has train, test", tmp_path, "shapes", "validation")
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace('"25"', '"0"', 1))
    refusal("has no split 'train'; it has validation", tmp_path)


def with_another(feature: str, value):
    """Of a set's records, the same with another value in the eighth."""

    def changed(records: list[bytes]) -> list[bytes]:
        example = tf.train.Example.FromString(records[7])
        values = example.features.feature[feature]
        (values.bytes_list if feature == "image" else values.int64_list).value[:] = [value]
        return [*records[:7], example.SerializeToString(), *records[8:]]

    return changed


def png(*size: int) -> bytes:
    return tf.io.encode_png(np.zeros(size, np.uint8)).numpy()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((with_another("image", png(*s, 3)), "cannot be read") for s in ((5, 6), (3, 6), (1, 1))),
        (with_another("image", b"no picture"), "cannot be read"),
        *(
            (with_another("label", label), f"example 7 has label {label}; with 3 classes, labels")
            for label in (3, -1, 2**40)
        ),
        (lambda records: records[:24], "contain 25 elements"),
        (lambda records: [*records, records[0]], "contain 25 elements"),
    ],
)
def test_examples_that_are_wrong_are_refused(tmp_path, change, message):
    photos.prepare_tiny(tmp_path)
    (file,) = map(str, tmp_path.rglob("*train.tfrecord*"))
    records = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    with tf.io.TFRecordWriter(file) as writer:
        for record in change(records):
            writer.write(record)
    refusal(message, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            ("features.json", content, "^dataset=tiny_photos cannot be opened: ")
            for content in (b"", b"[1]", b"\xff", b'{"content": {}}')
        ),
        ("*train.tfrecord*", b"cut short", "tiny_photos in .* cannot be read"),
        ("*train.tfrecord*", None, "train.tfrecord"),
    ],
)
def test_a_damaged_or_missing_file_is_named(tmp_path, name, content, message):
    photos.prepare_tiny(tmp_path)
    (path,) = tmp_path.rglob(name)
    path.unlink() if content is None else path.write_bytes(content)
    refusal(message, tmp_path)


@pytest.mark.parametrize(
    ("needed", "available", "fits"),
    [
        (3e9, 3.8e9, True),  # 0.7 GB beside a large set
        (3e9, 3.6e9, False),
        (2e8, 4.6e8, True),  # 0.25 GB beside one of less than half
        (2e8, 4.4e8, False),
        (3e8, 5e8, False),
    ],
)
def test_images_may_have_what_training_leaves(monkeypatch, needed, available, fits):
    memory = psutil.virtual_memory()._replace(available=int(available))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with contextlib.nullcontext() if fits else pytest.raises(datasets.DataError, match="GB"):
        checks.check_memory("too large: they", int(needed))


def test_of_a_containers_memory_what_the_process_has_is_gone(monkeypatch, tmp_path):
    left = psutil.Process().memory_info().rss + 10**9
    (tmp_path / "memory.max").write_text(f"{left}")
    monkeypatch.setattr(machine, "CONTROL_GROUP", tmp_path)
    checks.check_memory("they fit", int(3e8))
    with pytest.raises(datasets.DataError, match="GB"):
        checks.check_memory("too large: they", int(6e8))


def test_a_set_that_is_larger_than_memory_is_refused_before_it_is_read():
    image, split = SimpleNamespace(shape=(100, 100, 3)), SimpleNamespace(num_examples=10**9)
    info = SimpleNamespace(features={"image": image}, splits={"train": split})
    with pytest.raises(datasets.DataError, match="huge .* 30000.0 GB"):
        tfds_source.read(SimpleNamespace(name="huge", info=info), "train")


@pytest.mark.parametrize("name", ["ag_news_subset", "div2k"])  # no image; neither
def test_sets_without_image_and_label_are_refused_before_a_download(tmp_path, name):
    refusal("must have `image`.*`label`.*but has FeaturesD", tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("cifar10", "www.cs.toronto.edu .*put cifar-10-binary.tar.gz in .*/manual/"),
        ("cifar100", "put cifar-100-binary.tar.gz in .*/manual/"),
        ("mnist", "mnist is not in .*storage.googleapis.com"),
    ],
)
@pytest.mark.parametrize(
    "proxy", ["http://127.0.0.1:9", "http://me:secret@gate.invalid:port", ":::", "socks5://x"]
)
def test_a_set_without_a_network_names_its_archives_at_once(
    tmp_path, monkeypatch, capfd, name, names, proxy
):
    monkeypatch.setenv("https_proxy", proxy)
    start = time.monotonic()
    message = refusal(names, tmp_path, name)
    assert time.monotonic() - start < 6
    assert "dataset=shapes" in message and "secret" not in message
    assert "WARNING" not in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_no_set(tmp_path):
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    refusal("3.0.2 holds no data set", tmp_path, "cifar10")


def test_an_address_that_answers_is_reachable(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert not tfds_source._unreachable(f"http://127.0.0.1:{server.server_port}/")


def test_an_archive_brought_by_hand_is_prepared_without_a_network(tmp_path):
    """As far as TFDS's look at its checksum, which is not that of CIFAR-10's archive here."""
    manual = tmp_path / "downloads" / "manual"
    manual.mkdir(parents=True)
    (manual / "cifar-10-binary.tar.gz").write_bytes(b"another")
    refusal("could not be .* prepared.* checksum", tmp_path, "cifar10")


def test_without_a_home_data_are_drawn_and_not_asked_for(tmp_path, monkeypatch):
    """As in a container whose user has no entry and no HOME."""
    for name in ("HOME", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert len(datasets.load("shapes", None, "test").images) == 1000
    with pytest.raises(checks.DataError, match="`data_dir`"):
        datasets.load("cifar10", None, "test")
    assert not list(tmp_path.iterdir())  # no folder ~


make = functools.cache(shapes.make)


def test_sizes_dtypes_and_balance():
    for (images, labels), count in ((make("train"), 5000), (make("test"), 1000)):
        assert images.shape == (count, 32, 32, 3)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
        assert list(np.bincount(labels)) == [count // 10] * 10
        assert labels[:50].tolist() != sorted(labels[:50])
    assert len(set(shapes.CLASS_NAMES)) == 10


def test_pictures_differ():
    both = np.concatenate([make("train")[0], make("test")[0]]).reshape(6000, -1)
    assert len(np.unique(both, axis=0)) == 6000


def test_has_these_pixels():
    """Rounding may differ by 1 between machines."""
    images, labels = make("test")
    assert labels[:10].tolist() == [4, 5, 7, 6, 1, 4, 5, 9, 7, 8]
    pixels = [[252, 33, 136], [91, 126, 124]], [[134, 250, 175], [113, 69, 156]]
    np.testing.assert_allclose(images[:2, [16, 2], [16, 29]].astype(int), pixels, atol=1)
    edges = np.abs(np.diff(images.astype(int), axis=2)).mean((1, 2, 3))
    means = [13.97, 15.57, 14.24, 15.66, 13.70, 14.81, 14.68, 14.92, 17.62, 18.99]
    np.testing.assert_allclose(np.bincount(labels, edges) / 100, means, atol=0.01)
