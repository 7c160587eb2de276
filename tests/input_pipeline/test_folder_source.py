"""A folder of pictures as a source: which files are examples, of which class and split."""

import os

import photos
import pytest

from input_pipeline import decoded, folder_source


@pytest.fixture
def root(tmp_path):
    return photos.folder(tmp_path / "pictures", 20)


def names_of(root, split, **options) -> list[str]:
    return [e.name for e in folder_source.Folder(root, split, **options).examples(0)]


def test_classes_are_the_folders_in_their_order(root):
    found = folder_source.Folder(root, "all")
    assert found.class_names == ("ant", "bee", "cow")
    assert found.num_examples == 60
    examples = list(found.examples(0))
    assert [e.name for e in examples] == [
        f"{name}/{number:03d}.jpg" for name in found.class_names for number in range(20)
    ]
    assert [e.label for e in examples] == [0] * 20 + [1] * 20 + [2] * 20
    assert found.num_bytes == sum(len(e.content) for e in examples)
    assert [e.name for e in found.examples(57)] == [f"cow/{n:03d}.jpg" for n in (17, 18, 19)]


def test_every_tenth_is_held_out_and_none_is_moved_by_others(root):
    train, test = names_of(root, "train"), names_of(root, "test")
    assert sorted(train + test) == names_of(root, "all")
    assert not set(train) & set(test)
    assert 1 <= len(test) <= 15
    photos.folder(root, 20, first=20)
    assert set(train) <= set(names_of(root, "train"))
    assert set(test) <= set(names_of(root, "test"))
    shares = [folder_source.is_for_test(f"class/{number}.jpg") for number in range(5000)]
    assert 0.08 < sum(shares) / 5000 < 0.12


def test_folders_of_splits(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    assert folder_source.split_names(tmp_path) == ["train", "val"]
    assert names_of(tmp_path, "val")[0] == "ant/000.jpg"
    assert folder_source.Folder(tmp_path, "train").num_examples == 6
    with pytest.raises(decoded.DataError, match="no split 'test' in .*; it has train, val"):
        folder_source.Folder(tmp_path, "test")


def test_a_split_that_lacks_a_class_has_the_labels_of_the_training(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    for name in ("000.jpg", "001.jpg"):
        (tmp_path / "val" / "ant" / name).unlink()
    (tmp_path / "val" / "ant").rmdir()
    found = folder_source.Folder(tmp_path, "val")
    assert found.class_names == ("ant", "bee", "cow")
    assert [e.label for e in found.examples(0)] == [1, 1, 2, 2]


def test_other_files_are_skipped_and_said(root):
    (root / "ant" / "Thumbs.db").write_bytes(b"x")
    (root / "ant" / "notes").write_bytes(b"x")
    (root / "ant" / ".hidden.jpg").write_bytes(b"x")
    (root / "ant" / ".cache").mkdir()
    (root / "ant" / ".cache" / "a.jpg").write_bytes(b"x")
    (root / ".git").mkdir()
    (root / "README.md").write_text("x")
    found = folder_source.Folder(root, "all")
    assert found.num_examples == 60
    assert found.skipped == {".db": 1, "": 1}
    assert found.description.endswith("(2 files with other endings skipped: .db, none)")


def test_folders_within_a_class_are_of_the_class(root):
    (root / "ant" / "more").mkdir()
    os.rename(root / "ant" / "000.jpg", root / "ant" / "more" / "a.JPEG")
    found = list(folder_source.Folder(root, "all").examples(0))
    assert (found[19].name, found[19].label) == ("ant/more/a.JPEG", 0)


def test_odd_names_are_names(root):
    name = os.fsdecode("ünï code\n".encode() + b"\xff.jpg")
    os.rename(root / "ant" / "000.jpg", root / "ant" / name)
    assert f"ant/{name}" in names_of(root, "all")


def test_a_link_to_a_picture_is_one(root):
    os.symlink(root / "ant" / "000.jpg", root / "bee" / "link.jpg")
    os.rename(root / "cow", root.parent / "elsewhere")
    os.symlink(root.parent / "elsewhere", root / "cow")
    names = names_of(root, "all")
    assert "bee/link.jpg" in names and "cow/003.jpg" in names and len(names) == 61


def test_what_it_is_changes_with_its_files(root):
    def identity():
        return folder_source.Folder(root, "all").identity

    before = identity()
    assert identity() == before
    os.utime(root / "ant" / "000.jpg", (1, 1))
    assert identity() != before
    before = identity()
    os.rename(root / "ant" / "000.jpg", root / "bee" / "100.jpg")
    assert identity() != before


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda r: (r / "dog").mkdir(), "the class 'dog' has no pictures in train"),
        (lambda r: (r / "ant" / "a.tif").touch(), "formats that are not read, .*ant/a.tif"),
        (lambda r: (r / "a\tb").mkdir(), "is not a class name"),
        (lambda r: os.symlink("nowhere", r / "ant" / "x.jpg"), "No such file .*x.jpg"),
        (lambda r: os.symlink(r / "ant", r / "ant" / "x"), "ant/x is a link to a folder"),
        (lambda r: (r / "x.png").touch(), "1 pictures are in no class's folder, such as x.png"),
        (lambda r: (r / "Training").mkdir(), "'Training' would be classes, but look like splits"),
    ],
    ids=["empty class", "tiff", "name", "dead link", "loop", "stray", "splits"],
)  # fmt: skip
def test_what_is_refused(root, break_it, message):
    break_it(root)
    with pytest.raises(decoded.DataError, match=message):
        folder_source.Folder(root, "train")


def test_pictures_beside_the_classes_of_a_split_are_refused(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    (tmp_path / "val" / "x.jpg").touch()
    assert folder_source.Folder(tmp_path, "train").num_examples == 6
    with pytest.raises(decoded.DataError, match="such as val/x.jpg"):
        folder_source.Folder(tmp_path, "val")


def test_pictures_that_are_all_held_out(root):
    held_out = next(n for n in range(1000) if folder_source.is_for_test(f"dog/{n}.jpg"))
    (root / "dog").mkdir()
    os.rename(root / "ant" / "000.jpg", root / "dog" / f"{held_out}.jpg")
    with pytest.raises(decoded.DataError, match="'dog' has no pictures in train beside those held"):
        folder_source.Folder(root, "train")


def test_one_folder_is_no_set(tmp_path):
    photos.folder(tmp_path / "all" / "pictures", 2)
    with pytest.raises(
        decoded.DataError, match="has 1 folders, but needs one for each of at least"
    ):
        folder_source.Folder(tmp_path / "all", "train")


def test_no_pictures(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    with pytest.raises(decoded.DataError, match="there are no pictures in all"):
        folder_source.Folder(tmp_path, "all")


class TestOtherPictures:
    """A folder that is evaluated by a run has the run's classes, or some of them."""

    def test_labels_are_the_runs(self, root):
        found = folder_source.Folder(root, "all", ["zebra", "cow", "bee", "ant"])
        assert [e.label for e in found.examples(0)][::20] == [1, 2, 3]

    def test_a_class_that_the_run_does_not_have(self, root):
        with pytest.raises(decoded.DataError, match="'cow' is not a class of the set, .* ant, b"):
            folder_source.Folder(root, "all", ["ant", "bee"])


def test_a_picture_that_vanishes_is_handed_on_as_such(root):
    found = folder_source.Folder(root, "all")
    (root / "ant" / "001.jpg").unlink()
    examples = list(found.examples(0))
    assert isinstance(examples[1].content, FileNotFoundError)
    assert isinstance(examples[2].content, bytes)


@pytest.mark.parametrize("change", ["content", "time", "gone"])
def test_a_picture_that_changes_after_it_was_listed_cannot_be_read(root, change):
    """The store has the name of what was listed."""
    found, path = folder_source.Folder(root, "all"), root / "bee" / "003.jpg"
    before = path.stat()
    if change == "gone":
        path.unlink()
    if change == "content":
        path.write_bytes(path.read_bytes() + b"x")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if change == "time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    problems = {e.name: e.content for e in found.examples(0) if isinstance(e.content, OSError)}
    assert list(problems) == ["bee/003.jpg"]
    message = "No such file" if change == "gone" else "it has changed since the folder was listed"
    assert message in str(problems["bee/003.jpg"])
