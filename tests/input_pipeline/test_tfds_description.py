"""The files that describe a prepared TFDS set may be damaged, or somebody's trap.

Whatever they are, the answer is one sentence that names the file; TFDS neither waits nor imports.
"""

import json
import re
import shutil
import sys

import odd_files
import pytest
import tiny_photos

from input_pipeline import datasets, tfds_source

TFDS = "tensorflow_datasets.core.features"
FOREIGN = "colorsys.Feature"  # a module of Python's own that nothing here imports


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    tiny_photos.prepare(folder)
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    """The folder of a version of a set, to be spoiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(prepared, tmp_path / "data")
    return tmp_path / "data" / "tiny_photos" / "1.0.0"


def load(folder, name="tiny_photos"):
    return datasets.load(name, str(folder.parent.parent), "train")


def check_refused(folder, *pieces: str, name="tiny_photos") -> None:
    """One sentence with all the pieces, and what to do."""
    with pytest.raises(datasets.DataError) as caught:
        load(folder, name)
    message = str(caught.value)
    assert "\n" not in message and re.search(
        "[Cc]opy|remove that folder|must have|labels are", message
    )
    for piece in pieces:
        assert piece in message


def edit(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", odd_files.KINDS)
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "label.labels.txt"])
def test_what_is_no_file_is_not_waited_for(folder, name, kind):
    odd_files.put(kind, folder / name)
    check_refused(folder, str(folder / name), odd_files.KINDS[kind])


@pytest.mark.parametrize("kind", odd_files.KINDS)
def test_a_shard_that_is_no_file_is_not_waited_for(folder, kind):
    (shard,) = folder.glob("*train.tfrecord*")
    odd_files.put(kind, shard)
    check_refused(folder, str(shard), odd_files.KINDS[kind])


def test_the_name_of_the_default_configuration_is_read_from_a_file_only(folder):
    (folder.parent / ".config").mkdir()
    path = folder.parent / ".config" / "metadata.json"
    odd_files.put("named pipe", path)
    check_refused(folder, str(path), "a named pipe")


def test_the_default_configuration_does_not_lead_out_of_the_set(folder):
    elsewhere = folder.parent.parent / "elsewhere"
    folder.parent.rename(elsewhere)
    edit(elsewhere / "1.0.0/features.json", lambda content: content.update(pythonClassName=FOREIGN))
    (folder.parent / ".config").mkdir(parents=True)
    path = folder.parent / ".config" / "metadata.json"
    path.write_text(json.dumps({"default_config_name": "../elsewhere"}))
    check_refused(folder, str(path), "default_config_name is '../elsewhere'")


# dataset_info.json


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ([], "the shardLengths of 'train' are []"),
        (None, "the shardLengths of 'train' are []"),
        (["0"], "the shardLengths of 'train' are [0]"),
        (["-25"], "the shardLengths of 'train' are [-25]"),
        (["50", "-25"], "the shardLengths of 'train' are [50, -25]"),
        (["1000000000000"], "too few for the 1,000,000,000,000 examples of"),
        ([str(2**63 - 1)], "too few for the 9,223,372,036,854,775,807 examples of"),
        ([str(2**63)], "out of range"),
        (["24"], "train has 25 examples, but 24 were expected"),
        (["26"], "train has 25 examples, but 26 were expected"),
        (["12", "13"], "tiny_photos-train.tfrecord-00000-of-00002"),
        (["many"], "shardLengths"),
        ("25", "shardLengths"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_numbers_of_examples_that_cannot_be(folder, lengths, reason):
    def change(content):
        content["splits"][0]["shardLengths"] = lengths

    edit(folder / "dataset_info.json", change)
    check_refused(folder, reason)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"splits": []}, "it has no splits"),
        ({"splits": None}, "it has no splits"),
        ({"splits": 5}, "splits"),
        ({"splits": [{"name": "train", "filepathTemplate": "{X}", "shardLengths": ["25"]}]}, "of"),
        ({"splits": [{"name": "train", "filepathTemplate": "{", "shardLengths": ["25"]}]}, "of"),
        ({"splits": [{"name": "train", "filepathTemplate": "{}", "shardLengths": ["25"]}]}, "of"),
        ({"splits": [{"name": "train", "filepathTemplate": "\0", "shardLengths": ["25"]}]}, "null"),
        ({"splits": [{"name": "train", "filepathTemplate": "/dev/zero", "shardLengths": ["25"]}]},
         "/dev/zero"),
        ({"name": ""}, "filepathTemplate of 'train'"),
        ({"name": "others"}, "others-train.tfrecord"),
    ],
    ids=lambda value: repr(value)[:70],
)  # fmt: skip
def test_descriptions_that_are_none(folder, values, reason):
    edit(folder / "dataset_info.json", lambda content: content.update(values))
    check_refused(folder, reason)


@pytest.mark.parametrize("file_format", ["array_record", "riegeli", "parquet"])
def test_a_file_that_is_of_another_format(folder, file_format):
    (shard,) = folder.glob("*train.tfrecord*")
    shutil.copy(shard, str(shard).replace("tfrecord", file_format))
    edit(folder / "dataset_info.json", lambda content: content.update(fileFormat=file_format))
    check_refused(folder, "tiny_photos")


@pytest.mark.parametrize("left", [0, 100, 0.5, -1])
def test_a_shard_that_was_cut_short(folder, left):
    (shard,) = folder.glob("*train.tfrecord*")
    content = shard.read_bytes()
    shard.write_bytes(content[: int(left * len(content)) if left == 0.5 else left])
    check_refused(folder, "tiny_photos")


# features.json and the names of classes


def _of_type(kind: str, content: object = None) -> dict:
    return {"type": kind, "content": {} if content is None else content}


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": FOREIGN, "text": {}},
        {"python_class_name": FOREIGN, "text": {}},
        _of_type(FOREIGN),
        _of_type(f"{TFDS}.features_dict.FeaturesDict", {"image": _of_type(FOREIGN)}),
        _of_type(f"{TFDS}.features_dict.FeaturesDict", {"type": _of_type(FOREIGN)}),
        {
            "pythonClassName": f"{TFDS}.features_dict.FeaturesDict",
            "featuresDict": {"features": {"a": {"pythonClassName": FOREIGN, "text": {}}}},
        },
        {
            "pythonClassName": f"{TFDS}.sequence_feature.Sequence",
            "jsonFeature": {"json": json.dumps({"feature": _of_type(FOREIGN), "length": 1})},
        },
        _of_type(
            f"{TFDS}.sequence_feature.Sequence",
            json.dumps({"feature": {"pythonClassName": FOREIGN, "text": {}}}),
        )
        | {"proto_cls": "tensorflow_datasets.Sequence"},
    ],
    ids=lambda features: json.dumps(features).replace(TFDS, "")[:60],
)
@pytest.mark.parametrize("name", ["tiny_photos", "TinyPhotos", "tiny_photos:1.0.0"])
@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
def test_nothing_is_imported_because_a_file_says_so(folder, monkeypatch, features, name, file):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    if file == "features.json":
        (folder / file).write_text(json.dumps(features))
    else:
        edit(folder / file, lambda content: content.update(features=features))
    check_refused(folder, str(folder / file), f"names the feature {FOREIGN!r}", name=name)
    assert "colorsys" not in sys.modules


def test_the_older_form_of_features_is_read(folder):
    features = {
        "image": _of_type(
            f"{TFDS}.image_feature.Image",
            {"shape": [4, 6, 3], "dtype": "uint8", "encoding_format": "png"},
        ),
        "label": _of_type(f"{TFDS}.class_label_feature.ClassLabel", {"num_classes": 3}),
        "type": _of_type(f"{TFDS}.feature.Tensor", {"shape": [], "dtype": "int64"}),
    }
    features = _of_type(f"{TFDS}.features_dict.FeaturesDict", features)
    (folder / "features.json").write_text(json.dumps(features))
    loaded = load(folder)
    assert len(loaded.images) == 25 and loaded.class_names == ("ant", "bee", "cow")


@pytest.mark.parametrize(
    ("axis", "size"), [*((axis, size) for axis in (0, 1, 2) for size in ("0", "-5")), (2, "-1")]
)
def test_images_without_a_size(folder, axis, size):
    def change(content):
        shape = content["featuresDict"]["features"]["image"]["image"]["shape"]
        shape["dimensions"][axis] = size

    edit(folder / "features.json", change)
    check_refused(folder, "dataset=tiny_photos")


@pytest.mark.parametrize("size", ["3", "5"])
@pytest.mark.parametrize("axis", [0, 1])
def test_images_of_another_size(folder, axis, size):
    def change(content):
        shape = content["featuresDict"]["features"]["image"]["image"]["shape"]
        shape["dimensions"][axis] = size

    edit(folder / "features.json", change)
    check_refused(folder, "example 0 of train", "but got [4,6,3]")


@pytest.mark.parametrize("count", ["0", "-1", "2", "4", "1000000000000"])
def test_another_number_of_classes_than_of_names(folder, count):
    def change(content):
        content["featuresDict"]["features"]["label"]["classLabel"]["numClasses"] = count

    edit(folder / "features.json", change)
    check_refused(folder, "classes")
    (folder / "label.labels.txt").unlink()
    if count != "4":
        check_refused(folder, "classes" if count != "2" else "labels are 0 to 1")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (b"", "it has 0 names for 3 classes"),
        (b"ant\nbee\n", "it has 2 names for 3 classes"),
        (b"ant\nbee\ncow\neel\n", "it has 4 names for 3 classes"),
        (b"ant\nbee\nant\n", "it has the name 'ant' twice"),
        (b"ant\nbee\n\xff\n", "it is not text"),
    ],
)
def test_names_of_classes_that_do_not_fit(folder, names, reason):
    (folder / "label.labels.txt").write_bytes(names)
    check_refused(folder, str(folder / "label.labels.txt"), reason)


def test_a_set_without_its_features_is_not_called_unknown_alone(folder):
    (folder / "features.json").unlink()
    check_refused(folder, str(folder.parent), "holds no prepared set", "features.json")


def test_examples_are_counted(folder, monkeypatch):
    """Whatever TFDS reads: here it gives one example less than there are."""
    in_order = tfds_source._in_order
    monkeypatch.setattr(tfds_source, "_in_order", lambda *which: in_order(*which).take(24))
    check_refused(folder, "train has 24 examples, but 25 were expected")


def test_a_set_that_is_being_prepared_beside_it_does_not_matter(folder):
    """TFDS writes it into a folder of another name, and a process that was killed leaves that."""
    beside = folder.with_name("incomplete.ABCDEF_2.0.0")
    shutil.copytree(folder, beside)
    (beside / "features.json").write_text("")
    assert len(load(folder).images) > 0


def test_a_damaged_version_that_is_not_the_one_does_not_matter(folder):
    shutil.copytree(folder, folder.with_name("0.9.0"))
    (folder.with_name("0.9.0") / "dataset_info.json").write_text("{")
    assert len(load(folder).images) > 0
    (folder / "dataset_info.json").write_text("{")
    check_refused(folder, str(folder / "dataset_info.json"), "it is not JSON")
