"""A process that has imported TensorFlow, and forks for whoever asks it.

Importing TensorFlow takes about five seconds of a core, and reading all test files thirteen more.
Here one process imports TensorFlow and what the commands import besides, but does not start its
runtime. It forks once for each request: `forked.Popen` asks it for commands. Where xdist hands out
the tests, a second one, its fork, has read all files of tests as well, and forks the processes that
run them (`forked_python.py`).

A request is a connection to a socket. It brings what `python` would be given and three streams; the
pid and later the exit code go back on it, a line each.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "towers",  # before Keras: it sets TensorFlow up
    "input_pipeline.datasets",
    "input_pipeline.tfds_source",
    "tensorflow_datasets",
    "towers_cli.agreement",
    "towers_cli.build",
    "towers_cli.checkpoint_evaluator",
    "towers_cli.evaluate",
    "towers_cli.announcements",
    "towers_cli.train",
    "lighter",
)
COMMANDS, TESTS = "TOWERS_FORKS_COMMANDS", "TOWERS_FORKS_TESTS"  # variables with names of sockets
_LARGEST_REQUEST = 2**20  # bytes


class Fork:
    """A process like `python arguments`, forked from the one that listens.

    Args:
      address: name of its socket: `of_commands()`, or the value of `TESTS`.
      request: of `become`, as JSON.
      streams: file descriptors of stdin, stdout and stderr.
    """

    def __init__(self, address: str, request: str, streams: Sequence[int]):
        self._news = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._news.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
        self._news.connect(f"\0{address}")
        socket.send_fds(self._news, [request.encode()], streams)
        self.pid = int(self._line())

    def exit_code(self, timeout: float | None = None) -> int | None:
        """As that of `subprocess.Popen`; waits for it, and is None if the time was not enough."""
        if not select.select([self._news], [], [], timeout)[0]:
            return None
        with self._news:
            return int(self._line())

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            part = self._news.recv(100)
            if not part:
                raise ChildProcessError("the process that forks ended without a word")
            text += part
        return text.decode()


@functools.cache
def of_commands() -> str:
    """The address of the process that forks commands, which starts unless there is one."""
    if COMMANDS not in os.environ:
        start()
    return os.environ[COMMANDS]


def start(*collected: str) -> None:
    """Starts the process that forks, which ends with this one; the environment has its addresses.

    Args:
      *collected: arguments of pytest for the tests that its own fork reads, if any.
    """
    listeners = {}
    for variable in (COMMANDS, TESTS) if collected else (COMMANDS,):
        os.environ[variable] = f"towers-{secrets.token_hex(8)}"
        listeners[variable] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listeners[variable].bind(f"\0{os.environ[variable]}")
        listeners[variable].listen(64)
    with contextlib.ExitStack() as stack:
        handed = [stack.enter_context(listener).fileno() for listener in listeners.values()]
        process = subprocess.Popen(
            [sys.executable, __file__, *map(str, handed), "--", *collected],
            # It ends with its stdin. And these become streams of the forks: Python has to think of
            # them as pipes.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
            pass_fds=handed,
        )
    atexit.register(process.stdin.close)


def environment() -> dict[str, str]:
    """That of a process that runs a file of this folder."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def request(
    arguments: Sequence[str],
    cwd: str,
    variables: Mapping[str, str],
    made_lighter: Iterable[str] | None = None,
) -> str:
    """What `become` needs to know, as JSON.

    Args:
      arguments: what follows `python`.
      cwd: the folder.
      variables: those of the environment.
      made_lighter: what of its runs is, as for `lighter.only`; None leaves it to the process.
    """
    return json.dumps(
        {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd),
            "variables": dict(variables),
            "made_lighter": None if made_lighter is None else list(made_lighter),
        }
    )


def become(asked: str, set_by_imports: Mapping[str, str] = types.MappingProxyType({})) -> None:
    """Runs what `python arguments` runs, in this process.

    Args:
      asked: a `request`.
      set_by_imports: variables that were set by modules that are imported already. A command has
        them from the test that starts it.
    """
    given = json.loads(asked)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(set_by_imports | given["variables"])
    with contextlib.ExitStack() as stack:
        if given["made_lighter"] is not None:
            import lighter  # and TensorFlow with it

            stack.enter_context(lighter.only(given["made_lighter"]))
            stack.enter_context(lighter.runs())
        _run_as_main(given["arguments"], given["cwd"])


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


def _next_request(listener: socket.socket) -> str:
    """Forks for each request, and returns it in the forks alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a file of tests may have changed that
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for the forks end unseen
    while True:
        if sys.stdin in select.select([sys.stdin, listener], [], [])[0]:
            sys.exit()
        connection, _ = listener.accept()
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", peer)
        if user != os.getuid():  # anyone may connect to such a socket
            connection.close()
            continue
        text, streams, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
        if text and os.fork() == 0:
            listener.close()
            _fork_and_tell(connection, streams)
            return text.decode()
        connection.close()
        for stream in streams:
            os.close(stream)


def _fork_and_tell(connection: socket.socket, streams: Sequence[int]) -> None:
    """Forks once more; the parent says how the child ends, and the child returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return
    for stream in (*streams, 0, 1, 2):  # so that a pipe ends with the child
        os.close(stream)
    with contextlib.suppress(OSError):
        connection.send(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        connection.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def read_tests(arguments: Sequence[str]) -> None:
    """Imports all files of tests. The processes that run them report those that fail to import.

    Args:
      arguments: of pytest.

    Raises:
      SystemExit: a file starts TensorFlow's runtime, whose threads a fork would not have.
    """
    import pytest
    from tensorflow.python.eager import context

    class Watch:
        def pytest_collectreport(self, report):
            if context.context()._initialized:
                pytest.exit(f"{report.nodeid} starts TensorFlow's runtime as it is read", 1)

    said = io.StringIO()
    os.environ.pop("PYTEST_ADDOPTS", None)  # which may have options of xdist
    options = ["--collect-only", "-p", "no:xdist", "-p", "no:cacheprovider"]
    with contextlib.redirect_stdout(said):
        pytest.main([*options, *arguments], plugins=[Watch()])
    if context.context()._initialized:
        sys.exit(said.getvalue())


def _main(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's
    handed, collected = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    given, set_by_imports = set(os.environ), {}
    listeners = [socket.socket(fileno=int(number)) for number in handed]
    for name in PRELOADED:
        importlib.import_module(name)
    if collected and os.fork() == 0:
        read_tests(collected)
        set_by_imports = {name: os.environ[name] for name in set(os.environ) - given}
        listeners.reverse()
    for other in listeners[1:]:
        other.close()
    gc.freeze()  # so that a collection in a fork does not touch, and copy, what is there
    become(_next_request(listeners[0]), set_by_imports)


if __name__ == "__main__":
    _main(sys.argv[1:])
