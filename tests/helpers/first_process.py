"""A process that has imported TensorFlow, and forks for whoever asks it.

Importing TensorFlow takes about five seconds of a core. Here one process imports TensorFlow and
what the commands import besides, but does not start its runtime. It forks once for each request of
`forked.Popen`.

A request is a connection to a socket. It brings what `python` would be given and three streams; the
pid and later the exit code go back on it, a line each.
"""

import atexit
import contextlib
import gc
import importlib
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
from collections.abc import Sequence
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
ADDRESS = "TOWERS_FORKS"  # a variable with the name of its socket
LARGEST_REQUEST = 2**20  # bytes


def address() -> str:
    """The name of its socket; starts the process unless there is one."""
    if ADDRESS not in os.environ:
        start()
    return os.environ[ADDRESS]


def start() -> None:
    """Starts the process that forks, which ends with this one; the environment has its address."""
    os.environ[ADDRESS] = f"towers-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{os.environ[ADDRESS]}")
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            # It ends with its stdin. And these become streams of the forks: Python has to think of
            # them as pipes.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            pass_fds=[listener.fileno()],
        )
    atexit.register(process.stdin.close)


def become(request: str) -> None:
    """Runs what `python arguments` runs, in this process.

    Args:
      request: JSON of an object: `arguments`, the folder `cwd`, `variables` of the environment, and
        what of its runs `is_lighter`, as for `lighter.only`.
    """
    import lighter  # and TensorFlow with it

    given = json.loads(request)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["variables"])
    with lighter.only(given["is_lighter"]), lighter.runs():
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
        text, streams, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, 3)
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # so that a collection in a fork does not touch, and copy, what is there
    become(_next_request(socket.socket(fileno=int(sys.argv[1]))))
