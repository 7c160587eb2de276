"""Processes of Python that have imported TensorFlow already, for tests that start many.

Importing TensorFlow takes about five seconds of a core. Every `Popen` of this module is a fork of
Python's forkserver, which has imported TensorFlow and what the commands import besides, but has not
started its runtime. It runs a script, a module or a program as `python` would, with its own
arguments, environment, folder and pipes; exit code, signals and output are those of a real process.
Its runs are as light as those of the test that starts it (lighter.py).

A fork cannot show what Python reads when it starts (PYTHONHASHSEED, options such as -O, the
terminal's encoding) nor what happens during the import. Tests of those start `python` itself.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from unittest import mock

from towers_cli import command_line

with command_line.without_notices():  # of TensorFlow's, which a fork does not print either
    import lighter

HELPERS = Path(__file__).parent
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(  # forked is first: it imports towers before Keras
    ["forked", "input_pipeline.datasets", "input_pipeline.tfds_source", "tensorflow_datasets"]
    + [f"towers_cli.{name}" for name in ("build", "checkpoint_evaluator", "evaluate", "train")]
)


class Popen(subprocess.Popen):
    """`Popen([sys.executable, ...])` as a fork of the process that has TensorFlow.

    It takes stdin, stdout, stderr, text, env and cwd of `subprocess.Popen`, and nothing that would
    have to run in the child. What it overrides is private to Python, and the same in 3.11 to 3.13.
    """

    def _execute_child(self, args, _, preexec_fn, __, pass_fds, cwd, env, *rest):
        """In the place of subprocess's fork and exec; the order of arguments is Python's."""
        *_, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:9]
        assert preexec_fn is None and not pass_fds and args[0] == sys.executable, args
        std = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite]
        std.append(2 if errwrite == -1 else errwrite)
        call = list(map(str, args[1:])), str(cwd or os.getcwd())
        variables = dict(os.environ if env is None else env)
        streams = [connection.Connection(os.dup(stream)) for stream in std]  # which are handed over
        self._process = SERVER.Process(
            target=_become, args=(*call, variables, lighter.made_lighter, streams)
        )
        path = os.pathsep.join([str(HELPERS.parents[1]), str(HELPERS)])
        with mock.patch.dict(os.environ, PYTHONPATH=path):  # of the server, which this may start
            self._process.start()
        self.pid, self._child_created = self._process.pid, True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, *_, **__):
        return self._exit_code(seconds=0)

    def _wait(self, timeout):
        if self._exit_code(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _exit_code(self, seconds: float | None) -> int | None:
        """Waits for it so long, without an end where that is None."""
        if self.returncode is None:
            self._process.join(seconds)
            self.returncode = self._process.exitcode
        return self.returncode


def _become(
    arguments: Sequence[str], cwd: str, variables: Mapping[str, str], what_is_lighter, streams
) -> None:
    """Runs what `python arguments` runs, in this process, which is a new one."""
    gc.freeze()  # so that a collection does not touch, and copy, what is there
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    with lighter.only(what_is_lighter), lighter.runs():
        _run_as_main(arguments, cwd)


def _run_as_main(arguments: Sequence[str], cwd: str) -> None:
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        sys.path.insert(0, cwd)
        sys.modules.pop(rest[0], None)  # runpy warns of a module that is imported already
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


def run(arguments: Sequence[str], timeout: float, **options) -> subprocess.CompletedProcess:
    """`subprocess.run` of a fork; its output is text."""
    with Popen(arguments, **PIPES | options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
