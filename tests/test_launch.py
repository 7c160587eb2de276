"""The launcher, with small programs in place of train.py."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from towers import launch

HEAD = """
import json, os, signal, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
"""


@pytest.fixture
def start(tmp_path):
    """Starts the launcher as a process on a program of so many workers."""

    def start(program: str, workers: int = 2, *arguments: str) -> subprocess.Popen:
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program))
        return subprocess.Popen(
            [sys.executable, "-m", "towers.launch", f"--workers={workers}", "--", str(script),
             *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    return start


def finish(launcher: subprocess.Popen) -> tuple[int, list[str], list[str]]:
    """(exit code, lines on stdout in order of workers, lines on stderr)."""
    out, err = launcher.communicate(timeout=60)
    return launcher.returncode, sorted(out.splitlines()), sorted(err.splitlines())


def test_output_has_the_index_before_each_line(start):
    program = """
    print("a", index, sys.argv[1:], flush=True)
    print("b", file=sys.stderr)
    sys.stdout.write("no end of line")
    """
    code, out, err = finish(start(program, 2, "--flag=1", "--", "x"))
    assert code == 0
    assert out == [
        f"[{index}] {line}"
        for index in range(2)
        for line in (f"a {index} ['--flag=1', '--', 'x']", "no end of line")
    ]
    assert err == ["[0] b", "[1] b"]


def test_every_worker_knows_all_addresses(start):
    code, out, _ = finish(start("print(os.environ['TF_CONFIG'])", 3))
    assert code == 0
    first, *others = [
        line.split(' "task"')[0].removeprefix(f"[{i}] ") for i, line in enumerate(out)
    ]
    assert others == [first] * 2
    assert len(set(first.split("127.0.0.1:"))) == 4


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([3, 4], 3), ([0, 4], 4), ([0, 4, 5], 4), ([0, -9], 137), ([-15, 1], 143)],
)
def test_one_exit_code(codes, expected):
    assert launch.exit_code(codes) == expected


def test_a_worker_that_fails_gives_the_exit_code(start):
    assert finish(start("sys.exit(7 * index)"))[0] == 7


def test_a_worker_that_does_not_end_after_another_failed_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.5)
    script = tmp_path / "program.py"
    script.write_text(HEAD + "time.sleep(60 * index)\nsys.exit(5)")
    began = time.monotonic()
    assert launch.run([sys.executable, str(script)], 2) == 5
    assert time.monotonic() - began < 30


def test_a_worker_that_takes_longer_is_left_to_end(monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.1)
    script = tmp_path / "program.py"
    script.write_text(HEAD + "time.sleep(index)")
    assert launch.run([sys.executable, str(script)], 2) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_every_worker(start, number):
    program = """
    def answer(number, _):
        print("got", number, flush=True)
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, answer)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
    """
    launcher = start(program)
    assert {launcher.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    launcher.send_signal(number)
    code, out, _ = finish(launcher)
    assert (code, out) == (128 + number, [f"[0] got {number}", f"[1] got {number}"])


def test_a_reader_that_goes_away_ends_the_workers(start):
    program = """
    for _ in range(1200):
        print("line", flush=True)
        time.sleep(0.05)
    """
    launcher = start(program)
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(timeout=60) != 0
    # The programs say that their pipe is broken; the launcher does not.
    assert all(line.startswith("[") for line in launcher.stderr)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--workers=0", "train.py"], "--workers=0: must be at least 1 and at most 64"),
        (["--workers=x", "train.py"], "invalid int value: 'x'"),
        (["--workers=2", "no_such.py"], "no_such.py: there is no such file"),
        (["--workers=2"], "the following arguments are required: script"),
        (["train.py"], "the following arguments are required: --workers"),
    ],
)
def test_wrong_arguments(arguments, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    assert launch.run([sys.executable, "-c", ""], 1, os.environ) == 0
    assert signal.getsignal(signal.SIGTERM) is before
