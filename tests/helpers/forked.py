"""Processes of Python that have imported TensorFlow already, for tests that start many.

Importing TensorFlow takes about five seconds of a core. Here one process imports it, and what the
commands import besides, but does not start its runtime. Every `Popen` of this module is a fork of
that process. It runs a script, a module or a program as `python` would, with its own arguments,
environment, folder and pipes; exit code, signals and output are those of a real process. Its runs
are as light as those of the test that starts it (lighter.py).

A fork cannot show what Python reads when it starts (PYTHONHASHSEED, options such as -O, the
terminal's encoding) nor what happens during the import. Tests of those start `python` itself.

Forks are for Linux. Elsewhere `Popen` starts a new process for each call, which is slower.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import lighter

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "towers",  # before Keras: it silences TensorFlow's notices
    "input_pipeline.datasets",
    "input_pipeline.tfds_source",
    "tensorflow_datasets",
    "towers_cli.begin_from",
    "towers_cli.build",
    "towers_cli.checkpoint_evaluator",
    "towers_cli.evaluate",
    "towers.runs.resuming",
    "towers_cli.start_table",
    "towers_cli.train",
)
_LARGEST_REQUEST = 2**20  # bytes


def _request(args: Sequence, cwd, env) -> str:
    """What `_become` needs to know, as JSON."""
    assert args[0] == sys.executable, args
    return json.dumps(
        {
            "arguments": list(map(str, args[1:])),
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "lighter": list(lighter.made_lighter()),
        }
    )


class StartedProcess(subprocess.Popen):
    """`Popen([sys.executable, ...])` as a new process."""

    def __init__(self, args, cwd=None, env=None, **options):
        call = [sys.executable, __file__, _request(args, cwd, env)]
        super().__init__(call, env=_environment(), **options)


class ForkedProcess(subprocess.Popen):
    """`Popen([sys.executable, ...])` as a fork of the process that has TensorFlow.

    It takes stdin, stdout, stderr, text, env and cwd of `subprocess.Popen`, and nothing that would
    have to run in the child. What it overrides is private to Python, and the same in 3.11 to 3.13.
    """

    def _execute_child(self, args, _, preexec_fn, __, pass_fds, cwd, env, *rest):
        """In the place of subprocess's fork and exec; the order of arguments is Python's."""
        *_, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:9]
        assert preexec_fn is None and not pass_fds, args
        request = _request(args, cwd, env).encode()
        std = [2 if errwrite == -1 else errwrite]
        std = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, *std]
        self._news, theirs = socket.socketpair()
        with theirs:
            connection, _ = _first_process()
            socket.send_fds(connection, [request], [theirs.fileno(), *std])
        self.pid = int(self._line())
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _line(self) -> str:
        """What is said of the process next; waits for it."""
        text = b""
        while not text.endswith(b"\n"):
            part = self._news.recv(1)
            if not part:
                raise ChildProcessError(_why_there_is_no_fork())
            text += part
        return text.decode()

    def _internal_poll(self, *_, **__):
        if self.returncode is None and select.select([self._news], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def _wait(self, timeout):
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._ended()
        return self.returncode

    def _ended(self) -> None:
        self.returncode = int(self._line())
        self._news.close()


Popen = ForkedProcess if sys.platform == "linux" else StartedProcess


def run(arguments: Sequence[str], timeout: float, **options) -> subprocess.CompletedProcess:
    """`subprocess.run` of a fork; its output is text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Popen(arguments, **pipes | options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@functools.cache
def _first_process() -> tuple[socket.socket, subprocess.Popen]:
    """The process that forks, which starts at the first call, and the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            # Its streams become those of the forks, and Python has to think of them as pipes.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=_environment(),
            pass_fds=[theirs.fileno()],
            text=True,
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
    atexit.register(ours.close)  # which ends it
    return ours, process


def _environment() -> dict[str, str]:
    """That of a process that runs this file."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def _why_there_is_no_fork() -> str:
    """What the first process said when it ended, if it has."""
    _, process = _first_process()
    return "a fork ended without a word" if process.poll() is None else process.stderr.read()


def _next_request(connection: socket.socket) -> str:
    """In the first process: forks for each request, and returns in the forks alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for the forks end unseen
    while True:
        text, files, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 4)
        if not text:
            sys.exit()
        if os.fork() == 0:
            connection.close()
            _fork_and_tell(*files)
            return text.decode()
        for file in files:
            os.close(file)


def _fork_and_tell(news: int, *std: int) -> None:
    """Forks once more; the parent says how the child ends, and the child returns."""
    for name in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(std):
            os.dup2(file, number)
        for file in (news, *std):
            os.close(file)
        return
    for file in (*std, 0, 1, 2):  # so that a pipe ends with the child
        os.close(file)
    with contextlib.suppress(OSError):
        os.write(news, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(news, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: str) -> None:
    """Runs what `python arguments` runs, in this process."""
    asked = json.loads(request)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    with lighter.only(asked["lighter"]), lighter.runs():
        _run_as_main(asked["arguments"], asked["cwd"])


def _run_as_main(arguments: Sequence[str], cwd: str) -> None:
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, cwd
        sys.modules.pop(rest[0], None)  # runpy warns of a module that is imported already
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = list(arguments), str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    asked = sys.argv[1]
    if asked.isdigit():  # the first process, and the connection that requests come by
        for name in PRELOADED:
            importlib.import_module(name)
        gc.freeze()  # so that a collection in a fork does not touch, and copy, what is there
        asked = _next_request(socket.socket(fileno=int(asked)))
    _become(asked)
