"""Decoded images in the cache folder: read back as they were, or made again."""

import numpy as np
import pytest

from input_pipeline import decoded
from towers import hashes


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "towers"


@pytest.fixture
def made():
    """What was made, so far."""
    return []


@pytest.fixture
def load(made):
    def make():
        images = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
        made.append((images, np.arange(5, dtype=np.int32)))
        return made[-1]

    return lambda identity=1, **options: decoded.load_or_make("a set/1", identity, make, **options)


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "sha256"])
@pytest.mark.parametrize("damage", ["none", "gone", "empty", "cut", "a bit"])
def test_a_second_start_decodes_nothing_and_what_is_damaged_is_made_again(
    load, made, folder, name, damage
):
    (_, sha256), expected = load(), made[0]
    [path] = folder.glob(f"a-set-1-*/{name}")
    assert sha256 == hashes.sha256(expected)
    content = path.read_bytes()
    flipped = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    if damage == "gone":
        path.unlink()
    elif damage != "none":
        path.write_bytes({"empty": b"", "cut": content[:40], "a bit": flipped}[damage])
    for _ in range(2):  # and kept
        arrays, again = load()
        assert len(made) == 1 + (damage != "none") and again == sha256
        for one, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    assert sorted(path.name for path in folder.rglob("*.*")) == ["images.npy", "labels.npy"]


def test_a_dry_run_keeps_nothing(load, made, folder):
    load(read_only=True)
    assert len(made) == 1 and not folder.exists()


def test_a_folder_that_cannot_be_written_is_done_without(load, made, folder, caplog):
    folder.write_text("in the way")
    arrays, sha256 = load()
    assert hashes.sha256(arrays) == sha256 and len(made) == 1
    assert "are not cached" in caplog.text


def test_an_entry_is_of_what_it_was_made_from(load, made):
    for identity in (1, 2, 1):
        load(identity)
    assert len(made) == 2
