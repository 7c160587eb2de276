"""What a run says: the table, plain lines in pipes, a bar on a terminal."""

import contextlib
import os
import re
import sys
import termios

import forked
import scripts

from towers.runs import console

METRICS = {
    "step": 40,
    "epoch": 0.4096,
    "loss": 4.56789,
    "accuracy": 0.12345,
    "learning_rate": 0.0125,
    "examples_per_second": 1234.5,
    "step_seconds": 185 / 60,
}


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
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    call = [sys.executable, str(scripts.ROOT / "train.py"), *scripts.small_run(tmp_path / "run")]
    with forked.Popen(call, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        sent = []
        with contextlib.suppress(OSError):  # the end, on Linux
            while data := os.read(ours, 4096):
                sent.append(data)
    os.close(ours)
    assert process.returncode == 0
    shown = b"".join(sent).decode()
    for word in ("|", "100%", "epoch 0.02", "loss 2.", "  accuracy ", "rate 0.1", "examples/s"):
        assert word in shown
    assert re.search(r"4/4 \[\d\d:\d\d<\d\d:\d\d\]", shown)  # the time left, once
    assert "step 4/4" not in shown  # the line of a pipe
