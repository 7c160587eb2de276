"""What a run says: the table, plain lines in pipes, a bar on a terminal."""

import contextlib
import os
import re
import termios
import threading

import pytest
import scripts

from towers.runs import console
from towers_cli import announcements, train

METRICS = {
    "step": 40,
    "epoch": 0.4096,
    "loss": 4.56789,
    "accuracy": 0.12345,
    "learning_rate": 0.0125,
    "examples_per_second": 1234.5,
    "step_seconds": 185 / 60,
}


WORDS = "--num_microbatches=4 is a word, and so is batch-norm, whatever the width of a line is"


@pytest.mark.parametrize("width", [48, 60, 80, 200])
def test_a_long_value_goes_on_below_its_beginning(width):
    first, *lines = announcements.in_columns(
        [("learning rate", WORDS), ("run", "here")], width
    ).splitlines()
    assert lines.pop() == "  run            here"
    assert first.startswith("  learning rate  --num_microbatches=4 ")
    assert all(line.startswith(" " * 17) and line[17] != " " for line in lines)
    assert " ".join([first[17:], *(line.strip() for line in lines)]) == WORDS
    assert max(map(len, [first, *lines])) <= width
    assert len(lines) == {48: 2, 60: 1, 80: 1, 200: 0}[width]


def test_lines_hold_what_a_person_asks_of_a_run(capsys):
    progress = console.Progress(100, "test")
    progress.show(METRICS)
    progress.show({"step": 40, "accuracy": 0.6, "val_accuracy": 0.5, "val_loss": 1.25})
    progress.show({"step": 50, "loss": 0.5})  # an epoch without an evaluation
    out, err = capsys.readouterr()
    step, evaluation = out.splitlines()
    for piece in ("40/100", "epoch 0.41", "4.5679", "12.3%", "0.0125", "1,234", "03:05"):
        assert piece in step
    for piece in ("test", "40", "50.00%", "1.2500"):
        assert piece in evaluation
    assert err == ""


def test_on_a_terminal_a_run_shows_a_bar(tmp_path):
    with _terminal() as screen:
        line = scripts.line_of("train")
        arguments = line.parse(["train.py", *scripts.small_run(tmp_path / "run")])
        assert train.main(line.settings(arguments)) == 0
    shown = b"".join(screen).decode()
    for word in ("|", "100%", "epoch 0.02", "loss 4.", "  accuracy ", "rate 0.1", "examples/s"):
        assert word in shown
    assert re.search(r"4/4 \[\d\d:\d\d<\d\d:\d\d\]", shown)  # the time left, once
    assert "step 4/4" not in shown  # the line of a pipe


@contextlib.contextmanager
def _terminal(columns: int = 100):
    """Makes stdout and stderr one pseudo-terminal; yields the list of what it is sent."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown = []

    def read():
        with contextlib.suppress(OSError):  # the end, on Linux
            while data := os.read(ours, 4096):
                shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with (
            open(theirs, "w", encoding="utf-8") as terminal,
            contextlib.redirect_stdout(terminal),
            contextlib.redirect_stderr(terminal),
        ):
            yield shown
    finally:
        reader.join()
        os.close(ours)
