"""The launcher, with small programs in place of train.py."""

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import scripts

import towers
from towers_cli import launch

HEAD = """
import json, os, signal, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
"""


@pytest.fixture
def launched(tmp_path, capfdbinary):
    """Runs a program as so many workers: (exit code, sorted lines on stdout, and on stderr)."""

    def run(program: str, workers: int = 2, *arguments: str):
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program))
        code = launch.run([sys.executable, "-S", str(script), *arguments], workers)
        captured = capfdbinary.readouterr()
        return code, *(sorted(text.decode().splitlines()) for text in captured)

    return run


def test_output_has_the_index_before_each_line(launched):
    program = """
    print("a", index, sys.argv[1:], flush=True)
    print("b", file=sys.stderr)
    sys.stdout.write("no end of line")
    """
    code, out, err = launched(program, 2, "--flag=1", "--", "x")
    assert code == 0
    assert out == [
        f"[{index}] {line}"
        for index in range(2)
        for line in (f"a {index} ['--flag=1', '--', 'x']", "no end of line")
    ]
    assert err == ["[0] b", "[1] b"]


def test_every_worker_knows_all_addresses(launched):
    code, out, _ = launched("print(os.environ['TF_CONFIG'])", 3)
    assert code == 0
    first, *others = [
        line.split(' "task"')[0].removeprefix(f"[{i}] ") for i, line in enumerate(out)
    ]
    assert others == [first] * 2
    assert len(set(first.split("127.0.0.1:"))) == 4


def test_a_worker_that_fails_gives_the_exit_code(launched):
    assert launched("sys.exit(7 * index)")[0] == 7


def test_a_worker_that_does_not_end_after_another_failed_is_killed(monkeypatch, launched):
    monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.5)
    began = time.monotonic()
    assert launched("time.sleep(60 * index)\nsys.exit(5)")[0] == 5
    assert time.monotonic() - began < 30


def test_a_worker_that_takes_longer_is_left_to_end(monkeypatch, launched):
    monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.1)
    assert launched("time.sleep(index)")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_go_to_every_worker(launched, number, tmp_path):
    program = f"""
    def answer(number, _):
        print("got", number, flush=True)
        sys.exit(128 + number)
    signal.signal({int(number)}, answer)
    open(f"{tmp_path}/ready-{{index}}", "w").close()
    while True:
        time.sleep(0.05)
    """

    def send():
        while len(list(tmp_path.glob("ready-*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    code, out, _ = launched(program)
    assert (code, out) == (128 + number, [f"[0] got {number}", f"[1] got {number}"])


@pytest.mark.whole_program
def test_a_reader_that_goes_away_ends_the_workers(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        HEAD + "for _ in range(1200):\n    print('line', flush=True)\n    time.sleep(0.05)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "towers_cli.launch", "--workers=2", "--", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout.readline() in ("[0] line\n", "[1] line\n")
    launcher.stdout.close()
    assert launcher.wait(timeout=60) != 0
    # The programs say that their pipe is broken; the launcher does not.
    assert all(line.startswith("[") for line in launcher.stderr)


# The launcher without what `import towers` starts.
QUICK_LAUNCHER = """
import sys
sys.path.insert(0, sys.argv[1])
from towers_cli import launch
launch._KILLED_AFTER_SECONDS = float(sys.argv[2])
sys.exit(launch.run([sys.executable, "-S", *sys.argv[4:]], int(sys.argv[3])))
"""
ANSWERS = """
def answer(number, _):
    time.sleep(0.3)  # as a checkpoint takes a while
    open(f"answered-{index}", "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, answer)
"""
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
WAITS = """
open(f"ready-{index}", "w").close()
time.sleep(100)
"""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Starts the launcher as a process of its own: (process, () to what is left of it)."""
    monkeypatch.setenv("TOWERS_TEST", str(tmp_path))
    if not os.path.isdir("/proc/self"):
        pytest.skip("looks for processes in /proc")

    def left() -> list[int]:
        return scripts.processes_with(f"TOWERS_TEST={tmp_path}")

    def start(program: str, workers: int, seconds: float = 30.0):
        script = tmp_path / "program.py"
        script.write_text(HEAD + program)
        arguments = [scripts.ROOT, str(seconds), str(workers), script]
        return subprocess.Popen(
            [sys.executable, "-S", "-c", QUICK_LAUNCHER, *arguments], cwd=tmp_path
        ), left

    yield start
    for pid in left():
        os.kill(pid, signal.SIGKILL)


def until(condition, seconds: float) -> float:
    """Waits for it; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


def is_stopped(pid: str) -> bool:
    """Whether SIGSTOP has arrived; a pid that is not written yet is none."""
    return pid != "" and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class TestKilledLauncher:
    """`kill -9` of the launcher, which can then do nothing about its workers itself."""

    def test_workers_are_asked_to_end_and_left_the_time(self, alone, tmp_path):
        launcher, left = alone(ANSWERS + WAITS, 3)
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 3, 20)
        assert len(left()) == 5  # with the launcher and the keeper
        launcher.kill()
        launcher.wait()
        until(lambda: not left(), 5)
        assert len(list(tmp_path.glob("answered-*"))) == 3

    def test_a_worker_that_does_not_end_is_killed(self, alone, tmp_path):
        launcher, left = alone(IGNORES + WAITS, 2, seconds=1.0)
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, 20)
        launcher.kill()
        launcher.wait()
        assert until(lambda: not left(), 5) > 0.5

    @pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
    def test_while_workers_start_leaves_none(self, alone, delay):
        launcher, left = alone(WAITS, 16)
        until(lambda: len(left()) > 1, 20)  # the keeper comes first
        time.sleep(delay)
        launcher.kill()
        launcher.wait()
        until(lambda: not left(), 5)


def test_workers_get_a_secret_of_their_own(tmp_path):
    """A new one for each start, whatever the environment has."""
    path = str(tmp_path / "secrets")
    program = f"import os; open({path!r}, 'a').write(os.environ['TOWERS_SECRET'] + '\\n')"
    program += "; assert 'TOWERS_SECRET_FILE' not in os.environ"
    for _ in range(2):
        given = {**os.environ, "TOWERS_SECRET": "x" * 16, "TOWERS_SECRET_FILE": "/nowhere"}
        assert launch.run([sys.executable, "-c", program], 2, given) == 0
    first, second, third, fourth = (tmp_path / "secrets").read_text().split()
    assert first == second != third == fourth
    assert len(first) == len(third) == 64


def test_no_process_is_left_after_an_ordinary_end(alone):
    launcher, left = alone("sys.exit(3)", 2)
    assert launcher.wait(timeout=20) == 3
    assert left() == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--workers=0", "train.py"], "--workers=0: must be at least 1 and at most 64"),
        (["--workers=x", "train.py"], "invalid int value: 'x'"),
        (["--workers=2", "no_such.py"], "no_such.py: there is no such file or command"),
        (["--workers=2"], "the following arguments are required: script"),
        (["train.py"], "the following arguments are required: --workers"),
        (["--workers=2", "--min_workers=3", "a.py"], "--min_workers=3: must be at least 1 and at"),
        (["--workers=2", "--restarts=-1", "a.py"], "--restarts=-1: must be at least 0 and at most"),
        (["--workers=2", "--return_seconds=-1", "a.py"], "--return_seconds=-1.0: must be at least"),
    ],
)
def test_wrong_arguments(arguments, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


# Counts the lives of a worker, and says in each how many there are.
LIVES = """
count = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
life = len([name for name in os.listdir() if name.startswith(f"life-{index}-")])
open(f"life-{index}-{life}", "w").close()
def stopped(*_):
    sys.exit(143)
signal.signal(signal.SIGTERM, stopped)
print(f"step {life + 1}/9 of {count}", flush=True)
"""


ENDS_BY_SIGPIPE = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
PRINTS = """
for n in range(300):
    print(n, flush=True)
    time.sleep(0.02)
"""


class TestElastic:
    @pytest.fixture
    def elastic(self, tmp_path, monkeypatch, capfdbinary):
        monkeypatch.chdir(tmp_path)

        def run(program: str, count: int, **options):
            script = tmp_path / "program.py"
            script.write_text(HEAD + LIVES + textwrap.dedent(program))
            code = launch.run([sys.executable, "-S", str(script)], count, **options)
            lines = capfdbinary.readouterr().out.decode().splitlines()
            said = [line.removeprefix("[launcher] ") for line in lines if line[1] == "l"]
            steps = [line for line in lines if line.startswith("[0] step")]
            return code, said, [int(line.rpartition(" ")[2]) for line in steps]

        return run

    def test_a_run_whose_worker_was_killed_goes_on_with_those_that_are_left(self, elastic):
        program = """
        if life == 0 and index == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), 9)
        if life == 0:
            time.sleep(2)
            sys.exit(138)
        """
        code, said, counts = elastic(program, 3, restarts=5, min_workers=1)
        assert (code, counts) == (0, [3, 2])
        assert said[0] == (
            "worker 1 has ended (exit codes 138, -9, 138); continuing with 2 of 3 workers, 4 "
            "restarts left"
        )
        seconds = float(re.fullmatch(r"([\d.]+) s from the end to the next step .*", said[1])[1])
        assert 0.5 <= seconds < 10  # until all have ended, and begun

    def test_it_grows_back_when_a_place_returns(self, elastic):
        program = """
        if life == 0 and index == 1:
            os.kill(os.getpid(), 9)
        if count == 2 and life == 0:
            sys.exit(138)
        if count == 1:
            time.sleep(60)
        """
        code, said, counts = elastic(program, 2, restarts=5, min_workers=1, return_seconds=1.0)
        assert (code, counts) == (0, [2, 1, 2])
        assert "continuing with 2 workers: one more is back" in said

    def test_by_default_it_goes_on_with_all(self, elastic):
        code, _, counts = elastic("os.kill(os.getpid(), 9) if life < 2 else 0", 2, restarts=5)
        assert (code, counts) == (0, [2, 2, 2])

    @pytest.mark.parametrize("code", [1, 2, 127])
    def test_an_error_that_would_come_back_ends_it(self, elastic, code):
        program = f"sys.exit({code} if index else 138)"
        said = f"exit codes 138, {code}: such an error would recur, and ends the run"
        assert elastic(program, 2, restarts=5) == (code, [said], [2])

    def test_restarts_come_to_an_end(self, elastic):
        code, said, counts = elastic("os.kill(os.getpid(), 9)", 1, restarts=3)
        assert (code, counts) == (137, [1] * 4)
        assert [line for line in said if "has ended" in line][-1].endswith(" 0 restarts left")

    def test_a_launcher_that_is_stopped_starts_nothing_again(self, elastic, tmp_path):
        def send():
            while not (tmp_path / "life-1-0").exists():
                time.sleep(0.05)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send, daemon=True).start()
        assert elastic("time.sleep(60)", 2, restarts=5) == (143, [], [2])

    def test_a_chief_that_saves_for_long_is_left_to_it(self, elastic, monkeypatch, tmp_path):
        monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.3)
        program = """
        if life == 0 and index == 1:
            os.kill(os.getpid(), 9)
        if life == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(2)
            open("saved", "w").close()
            sys.exit(138)
        """
        code, said, counts = elastic(program, 2, restarts=1, min_workers=1)
        assert (code, counts) == (0, [2, 1])
        assert (tmp_path / "saved").exists()
        assert said[0].startswith("worker 1 has ended (exit codes 138, -9)")

    def test_one_that_talks_is_not_late(self, elastic, monkeypatch):
        monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.6)
        program = """
        if life == 0 and index == 1:
            os.kill(os.getpid(), 9)
        if life == 0:
            for _ in range(10):
                time.sleep(0.2)
                print("at work", flush=True)
            sys.exit(138)
        """
        code, said, _ = elastic(program, 3, restarts=1)
        assert code == 0
        assert said[0].startswith("worker 1 has ended (exit codes 138, -9, 138)")

    def test_one_that_talks_forever_ends(self, elastic, monkeypatch):
        monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 0.5)
        monkeypatch.setattr(launch, "_CHIEF_KILLED_AFTER_SECONDS", 1.0)
        program = """
        if life == 0 and index == 1:
            os.kill(os.getpid(), 9)
        while life == 0:
            time.sleep(0.1)
            print("at work", flush=True)
        """
        code, said, _ = elastic(program, 2, restarts=1)
        assert code == 0
        assert said[0].startswith("worker 1 has ended (exit codes 143, -9)")

    def test_a_stopped_chief_is_killed_after_a_while(self, elastic, monkeypatch):
        monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 1.0)
        program = """
        if life == 0 and index == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        if life == 0:
            sys.exit(138)
        """
        code, said, counts = elastic(program, 2, restarts=1, min_workers=1)
        assert code == 0
        assert said[0].startswith("worker 0 has ended (exit codes -9, 138); continuing with 1 of 2")

    def test_another_stopped_worker_is_killed_at_once(self, elastic):
        program = """
        if life == 0 and index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if life == 0:
            sys.exit(138)
        """
        begun = time.monotonic()
        code, said, counts = elastic(program, 2, restarts=1, min_workers=1)
        assert code == 0
        assert said[0].startswith("worker 1 has ended (exit codes 138, -9); continuing with 1 of 2")
        assert time.monotonic() - begun < launch._KILLED_AFTER_SECONDS

    def test_a_reader_that_goes_away_starts_nothing_again(self, tmp_path):
        script = tmp_path / "program.py"
        script.write_text(HEAD + ENDS_BY_SIGPIPE + LIVES + PRINTS)
        command = [sys.executable, "-S", "-c", QUICK_LAUNCHER.replace("))", "), restarts=5)", 1)]
        done = subprocess.run(
            ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "", *command,
             scripts.ROOT, "30", "2", script],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 141
        assert len(list(tmp_path.glob("life-*"))) == 2


class TestHanging:
    """Nothing is waited for forever."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(launch, "_KILLED_AFTER_SECONDS", 1.0)
        monkeypatch.setattr(launch, "_CHIEF_KILLED_AFTER_SECONDS", 2.0)

    @pytest.mark.parametrize("stopped", [0, 1])
    def test_a_stopped_worker_beside_one_that_has_come_to_its_end(self, launched, stopped):
        program = f"os.kill(os.getpid(), signal.SIGSTOP) if index == {stopped} else 0"
        assert launched(program)[0] == 137

    def test_workers_that_do_not_answer_a_signal(self, launched, tmp_path):
        program = f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(f"{tmp_path}/ready-{{index}}", "w").close()
        time.sleep(60)
        """

        def send():
            until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, 20)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send, daemon=True).start()
        began = time.monotonic()
        assert launched(program)[0] == 137
        assert time.monotonic() - began < 20

    def test_a_stopped_worker_does_not_answer_a_signal(self, launched, tmp_path):
        program = f"""
        with open(f"{tmp_path}/ready-{{index}}", "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        """

        def both_are_stopped():
            pids = [path.read_text() for path in tmp_path.glob("ready-*")]
            return len(pids) == 2 and all(map(is_stopped, pids))

        def send():
            until(both_are_stopped, 20)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send, daemon=True).start()
        assert launched(program)[0] == 137

    @pytest.mark.parametrize("talks", ["while :; do sleep 0.01; echo talks; done", "sleep 60"])
    def test_what_a_worker_leaves_behind(self, launched, talks):
        """It holds the worker's output, and may go on with it."""
        program = f"""
        import subprocess
        left = subprocess.Popen(["sh", "-c", "trap '' PIPE; {talks}"])
        print("left", left.pid, flush=True)
        sys.stdout.write("no end of line")
        """
        began = time.monotonic()
        code, out, _ = launched(program, 1)
        assert time.monotonic() - began < 20
        os.kill(int(next(line for line in out if "left" in line).split()[-1]), signal.SIGKILL)
        assert code == 0
        assert "[0] no end of line" in out or talks != "sleep 60"


def test_a_worker_that_cannot_be_started_leaves_no_other(monkeypatch, tmp_path):
    started = []

    def popen(command, *arguments, **options):
        if len(started) == 2:  # with the keeper
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(original(command, *arguments, **options))
        return started[-1]

    original = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    began = time.monotonic()
    with pytest.raises(OSError, match="temporarily unavailable"):
        launch.run([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 3)
    assert started[1].wait(timeout=10) == -signal.SIGKILL
    assert time.monotonic() - began < 20


def test_that_no_worker_can_be_started_is_a_sentence(monkeypatch, capsys, tmp_path):
    def run(*_, **__):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(launch, "run", run)
    script = tmp_path / "a.py"
    script.write_text("")
    assert launch.main(["--workers=2", str(script)]) == 1
    said = "error: cannot start the workers: [Errno 11] Resource temporarily unavailable\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_for_the_output_is_one_line(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(HEAD + PRINTS)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-S", "-c", QUICK_LAUNCHER, scripts.ROOT, "30", "2", script],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    problem = "cannot write to <stdout>: No space left on device"
    assert said == [f"towers-launch: error: {problem}"]
    assert done.returncode != 0


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    assert launch.run([sys.executable, "-S", "-c", ""], 1) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_output_that_was_closed_before_ends_nobody(monkeypatch, closed):
    monkeypatch.setattr(sys, closed, None)
    program = f"import sys; [print('line', file=sys.{closed}) for _ in range(20_000)]"
    assert launch.run([sys.executable, "-S", "-c", program], 1) == 0


@pytest.mark.whole_program
@pytest.mark.parametrize("variable", ["PYTHONOPTIMIZE=2", "PYTHONSAFEPATH=1"])
def test_it_starts_train_py_however_python_was_told_to_run(variable, tmp_path):
    """Without docstrings; or without the script's folder among those of modules."""
    name, _, value = variable.partition("=")
    for package in ("towers", "towers_cli"):  # as if they were installed
        (tmp_path / package).symlink_to(scripts.ROOT / package)
    script = str(scripts.ROOT / "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "towers_cli.launch", "--workers=2", "--", script, "--version"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), name: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    version = f"towers {towers.__version__}"
    assert sorted(done.stdout.splitlines()) == [f"[0] {version}", f"[1] {version}"]
