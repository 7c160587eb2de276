"""Which loaders take turns, and what is made of their rates; what they measure is no test's
business."""

import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import input as loaders
from benchmarks.peers import pictures, pictures_elsewhere
from input_pipeline import augment

PYTHON = "/peers/python"


def table(monkeypatch, capsys, *flags: str) -> tuple[list[tuple], str]:
    """The turns, and what is printed, where a side's rate is 100 times the turn's number."""
    asked = []

    def one_turn(python, program, side, folder, batches):
        asked.append((python == PYTHON, program, side))
        return {"pictures_per_second": 100.0 * len(asked), "peak_megabytes": 7.0}

    monkeypatch.setattr(loaders, "one_turn", one_turn)
    monkeypatch.setattr(loaders, "make_pictures", lambda folder, count: None)
    monkeypatch.setattr("sys.argv", ["input", f"--peers_python={PYTHON}", "--rounds=1", *flags])
    loaders.main()
    return asked, capsys.readouterr().out


def test_loaders_take_turns(monkeypatch, capsys):
    asked, printed = table(monkeypatch, capsys)
    made_before, asked = asked[:2], asked[2:]
    assert {side for *_, side in made_before} == {"towers", "tfrecords"}
    assert [side for *_, side in asked] == [
        "decode", "towers", "tfrecords", "grain", "pillow", "simplejpeg",
    ]  # fmt: skip
    assert [elsewhere for elsewhere, *_ in asked] == [False] * 3 + [True] * 3
    assert "| towers | 400 | 1.33 | 7 |" in printed  # the fourth turn, of 300 of the third


def test_each_augmentation_is_measured_here_and_with_torchvision(monkeypatch, capsys):
    asked, printed = table(monkeypatch, capsys, "--augmented")
    assert asked[0] == (False, "pictures", "towers:none")  # its store is made
    assert asked[1:] == [
        (False, "pictures", "decode"),
        *((False, "pictures", f"towers:{name}") for name in augment.NAMES),
        *((True, "pictures_elsewhere", f"torchvision:{name}") for name in augment.NAMES),
    ]
    assert "| towers, trivial_augment | 400 | 2.00 | 7 |" in printed


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_the_augmentation_that_a_side_names_is_applied(tmp_path, monkeypatch):
    """The same pictures, and other pixels."""
    loaders.make_pictures(tmp_path, 20)
    for module in (pictures, pictures_elsewhere):
        monkeypatch.setattr(module, "BATCH", 4)
        monkeypatch.setattr(module, "SIZE", 32)
    plain, augmented = (
        next(pictures.of_towers(tmp_path, name))[0] for name in ("none", "colour_jitter")
    )
    assert plain.shape == augmented.shape == (4, 32, 32, 3)
    assert np.abs(plain - augmented).max() > 0.1


def test_pictures_are_of_many_sizes(tmp_path):
    loaders.make_pictures(tmp_path, 12)
    sizes = {Image.open(path).size for path in tmp_path.glob("pictures/*/*.jpg")}
    assert len(sizes) == 12
    sides = [side for size in sizes for side in size]
    assert min(sides) >= loaders.LEAST_SIDE and max(sides) <= loaders.MOST_SIDE


def test_a_side_s_turn_is_one_line(capsys):
    pictures_elsewhere.measure(iter([None] * 20), 12, ("numpy",))
    line = json.loads(capsys.readouterr().out)
    assert line["versions"] == {"numpy": np.__version__}
    assert line["pictures_per_second"] > 0 < line["peak_megabytes"]
