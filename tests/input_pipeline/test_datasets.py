"""Data sets by name: TFDS's real, mocked and missing ones, and what is said where there are none.

The test on real images reads CIFAR-10 from the folder that `TOWERS_TEST_DATA_DIR` names.
"""

import contextlib
import io
import logging
import os
import pathlib
import pwd
import socket
import tarfile
import time

import numpy as np
import pytest
import tensorflow as tf
import tiny_photos

from input_pipeline import datasets, decoded, tfds_source


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def data_dir(tmp_path) -> pathlib.Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def no_network(monkeypatch) -> list[str]:
    """No host answers; the list names those that were tried."""
    tried = []

    def host_reachable(host, port, timeout_seconds):
        assert port in (80, 443) and 0 < timeout_seconds <= 5
        tried.append(host)
        return False

    monkeypatch.setattr(tfds_source, "host_reachable", host_reachable)
    return tried


@pytest.fixture
def network_is_off_limits(monkeypatch):
    def host_reachable(host, *_):
        raise AssertionError(f"{host} was tried although the data are here")

    monkeypatch.setattr(tfds_source, "host_reachable", host_reachable)


def _everything_in(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Prepared data.


@pytest.mark.parametrize("num_shards", [1, 3])
def test_prepared_set_is_read_whole_with_labels_and_names(
    data_dir, network_is_off_limits, num_shards
):
    tiny_photos.prepare(data_dir, num_shards=num_shards)
    before = _everything_in(data_dir)

    train = datasets.load("tiny_photos", str(data_dir), "train")

    assert train.images.shape == (25, 4, 6, 3) and train.images.dtype == np.uint8
    values = train.images[:, 0, 0, 0].astype(np.int32)
    assert (train.images == values[:, None, None, None]).all()
    assert sorted(values) == list(range(25))
    np.testing.assert_array_equal(train.labels, values % 3)
    assert train.labels.dtype == np.int32
    assert train.class_names == ("ant", "bee", "cow")
    assert "tiny_photos/1.0.0" in train.source and str(data_dir) in train.source
    assert _everything_in(data_dir) == before, "the data folder was written to"


def test_second_load_decodes_nothing_and_changed_files_are_decoded_again(data_dir, monkeypatch):
    tiny_photos.prepare(data_dir)
    calls = []
    read = tfds_source.read
    monkeypatch.setattr(tfds_source, "read", lambda *args: calls.append(args) or read(*args))

    first = datasets.load("tiny_photos", str(data_dir), "train")
    second = datasets.load("tiny_photos", str(data_dir), "train")
    assert len(calls) == 1
    np.testing.assert_array_equal(first.images, second.images)
    assert first.fingerprint == second.fingerprint
    assert (first.source, first.class_names) == (second.source, second.class_names)

    datasets.load("tiny_photos", str(data_dir), "test")
    assert len(calls) == 2
    (record_file,) = data_dir.rglob("*train.tfrecord*")
    os.utime(record_file, (1, 1))
    datasets.load("tiny_photos", str(data_dir), "train")
    assert len(calls) == 3
    (names_file,) = data_dir.rglob("label.labels.txt")
    names_file.write_text("ant\nbee\ncat\n")
    assert datasets.load("tiny_photos", str(data_dir), "train").class_names[2] == "cat"


def test_missing_split_is_answered_with_those_there_are(data_dir):
    tiny_photos.prepare(data_dir, splits=("train", "validation"))
    message = r"no split 'test'; it has train, validation"
    with pytest.raises(datasets.DataError, match=message):
        datasets.load("tiny_photos", str(data_dir), "test")
    assert len(datasets.load("tiny_photos", str(data_dir), "validation").images) == 25
    for expression in ("train[:5]", "train+validation", "all"):
        with pytest.raises(datasets.DataError, match="has no split '.*'; it has train, validation"):
            datasets.load("tiny_photos", str(data_dir), expression)


def test_damaged_and_missing_record_files_are_named(data_dir):
    tiny_photos.prepare(data_dir)
    (record_file,) = data_dir.rglob("*train.tfrecord*")
    record_file.write_bytes(record_file.read_bytes()[:-5])
    with pytest.raises(datasets.DataError, match="tiny_photos in .* cannot be read"):
        datasets.load("tiny_photos", str(data_dir), "train")
    record_file.unlink()
    with pytest.raises(datasets.DataError, match=f"is incomplete.*{record_file.name}"):
        datasets.load("tiny_photos", str(data_dir), "train")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'{"content": {}}'])
def test_what_tfds_says_of_a_damaged_description_is_passed_on(data_dir, content):
    tiny_photos.prepare(data_dir)
    (path,) = data_dir.rglob("features.json")
    path.write_bytes(content)
    with pytest.raises(datasets.DataError, match="^dataset=tiny_photos: ") as caught:
        datasets.load("tiny_photos", str(data_dir), "train")
    assert "\n" not in str(caught.value)


@pytest.fixture
def records(data_dir):
    """The training records of a prepared set, and a function that writes others in their place."""
    tiny_photos.prepare(data_dir)
    (file,) = map(str, data_dir.rglob("*train.tfrecord*"))

    def write(others):
        with tf.io.TFRecordWriter(file) as writer:
            for record in others:
                writer.write(record)

    return [record.numpy() for record in tf.data.TFRecordDataset(file)], write


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        *(("image", (*size, 3), "cannot be read") for size in ((5, 6), (3, 6), (1, 1))),
        ("image", b"no picture", "cannot be read"),
        *(
            ("label", label, f"example 7 has label {label}; with 3 classes, labels are 0 to 2")
            for label in (3, -1, 2**40)
        ),
    ],
)
def test_an_example_that_is_wrong_is_refused(data_dir, records, feature, value, message):
    content, write = records
    if isinstance(value, tuple):
        value = tf.io.encode_png(np.zeros(value, np.uint8)).numpy()
    example = tf.train.Example.FromString(content[7])
    values = example.features.feature[feature]
    (values.bytes_list if feature == "image" else values.int64_list).value[:] = [value]
    write([*content[:7], example.SerializeToString(), *content[8:]])
    with pytest.raises(datasets.DataError, match=message) as error:
        datasets.load("tiny_photos", str(data_dir), "train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [24, 26])
def test_another_number_of_examples_than_the_description_has_is_named(data_dir, records, count):
    content, write = records
    write([*content, *content][:count])
    said = f"train has {count} examples, but 25 were expected"
    with pytest.raises(datasets.DataError, match=said):
        datasets.load("tiny_photos", str(data_dir), "train")


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
    import psutil

    memory = psutil.virtual_memory()._replace(available=int(available))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with contextlib.nullcontext() if fits else pytest.raises(datasets.DataError, match="large"):
        decoded.check_memory("too large: they", int(needed))


def test_a_set_too_large_for_memory_is_refused_with_numbers(data_dir, monkeypatch):
    import psutil

    tiny_photos.prepare(data_dir)
    memory = psutil.virtual_memory()._replace(available=250_001_799)  # 25 x 4 x 6 x 3 = 1,800
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(datasets.DataError, match=r"25 images of \[4, 6, 3\] take 0\.0 GB"):
        datasets.load("tiny_photos", str(data_dir), "train")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=250_001_800))
    assert len(datasets.load("tiny_photos", str(data_dir), "train").images) == 25


# Names and folders that cannot be used.


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ag_news_subset", r"'label': ClassLabel\(.*num_classes=4\)"),  # no image
        ("div2k", r"'hr': Image\(shape=\(None, None, 3\), dtype=uint8\)"),  # neither
    ],
)
def test_sets_without_image_and_label_are_refused_before_a_download(
    data_dir, network_is_off_limits, name, found
):
    with pytest.raises(datasets.DataError, match=f"must have `image`.*`label`.*{found}"):
        datasets.load(name, str(data_dir), "train")
    assert _everything_in(data_dir) == []


@pytest.mark.parametrize(
    ("count", "labels", "message"),
    [
        (0, [], "at least one"),
        (2, [0], "2 images .* and 1 labels"),
        (2, [0, -1], "example 1 has label -1"),
        (3, [0, 1, 2], "example 2 has label 2; with 2 classes"),
    ],
)
def test_unusable_arrays_are_refused(count, labels, message):
    pixels, labels = np.zeros((count, 4, 4, 3), np.uint8), np.array(labels, np.int32)
    with pytest.raises(datasets.DataError, match=f"pets: .*{message}"):
        datasets.ImageArrays(pixels, labels, ("yes", "no"), "pets", "0")


# Data that would have to be downloaded.


def test_cifar10_without_a_network_names_both_ways_at_once(data_dir, no_network, capfd):
    start = time.monotonic()
    with pytest.raises(datasets.DataError) as caught:
        datasets.load("cifar10", str(data_dir), "train")
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert f"put cifar-10-binary.tar.gz in {data_dir}/downloads/manual/" in message
    assert f"{data_dir}/cifar-10-batches-bin/ exists" in message
    assert "dataset=shapes" in message and "\n" not in message
    assert no_network == ["www.cs.toronto.edu"]
    assert "WARNING" not in capfd.readouterr().err
    assert _everything_in(data_dir) == []


def test_other_sets_without_a_network_name_their_archives(data_dir, no_network):
    with pytest.raises(datasets.DataError, match="put cifar-100-binary.tar.gz in .*/manual/"):
        datasets.load("cifar100", str(data_dir), "train")
    with pytest.raises(datasets.DataError, match="mnist is not in .*storage.googleapis.com"):
        datasets.load("mnist", str(data_dir), "train")
    assert _everything_in(data_dir) == []


def test_a_download_that_breaks_off_is_said(data_dir, monkeypatch, caplog):
    import requests

    def get(self, url, **kwargs):
        raise requests.exceptions.ConnectionError("the line is dead")

    monkeypatch.setattr(tfds_source, "host_reachable", lambda *_: True)
    monkeypatch.setattr(requests.Session, "get", get)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(datasets.DataError, match=r"ConnectionError: the line is dead.*By hand"),
    ):
        datasets.load("cifar10", str(data_dir), "train")
    assert "Downloading cifar10" in caplog.text


def _write_archive(path: pathlib.Path) -> None:
    """A tar.gz laid out as CIFAR-10's, with two records per file."""
    files = {f"data_batch_{i}.bin": bytes([i] + [i] * 3072) * 2 for i in range(1, 6)}
    files["test_batch.bin"] = bytes([0] + [9] * 3072) * 2
    files["batches.meta.txt"] = "\n".join(f"kind {i}" for i in range(10)).encode()
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def small_archive(data_dir, monkeypatch) -> pathlib.Path:
    """Stands in for CIFAR-10's own archive, whose checksum TFDS knows."""
    from tensorflow_datasets.core.download import checksums, download_manager

    archive = data_dir / "downloads" / "manual" / "cifar-10-binary.tar.gz"
    _write_archive(archive)
    expected = checksums.compute_url_info(archive)
    monkeypatch.setattr(
        download_manager.DownloadManager,
        "_register_or_validate_checksums",
        lambda self, url, url_info, path: self._recorded_url_infos.update({url: expected}),
    )
    return archive


def test_archive_brought_by_hand_is_prepared_without_a_network(
    data_dir, network_is_off_limits, small_archive
):
    train = datasets.load("cifar10", str(data_dir), "train")
    assert sorted(train.labels.tolist()) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    np.testing.assert_array_equal(train.images[:, 31, 0, 2], train.labels)
    assert train.class_names[3] == "kind 3"
    assert datasets.load("cifar10", str(data_dir), "test").images.max() == 9


# Whether a host answers.


def test_host_reachable_asks_the_socket():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert tfds_source.host_reachable("127.0.0.1", port, 2.0)
    assert not tfds_source.host_reachable("127.0.0.1", port, 2.0)


MALFORMED = (
    ":::",
    "http://[",
    "foo://bar baz",
    "http://gate.example:99999",
    "http://me:secret@gate.example:port",
    "http://me:secret@",
    "http://a b:80",
    "http://gate\x1b[2J:80",
)


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy"])
def test_a_malformed_proxy_is_named_and_its_password_is_not(
    data_dir, monkeypatch, no_network, variable, value
):
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("no_proxy", "")
    said = f"variable {variable.lower()} is not the address of a proxy"
    with pytest.raises(datasets.DataError, match=said) as caught:
        datasets.load("cifar10", str(data_dir), "train")
    assert "secret" not in str(caught.value)
    assert no_network == [] and _everything_in(data_dir) == []


@pytest.mark.parametrize(
    ("value", "endpoint"),
    [
        ("gate.example", ("gate.example", 80)),
        ("gate.example:3128", ("gate.example", 3128)),
        ("https://me:secret@gate.example", ("gate.example", 443)),
        ("http://[::1]:8080/", ("::1", 8080)),
        ("socks5h://10.0.0.1", ("10.0.0.1", 1080)),
        ("socks4a://gate.example.:1081", ("gate.example.", 1081)),
    ],
)
def test_addresses_of_proxies(monkeypatch, value, endpoint):
    monkeypatch.setenv("all_proxy", value)
    monkeypatch.setenv("no_proxy", "")
    assert tfds_source._endpoint("https://data.example/a.tar") == endpoint
    monkeypatch.setenv("no_proxy", "data.example")
    assert tfds_source._endpoint("https://data.example/a.tar") == ("data.example", 443)


# The real images.


@pytest.mark.long
def test_real_cifar10(cifar10_dir, network_is_off_limits, monkeypatch):
    real_data_dir = str(cifar10_dir)
    test = datasets.load("cifar10", real_data_dir, "test")
    train = datasets.load("cifar10", real_data_dir, "train")
    for loaded, count in ((train, 50_000), (test, 10_000)):
        assert loaded.images.shape == (count, 32, 32, 3)
        assert np.bincount(loaded.labels).tolist() == [count // 10] * 10
        assert len(np.unique(loaded.images.reshape(count, -1)[:, ::97], axis=0)) > 0.99 * count
    assert train.class_names[0] == "airplane" and train.class_names[9] == "truck"
    assert train.fingerprint != test.fingerprint

    def read(*_):
        raise AssertionError("decoded a second time")

    monkeypatch.setattr(tfds_source, "read", read)
    again = datasets.load("cifar10", real_data_dir, "train")
    assert again.fingerprint == train.fingerprint
    np.testing.assert_array_equal(again.images[::1000], train.images[::1000])


def test_at_hand_is_what_lies_there_prepared(tmp_path):
    assert datasets.at_hand("shapes", None)
    assert not datasets.at_hand("cifar10", str(tmp_path))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert datasets.at_hand("cifar10", str(tmp_path))
    assert not datasets.at_hand("cifar100", str(tmp_path))
    version = tmp_path / "cifar100" / "3.0.2"
    version.mkdir(parents=True)
    assert not datasets.at_hand("cifar100", str(tmp_path))
    (version / "dataset_info.json").write_text("{}")
    assert datasets.at_hand("cifar100", str(tmp_path))
    with pytest.raises(datasets.DataError, match="does not exist"):
        datasets.at_hand("cifar10", str(tmp_path / "nowhere"))


class TestWithoutAHome:
    """As in a container whose user has no entry and no HOME."""

    @pytest.fixture(autouse=True)
    def nobody_knows_it(self, tmp_path, monkeypatch):
        def no_entry(_):
            raise KeyError

        for name in ("HOME", "XDG_CACHE_HOME", "TFDS_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", no_entry)
        monkeypatch.chdir(tmp_path)
        yield
        assert list(tmp_path.iterdir()) == []  # no folder ~

    def test_drawn_images_are_used_and_not_kept(self, caplog):
        assert len(datasets.load("shapes", None, "test").images) == 1000
        assert "Decoded images are not cached (HOME is not set" in caplog.text

    @pytest.mark.long
    def test_the_folder_of_data_sets_is_asked_for(self):
        with pytest.raises(decoded.DataError, match="HOME is not set.* with `data_dir`"):
            datasets.load("cifar10", None, "test")
