"""What a run says: the table, plain lines in pipes, a bar on a terminal."""

import contextlib
import os
import termios
import threading

import pytest
import scripts

from towers import console

METRICS = {
    "step": 40,
    "epoch": 0.4096,
    "loss": 4.56789,
    "learning_rate": 0.0125,
    "examples_per_second": 1234.5,
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.2, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3599.7, "1h00m"),
        (7645, "2h07m"),
        (100 * 3600, "100h00m"),
    ],
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text


def test_the_table_is_aligned():
    rows = [("run", "here"), ("learning rate", "0.1")]
    assert console.table(rows).splitlines() == [
        "  run            here",
        "  learning rate  0.1",
    ]


def test_lines_hold_what_a_person_asks_of_a_run(capsys):
    lines = console.progress(0, 100)
    lines.advance()
    lines.metrics(METRICS, seconds_left=185)
    lines.say("test at step 40: accuracy 50.00%")
    lines.close()
    assert capsys.readouterr() == (
        "step 40/100  epoch 0.41  loss 4.5679  rate 0.0125  1,234 examples/s  time left 3m05s\n"
        "test at step 40: accuracy 50.00%\n",
        "",
    )


@pytest.mark.parametrize("is_terminal", [(True, False), (False, True), (False, False)])
def test_a_bar_only_where_both_streams_are_a_terminal(monkeypatch, is_terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal[1])
    assert isinstance(console.progress(0, 10), console.Lines)


def test_on_a_terminal_a_run_shows_a_bar(tmp_path, monkeypatch, cache_home):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    with _terminal() as screen:
        script = scripts.load("train")
        arguments = script.flags.FLAGS(["train.py", *scripts.small_run(tmp_path / "run")])
        assert script.main(arguments) == 0
    shown = b"".join(screen).decode()
    assert "|" in shown
    assert "4/4" in shown
    assert "100%" in shown
    for word in ("epoch 0.02", "loss 4.", "rate 0.1", "examples/s", "time left"):
        assert word in shown
    assert "test at step 4: accuracy" in shown
    assert "step 4/4" not in shown  # the line of a pipe
    assert shown.rstrip().splitlines()[-1].startswith("watch it: ")


@contextlib.contextmanager
def _terminal():
    """Makes stdout and stderr one pseudo-terminal; yields the list of what it is sent."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))  # rows, columns
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
