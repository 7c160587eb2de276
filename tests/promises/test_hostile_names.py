"""What a data set's files say is shown on a terminal with its control characters escaped."""

import json
import re

import photos
import pytest
import scripts

from towers_cli import command_line

# Clears a screen, names a window, turns text round.
HOSTILE = "\x1b[2J\x1b]0;mine\x07ant\x9b1m\u202e"
SHOWN = r"\x1b[2J\x1b]0;mine\x07ant\x9b1m\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("a\nb\tc\0", r"a\nb\tc\x00"), ("\udcff", r"\udcff"), (ValueError("a\x1b"), r"a\x1b"),
        ("Käse 'n' \"Brot\" 猫 C:\\d", "Käse 'n' \"Brot\" 猫 C:\\d"),
    ],
)  # fmt: skip
def test_printable(text, shown):
    assert command_line.printable(text) == shown


def check_harmless(done, code: int) -> None:
    """Nothing on the terminal that it would obey, and the name is there."""
    assert done.returncode == code, done.stderr
    message = done.stdout + done.stderr
    assert not re.search(r"[^\n\x20-\x7e]", message)
    assert SHOWN in message


def test_names_of_classes_are_shown_escaped_and_kept_as_they_are(tmp_path):
    """Of a prepared set whose first class, and configuration, have a hostile name."""
    run, data_dir = tmp_path / "run", tmp_path / "data"
    photos.prepare_tiny(data_dir, size=(32, 32))
    (names,) = data_dir.rglob("label.labels.txt")
    names.write_text(f"{HOSTILE}\nbee\ncow\n")
    (info,) = data_dir.rglob("dataset_info.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"configName": HOSTILE}))
    flags = ["--dataset=tiny_photos", f"--data_dir={data_dir}", "--max_steps=2"]
    check_harmless(scripts.train(run, *flags), 0)
    resolved = json.loads((run / "config.json").read_text())["resolved"]
    assert resolved["class_names"] == [HOSTILE, "bee", "cow"]
    check_harmless(scripts.run("eval", f"--train_dir={run}"), 0)

    names.write_text(f"bee\n{HOSTILE}\ncow\n")
    refused = scripts.run("eval", f"--train_dir={run}")
    check_harmless(refused, 2)
    assert "class_names" in refused.stderr


def test_the_name_of_a_broken_picture_is_shown_escaped(tmp_path):
    root = photos.folder(tmp_path / "pictures", 12)
    for picture in (root / "ant").iterdir():
        picture.write_bytes(b"")
        picture.rename(picture.with_name(f"{HOSTILE}{picture.name}"))
    flags = ["--dataset=folder", f"--data_dir={root}"]
    check_harmless(scripts.train(tmp_path / "run", *flags), 1)
