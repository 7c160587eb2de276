"""The cache of decoded arrays: made once, whole or not at all, and never in the way."""

import json
import os
import pathlib
import shutil
import time

import numpy as np
import odd_files
import pytest

from input_pipeline import cache, datasets, decoded


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class _Maker:
    """Makes two small pictures and counts how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self) -> decoded.Decoded:
        self.calls += 1
        images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
        return decoded.Decoded(images, np.array([1, 0], np.int32), ("cat", "dog"))


def _load(maker: _Maker) -> cache.Entry:
    return cache.load_or_make("pets-train-0123", "a test", maker)


def _entry_path() -> pathlib.Path:
    return cache.folder() / "pets-train-0123"


def _assert_is_what_the_maker_makes(entry: cache.Entry) -> None:
    expected = _Maker()()
    np.testing.assert_array_equal(entry.arrays.images, expected.images)
    np.testing.assert_array_equal(entry.arrays.labels, expected.labels)
    assert entry.arrays.images.dtype == np.uint8 and entry.arrays.labels.dtype == np.int32
    assert entry.arrays.class_names == ("cat", "dog")
    assert entry.fingerprint == cache.fingerprint(expected)


def test_second_load_makes_nothing():
    maker = _Maker()
    _assert_is_what_the_maker_makes(_load(maker))
    _assert_is_what_the_maker_makes(_load(maker))
    assert maker.calls == 1
    assert sorted(os.listdir(cache.folder())) == ["pets-train-0123"]


def test_folder_follows_xdg(tmp_path, monkeypatch):
    assert cache.folder() == tmp_path / "cache" / "towers"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache.folder() == tmp_path / "home" / ".cache" / "towers"


def test_key_changes_with_the_identity_only():
    key = cache.key("cifar10-train", {"version": 1, "size": 2})
    assert key == cache.key("cifar10-train", {"size": 2, "version": 1})
    assert key != cache.key("cifar10-train", {"version": 1, "size": 3})
    assert key.startswith("cifar10-train-")
    assert "/" not in cache.key("../set/config:1.0.0", {})
    assert not cache.key("../set", {}).startswith(".")


def test_fingerprint_sees_pixels_labels_and_shape():
    images, labels, names = _Maker()()
    fingerprints = {
        cache.fingerprint(decoded.Decoded(images, labels, names)),
        cache.fingerprint(decoded.Decoded(images, labels[::-1], names)),
        cache.fingerprint(decoded.Decoded(images[::-1], labels, names)),
        cache.fingerprint(decoded.Decoded(images.reshape(2, 3, 2, 3), labels, names)),
    }
    assert len(fingerprints) == 4
    other_names = decoded.Decoded(images, labels, ("a", "b"))
    assert cache.fingerprint(other_names) in fingerprints


def _truncate(path):
    content = (path / "images.npy").read_bytes()
    (path / "images.npy").write_bytes(content[:-1])


def _truncate_and_lie_about_it(path):
    _truncate(path)
    size = (path / "images.npy").stat().st_size
    _edit_meta(path, lambda meta: meta["sizes"].update({"images.npy": size}))


def _flip_a_bit_of_an_image(path):
    content = bytearray((path / "images.npy").read_bytes())
    content[-1] ^= 1
    (path / "images.npy").write_bytes(content)


def _swap_two_labels(path):
    labels = np.load(path / "labels.npy")
    np.save(path / "labels.npy", labels[::-1])


def _lose_labels(path):
    (path / "labels.npy").unlink()


def _lose_meta(path):
    (path / "meta.json").unlink()


def _cut_meta(path):
    (path / "meta.json").write_text((path / "meta.json").read_text()[:40])


def _foreign_meta(path):
    (path / "meta.json").write_text("[1, 2]")


def _no_sizes(path):
    _edit_meta(path, lambda meta: meta.pop("sizes"))


def _other_format(path):
    _edit_meta(path, lambda meta: meta.update(format=cache.FORMAT + 1))


def _pickled_labels(path):
    np.save(path / "labels.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    size = (path / "labels.npy").stat().st_size
    _edit_meta(path, lambda meta: meta["sizes"].update({"labels.npy": size}))


def _endless_labels(path):
    header = {"descr": "<i4", "fortran_order": False, "shape": (10**15,)}
    with open(path / "labels.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    size = (path / "labels.npy").stat().st_size
    _edit_meta(path, lambda meta: meta["sizes"].update({"labels.npy": size}))


def _endless_meta(path):
    (path / "meta.json").write_text("[" * 100_000)


def _images_of_another_type(path):
    np.save(path / "images.npy", np.zeros((2, 2, 3, 3), np.float32))
    size = (path / "images.npy").stat().st_size
    _edit_meta(path, lambda meta: meta["sizes"].update({"images.npy": size}))


def _no_array(path):
    content = (path / "images.npy").read_bytes()
    (path / "images.npy").write_bytes(b"x" * len(content))


def _label_outside(path):
    np.save(path / "labels.npy", np.array([1, 2], np.int32))


def _labels_of_another_type(path):
    """The same bytes: the fingerprint does not tell them from each other."""
    labels = np.load(path / "labels.npy")
    np.save(path / "labels.npy", labels.view(np.uint32))


def _another_entry(path):
    _edit_meta(path, lambda meta: meta.update(key="pets-test-0123"))


def _names_without_their_checksum(path):
    meta = (path / "meta.json").read_text()
    (path / "meta.json").write_text(meta.replace('"dog"', '"dog", "eel"'))


def _a_file_in_its_place(path):
    shutil.rmtree(path)
    path.write_text("not a folder")


def _a_pipe_in_its_place(path):
    shutil.rmtree(path)
    os.mkfifo(path)


def _a_loop_in_its_place(path):
    shutil.rmtree(path)
    path.symlink_to(path.name)


def _edit_meta(path, change):
    """Changes the description and its checksum: for the checks that come after that."""
    meta = json.loads((path / "meta.json").read_text())
    del meta["sha256"]
    change(meta)
    meta["sha256"] = cache._sha256(meta)
    (path / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _truncate_and_lie_about_it,
        _flip_a_bit_of_an_image,
        _swap_two_labels,
        _lose_labels,
        _lose_meta,
        _cut_meta,
        _foreign_meta,
        _no_sizes,
        _pickled_labels,
        _endless_labels,
        _endless_meta,
        _images_of_another_type,
        _no_array,
        _label_outside,
        _labels_of_another_type,
        _another_entry,
        _names_without_their_checksum,
        _a_file_in_its_place,
        _a_pipe_in_its_place,
        _a_loop_in_its_place,
    ],
)
def test_broken_entry_is_noticed_and_made_again(damage, caplog):
    _check_noticed_and_made_again(lambda: damage(_entry_path()), caplog)


@pytest.mark.parametrize("kind", odd_files.KINDS)
@pytest.mark.parametrize("name", ["meta.json", "images.npy", "labels.npy"])
def test_what_is_no_file_is_not_read(name, kind, caplog):
    _check_noticed_and_made_again(
        lambda: odd_files.put(kind, _entry_path() / name), caplog, odd_files.KINDS[kind]
    )


def _check_noticed_and_made_again(damage, caplog, reason=""):
    maker = _Maker()
    _load(maker)
    damage()
    _assert_is_what_the_maker_makes(_load(maker))
    assert maker.calls == 2
    assert "is broken" in caplog.text and reason in caplog.text
    _assert_is_what_the_maker_makes(_load(maker))
    assert maker.calls == 2, "the rebuilt entry was not kept"
    assert os.listdir(cache.folder()) == ["pets-train-0123"]


def test_an_entry_of_another_format_is_made_again_without_a_word(caplog):
    maker = _Maker()
    _load(maker)
    _other_format(_entry_path())
    _assert_is_what_the_maker_makes(_load(maker))
    assert maker.calls == 2 and caplog.text == ""


@pytest.mark.parametrize("name", ["meta.json", "images.npy", "labels.npy"])
def test_a_bit_that_flips_is_noticed_or_harmless(name, monkeypatch):
    """Any bit in any byte: all were tried; here, every seventh."""
    monkeypatch.setattr(cache._log, "disabled", True)  # thousands of lines
    _load(_Maker())
    path = _entry_path() / name
    content, maker = path.read_bytes(), _Maker()
    for bit in range(0, 8 * len(content), 7):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        entry = cache.load_or_make("pets-train-0123", "a test", maker, read_only=True)
        _assert_is_what_the_maker_makes(entry)
    assert maker.calls > 0.5 * len(content), "too few were noticed"


def test_unwritable_folder_is_done_without(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    maker = _Maker()
    _assert_is_what_the_maker_makes(_load(maker))
    _assert_is_what_the_maker_makes(_load(maker))
    assert maker.calls == 2
    warnings = [record for record in caplog.records if "not cached" in record.getMessage()]
    assert len(warnings) == 2 and "\n" not in warnings[0].getMessage()


def test_full_disk_is_done_without_and_leaves_nothing(monkeypatch, caplog):
    def full(path, *_, **__):
        pathlib.Path(path).write_bytes(b"half of")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    _assert_is_what_the_maker_makes(_load(_Maker()))
    assert "No space left on device" in caplog.text
    assert os.listdir(cache.folder()) == []


def test_entry_appears_only_when_whole(monkeypatch):
    """What a killed process leaves is no entry: the name appears after the last file."""
    write_files = cache._write_files
    seen_while_writing = []

    def watch(*arguments):
        write_files(*arguments)
        seen_while_writing.append(_entry_path().exists())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache, "_write_files", watch)
        with pytest.raises(KeyboardInterrupt):
            _load(_Maker())
    assert seen_while_writing == [False]
    assert os.listdir(cache.folder()) == []


def test_losing_a_race_is_fine(caplog):
    """Another process finishes the same entry while this one decodes."""
    winner = _Maker()

    def make_while_another_finishes() -> decoded.Decoded:
        _load(winner)
        return _Maker()()

    entry = cache.load_or_make("pets-train-0123", "a test", make_while_another_finishes)
    _assert_is_what_the_maker_makes(entry)
    assert winner.calls == 1 and caplog.text == ""
    assert os.listdir(cache.folder()) == ["pets-train-0123"]


def test_old_leftovers_go_and_young_ones_stay():
    old, young = cache.folder() / ".tmp-old", cache.folder() / ".tmp-young"
    for path in (old, young):
        path.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    _load(_Maker())
    assert not old.exists() and young.exists()


def test_unusable_arrays_are_not_kept():
    images, _, names = _Maker()()

    def make():
        return decoded.Decoded(images, np.array([0, 2], np.int32), names)

    with pytest.raises(decoded.DataError, match="example 1 has label 2; with 2 classes.* 0 to 1"):
        cache.load_or_make("pets-train-0123", "a test", make)
    assert not _entry_path().exists()


def test_shapes_are_drawn_once(monkeypatch):
    first = datasets.load("shapes", None, "test")
    monkeypatch.setattr(datasets.shapes, "make", None)  # a second call would raise
    second = datasets.load("shapes", "/no/such/folder", "test")
    np.testing.assert_array_equal(first.images, second.images)
    assert first.fingerprint == second.fingerprint and len(first.images) == 1000
    monkeypatch.setattr(datasets.shapes, "GENERATOR_VERSION", -1)
    with pytest.raises(TypeError):
        datasets.load("shapes", None, "test")
