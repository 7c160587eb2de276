"""CIFAR-10's binary files: hand-made records in, images and labels out, or one clear line."""

import pathlib

import numpy as np
import odd_files
import psutil
import pytest

from input_pipeline import cifar10_binary, datasets


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _record(label: int, red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """A record of one colour: label, then three planes of 32x32."""
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def _write_folder(folder: pathlib.Path, records_per_file: int = 2) -> pathlib.Path:
    """Six small files; in data_batch_i, every pixel of record r is (i, r, 255)."""
    folder.mkdir(parents=True)
    for i in range(1, 6):
        records = [_record((i + r) % 10, i, r, 255) for r in range(records_per_file)]
        (folder / f"data_batch_{i}.bin").write_bytes(b"".join(records))
    (folder / "test_batch.bin").write_bytes(_record(9, 10, 20, 30))
    return folder


def test_planes_become_pixels_in_row_order(tmp_path):
    folder = _write_folder(tmp_path / "cifar-10-batches-bin")
    red = np.zeros((32, 32), np.uint8)
    red[0, 1], red[1, 0], red[31, 31] = 11, 22, 33  # bytes 1, 32 and 1,023 of the plane
    green = np.full((32, 32), 7, np.uint8)
    blue = np.arange(1024, dtype=np.uint32).astype(np.uint8)  # byte k of the plane is k % 256
    content = bytes([3]) + red.tobytes() + green.tobytes() + blue.tobytes()
    (folder / "test_batch.bin").write_bytes(content)

    images, labels = cifar10_binary.read(folder, "test")

    assert images.shape == (1, 32, 32, 3) and images.dtype == np.uint8
    assert labels.tolist() == [3] and labels.dtype == np.int32
    assert images[0, 0, 1].tolist() == [11, 7, 1]
    assert images[0, 1, 0].tolist() == [22, 7, 32]
    assert images[0, 31, 31].tolist() == [33, 7, 255]
    assert images[0, 5, 2].tolist() == [0, 7, (5 * 32 + 2) % 256]


@pytest.mark.parametrize("points_to", ["parent", "folder"])
def test_load_reads_the_files(tmp_path, points_to):
    folder = _write_folder(tmp_path / "data" / "cifar-10-batches-bin")
    data_dir = folder.parent if points_to == "parent" else folder
    loaded = datasets.load("cifar10", str(data_dir), "test")
    assert loaded.images[0, 0, 0].tolist() == [10, 20, 30]
    assert str(folder) in loaded.source and len(loaded.fingerprint) == 64


@pytest.mark.parametrize("content", [b"", bytes(3072), _record(10), *odd_files.KINDS])
def test_what_is_no_file_of_records_is_named_and_not_waited_for(tmp_path, content):
    path = _write_folder(tmp_path / "cifar-10-batches-bin") / "data_batch_3.bin"
    if isinstance(content, str):
        odd_files.put(content, path)
    else:
        path.write_bytes(content)
    with pytest.raises(datasets.DataError, match=str(path)):
        datasets.load("cifar10", str(tmp_path), "train")


def test_files_too_large_for_memory_are_refused_unread(tmp_path, monkeypatch):
    folder = _write_folder(tmp_path / "cifar-10-batches-bin")  # 5 files of 2 records
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=250_030_729))
    with pytest.raises(datasets.DataError, match=r"the files of train take 0\.0 GB and training"):
        datasets.load("cifar10", str(tmp_path), "train")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=250_030_730))
    assert len(cifar10_binary.read(folder, "train").images) == 10
