"""The launcher, as a process of its own, with small programs in place of train.py."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import scripts

from towers_cli import launch

HEAD = """
import json, os, signal, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
life = len([name for name in os.listdir() if name.startswith(f"life-{index}-")])
open(f"life-{index}-{life}", "w").write(str(os.getpid()))
"""
# The launcher, with less patience.
LAUNCHER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from towers_cli import launch
launch._PATIENCE_SECONDS = float(sys.argv.pop(1))
sys.exit(launch.main())
"""


@pytest.fixture
def start(tmp_path):
    """Starts it in the test's folder, with a program."""
    started = []

    def start(program: str, *flags: str, patience: float = 20.0, script=(), **options):
        (tmp_path / "program.py").write_text(HEAD + textwrap.dedent(program))
        command = [sys.executable, "-c", LAUNCHER, str(scripts.ROOT), str(patience)]
        command += [*flags, "--", *(script or ["program.py"])]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        started.append(subprocess.Popen(command, cwd=tmp_path, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
    for path in tmp_path.glob("life-*"):
        if (pid := path.read_text()) and os.path.isdir(f"/proc/{pid}"):
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def launched(start):
    """Runs it to its end: exit code, and sorted lines on stdout and stderr."""

    def run(program: str, *flags: str, **options):
        process = start(program, *flags, **options)
        texts = process.communicate(timeout=60)
        return process.returncode, *(sorted(text.splitlines()) for text in texts)

    return run


def test_a_command_is_found_beside_python_and_on_the_path(launched, tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("print(1)")
    (tmp_path / "mine").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (["pip", "--version"], ["mine"]):
        assert launched("", "--workers=1", script=command)[::2] == (0, [])


def test_output_has_the_index_before_each_line(launched):
    program = """
    print("a", sys.argv[1:], flush=True)
    print("b", file=sys.stderr)
    sys.stdout.write("no end of line")
    """
    code, out, err = launched(program, "--workers=2", script=["program.py", "--flag=1", "--", "x"])
    lines = ("a ['--flag=1', '--', 'x']", "no end of line")
    assert (code, out) == (0, [f"[{index}] {line}" for index in range(2) for line in lines])
    assert err == ["[0] b", "[1] b"]


@pytest.mark.parametrize(
    ("codes", "flags", "expected"),
    [
        ((0, 7), [], 7), ((138, -9), [], 137), ((138, -11), [], 139), ((-11, 2), [], 2),
        ((138, 1), ["--restarts=5"], 1), ((138, 2), ["--restarts=5"], 2),  # it would come back
    ],
)  # fmt: skip
def test_the_exit_code_is_the_one_that_says_most(launched, tmp_path, codes, flags, expected):
    program = f"""
    code = {codes}[index]
    sys.exit(code) if code >= 0 else os.kill(os.getpid(), -code)
    """
    assert launched(program, "--workers=2", *flags) == (expected, [], [])
    assert len(list(tmp_path.glob("life-*"))) == 2


@pytest.mark.parametrize("hangs", ["time.sleep(60)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_one_that_does_not_end_after_another_is_ended(launched, hangs):
    program = f"{hangs} if index else 0\nsys.exit(5)"
    assert launched(program, "--workers=2", patience=0.5)[0] == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_every_worker(start, tmp_path, number):
    program = f"""
    def answer(number, _):
        print("got", number, flush=True)
        sys.exit(128 + number)
    signal.signal({int(number)}, answer)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
    """
    process = start(program, "--workers=2", "--restarts=3")
    for _ in range(2):
        assert process.stdout.readline().endswith("] ready\n")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == [f"[0] got {number}", f"[1] got {number}"]
    assert process.returncode == 128 + number
    assert len(list(tmp_path.glob("life-*"))) == 2  # none is started again


def test_all_are_started_again_after_a_death(launched):
    program = """
    if life < 2:
        os.kill(os.getpid(), signal.SIGKILL) if index else sys.exit(138)
    """
    code, out, _ = launched(program, "--workers=2", "--restarts=5")
    assert code == 0
    assert out == [f"[launcher] exit codes [138, 137]; restarts left: {left}" for left in (3, 4)]


def test_a_reader_that_goes_away_ends_the_workers_for_good(start, tmp_path):
    program = """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for _ in range(1200):
        print("line", flush=True)
        time.sleep(0.05)
    """
    process = start(program, "--workers=2", "--restarts=5", stderr=subprocess.DEVNULL)
    assert process.stdout.readline() in ("[0] line\n", "[1] line\n")
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert len(list(tmp_path.glob("life-*"))) == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--workers=0", "train.py"], "--workers=0"), (["--workers=x", "train.py"], "--workers: "),
        (["--workers=2", "no_such.py"], "no_such.py"), (["--workers=2"], "script"),
        (["--workers=2", "--restarts=-1", "a.py"], "--restarts=-1"), (["train.py"], "--workers"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
