"""What a run says: the table, plain lines in pipes, a bar on a terminal."""

import contextlib
import os
import re
import sys
import termios

import forked
import scripts


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
