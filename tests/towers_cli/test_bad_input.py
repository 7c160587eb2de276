"""Bad input gets one line that names the flag and the value, and leaves no trace.

What a setting may be is in its definition, and so is what is tried here. More of what is wrong with
data is in tests/input_pipeline, of checkpoints in test_checkpoints.py.
"""

import dataclasses
import math
import operator
import os
import re
import shutil
import sys
import time
import typing
from unittest import mock

import keras
import pytest
import scripts
import toys

import towers
from input_pipeline import arrays
from towers.runs import run_folder

FLAGS = [
    (name, field)
    for name, (_, record) in scripts.COMMANDS.items()
    for field in dataclasses.fields(record)
]
each_flag = pytest.mark.parametrize(
    ("name", "field"), FLAGS, ids=[f"{name}-{field.name}" for name, field in FLAGS]
)

BOUNDS = {
    "at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt,
}  # fmt: skip

CONTRADICTORY = {  # and the flag that is named first
    "--learning_rate_schedule=piecewise": "decay_epochs",
    "--learning_rate_schedule=piecewise --decay_epochs=123,82": "decay_epochs",
    "--learning_rate_schedule=piecewise --decay_epochs=0,82": "decay_epochs",
    "--learning_rate_schedule=piecewise --decay_epochs=82,x": "decay_epochs",
    "--learning_rate_schedule=linear --warmup_epochs=5 --train_epochs=5": "warmup_epochs",
    "--optimizer=adam --momentum=0.9": "momentum", "--nesterov": "nesterov",
    "--optimizer=rmsprop --momentum=0.9 --nesterov": "nesterov",
    "--mixup_alpha=0.2 --global_batch_size=3": "global_batch_size",
    "--dataset=shapes --global_batch_size=5001": "global_batch_size",
    "--decay_epochs=82,123": "decay_epochs", "--init_from=runs/lr?": "init_from",
    "--train_dir=runs/[a]": "train_dir", "--train_dir=runs/a\\b": "train_dir",
    "--train_dir=gs://bucket/run": "train_dir",
}  # fmt: skip

NOT_A_FLAG = {
    "--data_di=1": "data_dir", "--z\x1bz": r"z\x1bz", "--nonesterov=1": "nonesterov",
    "--seed": "seed", f"--{'x' * 10_000}": "flag", "--flagfile=none": "none", "--flagfile=/": "/",
    f"--flagfile={sys.executable}": "--flagfile", "--flagfile": "--flagfile",
    "runs/mine": "runs/mine",
}  # fmt: skip

NOT_A_DATA_SET = [
    *("cifar1O", "x" * 101, "", "/etc", "cifar10/../../etc", "cifar10:../1.0.0"),
    *("cifar10:9.9.9", "cifar10/large", "ag_news_subset"),
]

NOT_A_FOLDER = ["none", "dangling", "file", "file/data", "fifo", "/dev/null", "loop", "x" * 300]


@pytest.fixture
def nothing_is_left(tmp_path, monkeypatch):
    """A folder for the run, which must not be there afterwards; nor may a cache be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "new" / "run"
    assert list(tmp_path.iterdir()) == []


def check(done, code: int, *pieces: str) -> None:
    """One line on stderr with all the pieces; nothing else on the terminal."""
    assert done.returncode == code
    assert done.stderr[:-1].isprintable()
    for piece in pieces:
        assert piece in done.stderr
    assert len(done.stderr) < 1000
    assert done.stdout == ""


def states(words: str, value: float) -> bool:
    """Whether the words of a range of numbers allow a value."""
    with_0 = re.fullmatch(r"0, or (?:from )?(\S+) to (\S+)", words)
    if with_0:
        return value == 0 or float(with_0[1]) <= value <= float(with_0[2])
    bounds = re.findall(r"(at least|above|at most|below) ([\d.e+-]+)", words)
    assert bounds, words
    return all(BOUNDS[word](value, float(limit)) for word, limit in bounds)


@each_flag
def test_a_range_is_what_it_says(name, field):
    allowed, kinds = field.metadata["allowed"], {field.type, *typing.get_args(field.type)}
    if not allowed or str in kinds:
        return
    limits = [float(text) for text in re.findall(r"\d[\d.e+-]*", allowed.allowed)]
    values = [-1.0, *limits, *(limit - 1 for limit in limits), *(limit + 1 for limit in limits)]
    if float in kinds:
        values += [math.nextafter(limit, way) for limit in limits for way in (-1e300, 1e300)]
        assert not allowed.holds(math.nan)
    for value in values:
        assert bool(allowed.holds(value)) == states(allowed.allowed, value), value


def wrong_values(field) -> list[str]:
    """Texts that a setting may not be, by its definition."""
    kinds, about = {field.type, *typing.get_args(field.type)}, field.metadata
    values = []
    if bool in kinds:
        values.append("perhaps")
    elif any(typing.get_origin(kind) is tuple for kind in kinds):
        values.append('"82')
    elif float in kinds:
        values += ["fast", "nan", "inf", "1e+39"] if about["allowed"] else ["fast", "1e+39"]
    elif int in kinds:
        values += ["12.5", "1e3", ""]
    else:
        values += ["a\0b", "a\nb", "\x1b[2J", "\udcff", "x" * 10_000]
    if about["allowed"] and about["allowed"].allowed.startswith("one of "):
        values.append("none of these")
    if about["allowed"]:
        values.append("" if str in kinds else "-1")
    return values


@each_flag
def test_a_value_that_a_setting_may_not_be(nothing_is_left, name, field):
    for value in wrong_values(field):
        done = scripts.run(name, f"--train_dir={nothing_is_left}", f"--{field.name}={value}")
        check(done, 2, f"{name}.py: error: --{field.name}=", "must be ")
        if (allowed := field.metadata["allowed"]) and value in ("-1", "none of these"):
            assert f"must be {allowed.allowed}" in done.stderr


@pytest.mark.parametrize("flags", CONTRADICTORY)
def test_flags_that_contradict(nothing_is_left, flags):
    done = scripts.train(nothing_is_left, *flags.split())
    value = flags.split()[-1].rpartition("=")[2]
    check(done, 2, f"train.py: error: --{CONTRADICTORY[flags]}", value)


@pytest.mark.parametrize("name", ["train", "eval"])
@pytest.mark.parametrize("flag", NOT_A_FLAG, ids=lambda flag: flag[:20])
def test_flags_that_are_none(nothing_is_left, name, flag):
    check(scripts.run(name, f"--train_dir={nothing_is_left}", flag), 2, NOT_A_FLAG[flag])


def test_one_checkpoint_is_not_followed_and_no_run_is_not_evaluated(nothing_is_left):
    flags = [f"--train_dir={nothing_is_left}", "--checkpoint=5", "--run_once=false"]
    check(scripts.run("eval", *flags), 2, "--checkpoint=5: ")
    check(scripts.run("eval", *flags[:1]), 1, f"--train_dir={nothing_is_left}: ")


def test_a_run_that_is_to_be_followed_is_waited_for_and_that_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", mock.Mock(side_effect=[None, KeyboardInterrupt]))
    done = scripts.run("eval", f"--train_dir={tmp_path}", "--run_once=false")
    assert done.returncode == 130
    assert done.stdout == f"waiting for a run in {tmp_path}\nstopped\n"


@pytest.mark.parametrize("name", NOT_A_DATA_SET, ids=lambda name: name[:20])
def test_names_of_no_data_set(tmp_path, nothing_is_left, name):
    done = scripts.train(nothing_is_left, f"--dataset={name}", f"--data_dir={tmp_path}")
    check(done, 1, f"train.py: error: dataset={name[:100]}", *["cifar10"] * (name == "cifar1O"))


@pytest.mark.parametrize(
    ("split", "code"),
    [("", 2), ("train", 2), ("test[:10%]", 2), ("test+train", 2), ("../test", 2), ("other", 1)],
)
def test_names_of_no_split(nothing_is_left, split, code):
    done = scripts.train(nothing_is_left, f"--eval_split={split}")
    message = f"--eval_split={split}: " if code == 2 else f"dataset=shapes has no split {split!r}"
    check(done, code, f"train.py: error: {message}")


@pytest.fixture
def odd_places(tmp_path):
    """Paths of all kinds but a folder; they are still all there is, afterwards."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("none")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(tmp_path.iterdir())
    yield tmp_path
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("path", NOT_A_FOLDER, ids=lambda path: path[:20])
def test_folders_of_data_and_of_runs_that_cannot_be(odd_places, path):
    where = odd_places / path
    done = scripts.train(odd_places / "run", f"--data_dir={where}", "--dataset=cifar10")
    check(done, 1, f"train.py: error: data_dir={where} ")
    for script in ("train", "eval") if path not in ("none", "dangling") else ():
        done = scripts.run(script, f"--train_dir={where}")
        check(done, 1, f"{script}.py: error: --train_dir={where}: ")


def check_left_alone(folder, *pieces: str) -> None:
    """Neither command goes on from what is in a folder, nor changes it."""
    before = scripts.contents(folder)
    for done in (scripts.train(folder), scripts.run("eval", f"--train_dir={folder}")):
        check(done, 1, f"error: --train_dir={folder}: ", *pieces)
    assert scripts.contents(folder) == before


@pytest.mark.pitfall(11)
@pytest.mark.parametrize("name", ["thesis.tex", "config.json"])
def test_a_folder_of_other_files_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text('{"model": "mine"}')
    check_left_alone(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe{}", b"[1, 2]"),
        *(b'{"settings": [], "resolved": []}', b'{"settings": {"train_dir": "a"}, "resolved": {}}'),
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_configuration_that_is_none(run_of, tmp_path, content):
    run = shutil.copytree(run_of("--max_steps=1", "--summary_every_steps=0"), tmp_path / "run")
    (run / "config.json").write_bytes(content)
    check_left_alone(run, "config.json")


def test_a_program_s_run_is_not_the_command_s_nor_the_other_way_round(tmp_path):
    def fit(folder):
        model = toys.classifier()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        source = arrays.batches(*toys.batch(8, [3]))
        return towers.Run(folder, model).fit(source, batch_size=8, verbose=0)

    fit(tmp_path / "program")
    scripts.trained(tmp_path / "command", "--max_steps=1")
    before = scripts.contents(tmp_path)
    check_left_alone(tmp_path / "program")
    with pytest.raises(run_folder.RunFolderError, match=str(tmp_path / "command")):
        fit(tmp_path / "command")
    assert scripts.contents(tmp_path) == before
