"""A folder of pictures as a source: which files are examples, of which class and split."""

import os
import unicodedata

import photos
import pytest

from input_pipeline import decoded, folder


@pytest.fixture
def root(tmp_path):
    return photos.folder(tmp_path / "pictures", 20)


def load(root, split, class_names=None):
    return folder.load(root, split, 32, class_names)


def names_of(root, split) -> list[str]:
    return load(root, split).names()


def labels_of(found) -> list[int]:
    return [found.read(number)[1] for number in range(found.num_examples)]


def test_classes_are_the_folders_in_their_order(root):
    found = load(root, "all")
    assert found.class_names == ("ant", "bee", "cow")
    assert found.names() == [
        f"{name}/{number:03d}.jpg" for name in found.class_names for number in range(20)
    ]
    assert labels_of(found) == [0] * 20 + [1] * 20 + [2] * 20
    assert found.read(23)[0] == (root / "bee" / "003.jpg").read_bytes()


def test_every_tenth_is_held_out_and_none_is_moved_by_others(root):
    train, test = names_of(root, "train"), names_of(root, "test")
    assert sorted(train + test) == names_of(root, "all")
    assert not set(train) & set(test)
    assert 1 <= len(test) <= 15
    photos.folder(root, 20, first=20)
    assert set(train) <= set(names_of(root, "train"))
    assert set(test) <= set(names_of(root, "test"))
    shares = [folder.is_for_test(f"class/{number}.jpg") for number in range(5000)]
    assert 0.08 < sum(shares) / 5000 < 0.12


def test_folders_of_splits(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    assert folder.split_names(tmp_path) == ["train", "val"]
    assert names_of(tmp_path, "val")[0] == "ant/000.jpg"
    assert load(tmp_path, "train").num_examples == 6
    with pytest.raises(decoded.DataError, match="no split 'test' in .*; it has train, val"):
        load(tmp_path, "test")


def test_a_split_that_lacks_a_class_has_the_labels_of_the_training(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    for name in ("000.jpg", "001.jpg"):
        (tmp_path / "val" / "ant" / name).unlink()
    (tmp_path / "val" / "ant").rmdir()
    found = load(tmp_path, "val")
    assert found.class_names == ("ant", "bee", "cow")
    assert labels_of(found) == [1, 1, 2, 2]


def test_other_files_are_skipped_and_said(root):
    (root / "ant" / "Thumbs.db").write_bytes(b"x")
    (root / "ant" / "notes").write_bytes(b"x")
    (root / "ant" / ".hidden.jpg").write_bytes(b"x")
    (root / "ant" / ".cache").mkdir()
    (root / "ant" / ".cache" / "a.jpg").write_bytes(b"x")
    (root / ".git").mkdir()
    (root / "README.md").write_text("x")
    found = load(root, "all")
    assert found.num_examples == 60
    assert found.source.endswith("(2 files with other endings skipped: .db, none)")


def test_folders_within_a_class_are_of_the_class(root):
    (root / "ant" / "more").mkdir()
    os.rename(root / "ant" / "000.jpg", root / "ant" / "more" / "a.JPEG")
    found = load(root, "all")
    assert (found.name(19), found.read(19)[1]) == ("ant/more/a.JPEG", 0)


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


def test_what_it_is_changes_with_its_files_and_not_with_their_place(root, tmp_path):
    before = load(root, "all").fingerprint
    os.rename(root, tmp_path / "elsewhere")
    root = tmp_path / "elsewhere"
    os.utime(root / "ant" / "000.jpg", (1, 1))
    assert load(root, "all").fingerprint == before
    with open(root / "ant" / "000.jpg", "ab") as file:
        file.write(b"x")
    changed = load(root, "all").fingerprint
    os.rename(root / "ant" / "000.jpg", root / "bee" / "100.jpg")
    assert len({before, changed, load(root, "all").fingerprint}) == 3


def test_a_name_is_the_same_on_every_system(tmp_path):
    """macOS decomposes names; joiners are part of words."""
    roots = [tmp_path / form for form in ("NFC", "NFD")]
    for path in roots:
        photos.folder(path, 20)
        for old, new in (("ant", "fourmi ailée"), ("bee", "می\u200cخواهم"), ("cow", "👩\u200d🌾")):
            os.rename(path / old, path / unicodedata.normalize(path.name, new))
    composed, other = (load(path, "train") for path in roots)
    assert composed.fingerprint == other.fingerprint
    assert composed.class_names == other.class_names == tuple(sorted(composed.class_names))
    assert composed.names() != other.names()


def test_a_class_in_two_spellings_is_one(root):
    for name, form in (("ant", "NFC"), ("bee", "NFD")):
        os.rename(root / name, root / unicodedata.normalize(form, "é"))
    found = load(root, "all")
    assert found.class_names == ("cow", "é") and found.num_examples == 60


def test_a_folder_of_another_program_s_export(root):
    """Names of Windows, upper-case endings, and what systems put beside pictures."""
    os.rename(root / "ant" / "000.jpg", root / "ant" / "Bild (1) – Kopie.JPG")
    os.rename(root / "bee", root / "Neuer Ordner")
    (root / "Neuer Ordner" / "2021 Ferien").mkdir()
    os.rename(root / "Neuer Ordner" / "000.jpg", root / "Neuer Ordner" / "2021 Ferien" / "a.JPEG")
    (root / "__MACOSX" / "ant").mkdir(parents=True)
    (root / "__MACOSX" / "ant" / "._000.jpg").write_bytes(b"x")
    (root / "cow" / "@eaDir").mkdir()
    (root / "cow" / "@eaDir" / "SYNOPHOTO_THUMB_S.jpg").write_bytes(b"x")
    for junk in ("Thumbs.db", "desktop.ini", ".DS_Store", "001.jpg:Zone.Identifier"):
        (root / "cow" / junk).write_bytes(b"x")
    found = load(root, "all")
    assert found.class_names == ("Neuer Ordner", "ant", "cow") and found.num_examples == 60
    assert "Neuer Ordner/2021 Ferien/a.JPEG" in found.names()
    assert "ant/Bild (1) – Kopie.JPG" in found.names()
    assert found.source.endswith("(3 files with other endings skipped: .db, .identifier, .ini)")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda r: (r / "dog").mkdir(), "the class 'dog' has no pictures in train"),
        (lambda r: (r / "ant" / "a.tif").touch(), "formats that are not read, .*ant/a.tif"),
        (lambda r: (r / "a\tb").mkdir(), "is not a class name"),
        (lambda r: os.symlink("nowhere", r / "ant" / "x.jpg"), "x.jpg cannot be read: No such"),
        (lambda r: os.symlink(r / "ant", r / "ant" / "x"), "ant/x is a link to a folder"),
        (lambda r: os.mkfifo(r / "ant" / "x.jpg"), "ant/x.jpg is not a file"),
        (lambda r: (r / "x.png").touch(), "1 pictures are in no class's folder, such as x.png"),
        (lambda r: (r / "Training").mkdir(), "'Training' would be classes, but look like splits"),
    ],
    ids=["empty class", "tiff", "name", "dead link", "loop", "pipe", "stray", "splits"],
)  # fmt: skip
def test_what_is_refused(root, break_it, message):
    break_it(root)
    with pytest.raises(decoded.DataError, match=message):
        load(root, "train")


def test_pictures_beside_the_classes_of_a_split_are_refused(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    (tmp_path / "val" / "x.jpg").touch()
    assert load(tmp_path, "train").num_examples == 6
    with pytest.raises(decoded.DataError, match="such as val/x.jpg"):
        load(tmp_path, "val")


def test_pictures_that_are_all_held_out(root):
    held_out = next(n for n in range(1000) if folder.is_for_test(f"dog/{n}.jpg"))
    (root / "dog").mkdir()
    os.rename(root / "ant" / "000.jpg", root / "dog" / f"{held_out}.jpg")
    with pytest.raises(decoded.DataError, match="'dog' has no pictures in train beside those held"):
        load(root, "train")


def test_one_folder_is_no_set(tmp_path):
    photos.folder(tmp_path / "all" / "pictures", 2)
    with pytest.raises(
        decoded.DataError, match="has 1 folders, but needs one for each of at least"
    ):
        load(tmp_path / "all", "train")


def test_no_pictures(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    with pytest.raises(decoded.DataError, match="there are no pictures in all"):
        load(tmp_path, "all")


class TestOtherPictures:
    """A folder that is evaluated by a run has the run's classes, or some of them."""

    def test_labels_are_the_runs(self, root):
        found = load(root, "all", ["zebra", "cow", "bee", "ant"])
        assert labels_of(found)[::20] == [1, 2, 3]

    def test_a_class_that_the_run_does_not_have(self, root):
        with pytest.raises(decoded.DataError, match="'cow' is not a class of the set, .* ant, b"):
            load(root, "all", ["ant", "bee"])


@pytest.mark.parametrize("change", ["size", "gone"])
def test_a_picture_that_changes_after_it_was_listed_cannot_be_read(root, change):
    found, path = load(root, "all"), root / "bee" / "003.jpg"
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(OSError, match="No such file" if change == "gone" else "has changed since"):
        found.read(23)
