"""A folder of pictures as a source: which files are examples, of which class and split."""

import os
import shutil
import unicodedata

import photos
import pytest

from input_pipeline import checks, datasets, folder


@pytest.fixture
def root(tmp_path):
    return photos.folder(tmp_path / "pictures", 20)


def load(root, split, class_names=None):
    return datasets.load("folder", str(root), split, class_names=class_names)


def labels_of(result) -> list[int]:
    return [result.read(number)[1] for number in range(result.num_examples)]


def test_classes_are_the_folders_in_their_order_and_two_are_enough(root):
    result = load(root, "all")
    assert result.class_names == ("ant", "bee", "cow")
    expected = [f"{name}/{number:03d}.jpg" for name in result.class_names for number in range(20)]
    assert photos.names(result) == expected
    assert labels_of(result) == [0] * 20 + [1] * 20 + [2] * 20
    assert result.read(23)[0] == (root / "bee" / "003.jpg").read_bytes()
    # By a run that has other classes, too.
    assert labels_of(load(root, "all", ["zebra", "cow", "bee", "ant"]))[::20] == [1, 2, 3]
    shutil.rmtree(root / "cow")
    assert load(root, "all").class_names == ("ant", "bee")


def test_every_tenth_is_held_out_and_none_is_moved_by_others(root):
    train, test, both = (photos.names(load(root, split)) for split in ("train", "test", "all"))
    assert sorted(train + test) == both and not set(train) & set(test)
    assert 1 <= len(test) <= 15
    photos.folder(root, 20, first=20)
    assert set(train) <= set(photos.names(load(root, "train")))
    assert set(test) <= set(photos.names(load(root, "test")))
    shares = [folder.is_for_test(f"class/{number}.jpg") for number in range(5000)]
    assert 0.08 < sum(shares) / 5000 < 0.12


def test_folders_of_splits(tmp_path):
    photos.folder(tmp_path, 2, splits=("train", "val"))
    shutil.rmtree(tmp_path / "val" / "ant")
    assert load(tmp_path, "train").num_examples == 6
    result = load(tmp_path, "val")
    assert result.class_names == ("ant", "bee", "cow") and labels_of(result) == [1, 1, 2, 2]
    assert result.name(0) == "bee/000.jpg"
    with pytest.raises(checks.DataError, match="'test'.* it has train, val"):
        load(tmp_path, "test")
    (tmp_path / "val" / "x.jpg").touch()
    assert load(tmp_path, "train").num_examples == 6
    with pytest.raises(checks.DataError, match="val/x.jpg"):
        load(tmp_path, "val")


def test_a_folder_of_another_program_s_export(root):
    """Names of Windows, upper-case endings, odd bytes, links, and what systems put beside them."""
    odd = os.fsdecode("ünï code\n".encode() + b"\xff.jpg")
    os.rename(root / "ant" / "000.jpg", root / "ant" / "Bild (1) – Kopie.JPG")
    os.rename(root / "ant" / "001.jpg", root / "ant" / odd)
    os.rename(root / "bee", root / "Neuer Ordner")
    (root / "Neuer Ordner" / "2021 Ferien").mkdir()
    os.rename(root / "Neuer Ordner" / "000.jpg", root / "Neuer Ordner" / "2021 Ferien" / "a.JPEG")
    os.rename(root / "cow", root.parent / "elsewhere")
    os.symlink(root.parent / "elsewhere", root / "cow")
    os.symlink(root / "cow" / "000.jpg", root / "cow" / "link.jpg")
    for hidden in ("__MACOSX/ant", "cow/@eaDir", "ant/.cache", ".git"):
        (root / hidden).mkdir(parents=True)
        (root / hidden / "a.jpg").write_bytes(b"x")
    for junk in ("Thumbs.db", "desktop.ini", ".DS_Store", "001.jpg:Zone.Identifier", "notes"):
        (root / "cow" / junk).write_bytes(b"x")
    (root / "README.md").write_text("x")
    result = load(root, "all")
    assert result.class_names == ("Neuer Ordner", "ant", "cow") and result.num_examples == 61
    names = {"Neuer Ordner/2021 Ferien/a.JPEG", "ant/Bild (1) – Kopie.JPG", f"ant/{odd}"}
    assert names | {"cow/link.jpg"} <= set(photos.names(result))
    skipped = "(4 files with other endings skipped: .db, .identifier, .ini, none)"
    assert result.source.endswith(skipped)


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
    """macOS decomposes names; joiners are part of words; one class may be spelled in both ways."""
    roots = [tmp_path / form for form in ("NFC", "NFD")]
    for path in roots:
        photos.folder(path, 20)
        for old, new in (("ant", "fourmi ailée"), ("bee", "می\u200cخواهم"), ("cow", "👩\u200d🌾")):
            os.rename(path / old, path / unicodedata.normalize(path.name, new))
    composed, other = (load(path, "train") for path in roots)
    assert composed.fingerprint == other.fingerprint
    assert composed.class_names == other.class_names == tuple(sorted(composed.class_names))
    assert photos.names(composed) != photos.names(other)
    os.rename(roots[0] / "fourmi ailée", roots[1] / "fourmi ailée")
    both = load(roots[1], "all")
    assert both.class_names == composed.class_names and both.num_examples == 80


def holds_out_all_dogs(root):
    held_out = next(n for n in range(1000) if folder.is_for_test(f"dog/{n}.jpg"))
    (root / "dog").mkdir()
    os.rename(root / "ant" / "000.jpg", root / "dog" / f"{held_out}.jpg")


@pytest.mark.parametrize(
    ("break_it", "names"),
    [
        (lambda r: (r / "dog").mkdir(), "class 'dog' has no pictures in train"),
        (holds_out_all_dogs, "class 'dog' has no pictures in train"),
        (lambda r: (r / "ant" / "a.tif").touch(), "ant/a.tif is in a format"),
        (lambda r: (r / "ant" / "a.HEIC").touch(), "ant/a.HEIC is in a format"),
        (lambda r: os.symlink("nowhere", r / "ant" / "x.jpg"), "x.jpg cannot be read: No such"),
        (lambda r: os.symlink(r / "ant", r / "ant" / "x"), "ant/x is a link to a folder"),
        (lambda r: (r / "x.png").touch(), "1 pictures are in no class's folder: 'x.png'"),
        (lambda r: (r / "Training").mkdir(), "'Training' would be classes, but look like splits"),
        (lambda r: [os.rename(r / n, r.parent / n) for n in ("ant", "bee")], "1 folders"),
    ],
)
def test_what_is_refused(root, break_it, names):
    break_it(root)
    with pytest.raises(checks.DataError, match=names):
        load(root, "train")


def test_no_pictures_are_refused(root):
    for picture in root.rglob("*.jpg"):
        picture.unlink()
    with pytest.raises(checks.DataError, match="there are no pictures in all"):
        load(root, "all")


def test_a_picture_that_changes_after_it_was_listed_cannot_be_read(root):
    os.mkfifo(root / "ant" / "x.jpg")  # is not waited for
    result, path = load(root, "all"), root / "bee" / "003.jpg"
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(OSError, match="has changed since"):
        result.read(23)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        result.read(23)
