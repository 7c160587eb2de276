"""Stores of encoded pictures: made whole or not at all, and read at random."""

import json
import os
import resource
import shutil
import threading
import time
import warnings

import numpy as np
import photos
import pytest
from array_record.python import array_record_module

from input_pipeline import decoded, pictures, store

COUNT, PER_SHARD = 23, 5


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(store, "PICTURES_PER_SHARD", PER_SHARD)
    monkeypatch.setattr(store, "_LOOKED_AT_AHEAD", 2)


def encoded(number: int) -> bytes:
    kind = ("JPEG", "PNG")[number % 2]
    return photos.encoded(photos.picture(20 + number, 30, number), kind)


def name_of(number: int) -> str:
    return "odd\n\udcff name" if number == 22 else f"picture {number}"


class Made:
    """A source of pictures that were made for a test.

    Attributes:
      asked: the first number of each iteration.
      stop_at: where one is cut off, as by Ctrl-C.
    """

    description, class_names = "pictures made for a test", ("ant", "bee", "cow")

    def __init__(self, contents=None, identity="made"):
        self.contents = contents or [encoded(number) for number in range(COUNT)]
        self.num_examples = len(self.contents)
        self.files = None
        self.num_bytes = sum(len(c) for c in self.contents if isinstance(c, bytes))
        self.identity = {"source": identity}
        self.asked, self.stop_at = [], None

    def examples(self, first):
        self.asked.append(first)
        for number in range(first, self.num_examples):
            if number == self.stop_at:
                raise KeyboardInterrupt
            yield store.Example(name_of(number), number % 3, self.contents[number])


def test_holds_the_bytes_as_they_came_and_reads_them_in_any_order(tmp_path):
    source = Made()
    made = store.open_or_make("mine", source, tmp_path)
    assert len(made) == COUNT and made.class_names == ("ant", "bee", "cow")
    ids = np.random.default_rng(0).permutation(COUNT).repeat(2)
    assert made.reader(ids) == [source.contents[number] for number in ids]
    assert made.names() == [name_of(number) for number in range(COUNT)]
    np.testing.assert_array_equal(made.index.labels, np.arange(COUNT) % 3)
    np.testing.assert_array_equal(made.index.sizes, [(20 + n, 30) for n in range(COUNT)])
    np.testing.assert_array_equal(made.index.kinds, np.arange(COUNT) % 2)
    shards = sorted(path.name for path in made.path.glob("*.array_record"))
    assert shards == [store.shard_name(number) for number in range(5)]
    assert not list(tmp_path.glob(f"*{store.UNFINISHED}")) + list(made.path.glob("part-*"))


def test_is_made_once(tmp_path):
    source = Made()
    first, second = (store.open_or_make("mine", source, tmp_path) for _ in range(2))
    assert source.asked == [0]
    assert first.fingerprint == second.fingerprint


def test_has_a_fingerprint_of_what_is_in_it_alone(tmp_path):
    def fingerprint(source, folder):
        return store.open_or_make("mine", source, tmp_path / folder).fingerprint

    one = fingerprint(Made(), "one")
    assert fingerprint(Made(identity="elsewhere"), "two") == one
    others = Made(identity="others")
    others.contents[3], others.contents[4] = others.contents[4], others.contents[3]
    assert fingerprint(others, "three") != one
    named = Made(identity="named")
    named.class_names = ("ant", "bee", "dog")
    assert fingerprint(named, "four") != one


def in_records(source, folder):
    """The same source, whose pictures lie in two ArrayRecord files already."""
    halves = [source.contents[:9], source.contents[9:]]
    paths = [str(folder / f"there-{number}") for number in range(2)]
    for path, contents in zip(paths, halves, strict=True):
        writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
        for content in contents:
            writer.write(content)
        writer.close()
    source.files = store.Files(paths, [len(half) for half in halves], bytes, "Copy it again.")
    return source


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in place"])
@pytest.mark.parametrize(("stop_at", "resumed_at"), [(3, 0), (12, 10), (22, 20)])
def test_continues_where_making_it_was_cut_off(tmp_path, stop_at, resumed_at, in_place):
    whole = store.open_or_make("mine", Made(), tmp_path / "whole")
    source = in_records(Made(), tmp_path) if in_place else Made()
    source.stop_at = stop_at
    with pytest.raises(KeyboardInterrupt):
        store.open_or_make("mine", source, tmp_path / "cut")
    assert not [p for p in (tmp_path / "cut").iterdir() if (p / "store.json").exists()]
    source.stop_at = None
    made = store.open_or_make("mine", source, tmp_path / "cut")
    assert source.asked == [0, resumed_at]
    assert made.fingerprint == whole.fingerprint
    assert made.names() == whole.names()
    for ours, theirs in zip(made.index, whole.index, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert made.reader(range(COUNT)) == source.contents
    assert len(list(made.path.glob("*.array_record"))) == (0 if in_place else 5)


def test_keeps_the_files_open_that_were_read_last(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MOST_OPEN_FILES", 2)
    opened, open_file = [], store._opened
    monkeypatch.setattr(store, "_opened", lambda path: opened.append(path) or open_file(path))
    reader = store.open_or_make("mine", Made(), tmp_path).reader
    opened.clear()
    for number in (0, 5, 1, 10, 2, 6):  # of shards 0, 1, 0, 2, 0, 1
        reader([number])
    shards = [int(path[-18:-13]) for path in opened]
    assert shards == [0, 1, 2, 1]


@pytest.mark.parametrize("torn", ["part-00001.npz", "pictures-00001.array_record"])
def test_a_torn_shard_of_an_unfinished_store_is_made_again(tmp_path, torn):
    source = Made()
    source.stop_at = 17
    with pytest.raises(KeyboardInterrupt):
        store.open_or_make("mine", source, tmp_path)
    (unfinished,) = tmp_path.glob(f"*{store.UNFINISHED}")
    os.truncate(unfinished / torn, 100)
    source.stop_at = None
    made = store.open_or_make("mine", source, tmp_path)
    assert source.asked == [0, 5]
    assert made.reader(range(COUNT)) == source.contents


def test_of_two_at_once_one_makes_it_and_the_other_waits(tmp_path, capsys):
    source, found = Made(), []
    slow = source.examples

    def slowly(first):
        time.sleep(0.5)
        yield from slow(first)

    source.examples = slowly

    def make():
        found.append(store.open_or_make("mine", source, tmp_path))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.asked == [0]
    assert found[0].fingerprint == found[1].fingerprint
    assert capsys.readouterr().out.count("waiting for another process") == 1


class TestPicturesThatCannotBeUsed:
    def test_are_all_named_and_nothing_is_kept(self, tmp_path):
        source = Made()
        source.contents[4] = b"no picture"
        source.contents[11] = source.contents[11][:-60]
        source.contents[12] = FileNotFoundError(2, "No such file or directory")
        with pytest.raises(decoded.DataError) as raised:
            store.open_or_make("mine", source, tmp_path)
        message = str(raised.value)
        assert "3 of 23 pictures cannot be used: picture 4 is not JPEG or" in message
        assert "picture 11 cannot be decoded" in message
        assert "picture 12 cannot be read (No such file or directory)" in message
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]

    def test_are_many(self, tmp_path):
        source = Made([b"x"] * COUNT)
        with pytest.raises(decoded.DataError, match="and 13 more, in .*unusable.txt") as raised:
            store.open_or_make("mine", source, tmp_path)
        assert str(raised.value).count("picture ") == 10
        (listing,) = tmp_path.glob("*.unusable.txt")
        assert listing.read_bytes().count(b" is not JPEG or") == COUNT


class TestADamagedStore:
    @pytest.fixture
    def source(self):
        return Made()

    @pytest.fixture
    def made(self, tmp_path, source):
        return store.open_or_make("mine", source, tmp_path)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: os.truncate(path / "index.npz", 100),
            lambda path: os.truncate(path / store.shard_name(2), 1000),
            lambda path: (path / store.shard_name(2)).unlink(),
            lambda path: (path / "store.json").unlink(),
            lambda path: (path / "store.json").write_text("{"),
            lambda path: of_format(path, store.FORMAT + 1),
            lambda path: changed(path / "index.npz"),
            lambda path: changed(path / "store.json"),
        ],
        ids=["index", "shard", "no shard", "no json", "torn json", "format", "bit", "bit in json"],
    )  # fmt: skip
    def test_is_made_again(self, tmp_path, source, made, damage):
        damage(made.path)
        again = store.open_or_make("mine", source, tmp_path)
        assert source.asked == [0, 0]
        assert again.fingerprint == made.fingerprint
        assert again.reader(range(COUNT)) == source.contents

    @pytest.mark.parametrize("damage", ["gone", "changed"])
    def test_is_said_where_it_shows_as_it_is_read(self, made, damage):
        path = made.path / store.shard_name(1)
        if damage == "gone":
            path.unlink()
        else:
            content = bytearray(path.read_bytes())
            first = content.index(encoded(5)[:20])
            content[first + 30 : first + 40] = bytes(10)
            path.write_bytes(content)
        reader = made.reader
        assert reader([0, 22]) == [encoded(0), encoded(22)]
        with pytest.raises(
            decoded.DataError, match="00001.array_record cannot be read: .* Remove "
        ):
            reader([5])


def of_format(path, number) -> None:
    about = json.loads((path / "store.json").read_text())
    del about["sha256"]
    about["format"] = number
    about["sha256"] = store._sha256(about)
    (path / "store.json").write_text(json.dumps(about))


def changed(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_dry_run_makes_none_and_leaves_a_damaged_one(tmp_path):
    source = Made()
    with pytest.raises(decoded.DataError, match="not in a store in .* and a dry run .* makes none"):
        store.open_or_make("mine", source, tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists() and source.asked == []
    made = store.open_or_make("mine", source, tmp_path)
    assert store.open_or_make("mine", source, tmp_path, read_only=True).index.labels.size == COUNT
    (made.path / "index.npz").unlink()
    with pytest.raises(decoded.DataError, match="cannot be used"):
        store.open_or_make("mine", source, tmp_path, read_only=True)
    assert made.path.exists()


class TestADiskThatIsFull:
    def test_is_asked_before(self, tmp_path, monkeypatch):
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        source = Made()
        with pytest.raises(decoded.DataError, match="takes 0.00 GB in .*`store_dir` names another"):
            store.open_or_make("mine", source, tmp_path)
        assert source.asked == []

    def test_is_said_and_what_is_finished_stays(self, tmp_path):
        """The system's own limit on the size of a file stands for the disk."""
        source = Made()
        source.contents[17] = photos.encoded(photos.picture(600, 600, 1), "PNG", compress_level=0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, limits[1]))
        try:
            with pytest.raises(decoded.DataError, match="cannot be written: .*stays, and the next"):
                store.open_or_make("mine", source, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        made = store.open_or_make("mine", source, tmp_path)
        assert source.asked == [0, 15]
        assert made.reader([17]) == [source.contents[17]]


def test_what_lies_ready_takes_no_space(tmp_path, monkeypatch):
    source = in_records(Made(), tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=4_000)
    assert source.num_bytes > 4_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert len(store.open_or_make("mine", source, tmp_path / "stores")) == COUNT
    with pytest.raises(decoded.DataError, match="are free there"):
        store.open_or_make("mine", Made(identity="copied"), tmp_path / "stores")


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(decoded.DataError, match="cannot be written: Not a directory"):
        store.open_or_make("mine", Made(), tmp_path / "file" / "stores")


def test_every_format_has_its_place():
    assert [getattr(pictures, name) for name in pictures.FORMATS] == list(range(5))


def test_a_store_by_the_name_of_another_is_made_again(tmp_path):
    """Copied or renamed by hand, it would give another set's pictures."""
    one = store.open_or_make("mine", Made(identity="one"), tmp_path)
    contents = [encoded(number + 1) for number in range(COUNT)]
    other = store.open_or_make("mine", Made(contents, identity="other"), tmp_path)
    shutil.rmtree(one.path)
    shutil.move(other.path, one.path)
    again = Made(identity="one")
    assert store.open_or_make("mine", again, tmp_path).fingerprint == one.fingerprint
    assert again.asked == [0]


def test_names_that_are_gone_are_said(tmp_path):
    made = store.open_or_make("mine", Made(), tmp_path)
    (made.path / "names").unlink()
    with pytest.raises(decoded.DataError, match="/names: No such file or directory"):
        made.names()


def test_a_picture_on_which_pillow_fails_is_named(tmp_path):
    source = Made([encoded(0), photos.bmp_cut_short(), *map(encoded, range(2, 8))])
    with pytest.raises(decoded.DataError, match="1 of 8 pictures cannot be used: picture 1 is a"):
        store.open_or_make("mine", source, tmp_path)


def test_warnings_go_on_after_a_store_was_made(tmp_path):
    """`warnings.catch_warnings` in several threads would silence them for good."""
    filters = list(warnings.filters)
    pngs = [photos.encoded(photos.picture(200, 300, number), "PNG") for number in range(32)]
    store.open_or_make("mine", Made(pngs), tmp_path)
    assert warnings.filters == filters
