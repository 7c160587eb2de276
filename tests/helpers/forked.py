"""Processes of Python that have imported TensorFlow already, for tests that start many.

Every `Popen` of this module is a fork of the first process (first_process.py). It runs a script, a
module or a program as `python` would, with its own arguments, environment, folder and pipes; exit
code, signals and output are those of a real process. Its runs are as light as those of the test
that starts it (lighter.py).

A fork cannot show what Python reads when it starts (PYTHONHASHSEED, options such as -O, the
terminal's encoding) nor what happens during the import. Tests of those start `python` itself.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence

import first_process

from towers_cli import system

with system.without_notices():  # of TensorFlow's, which a fork does not print either
    import lighter


class Popen(subprocess.Popen):
    """`Popen([sys.executable, ...])` as a fork of the process that has TensorFlow.

    It takes stdin, stdout, stderr, text, env and cwd of `subprocess.Popen`, and nothing that would
    have to run in the child. What it overrides is private to Python, and the same in 3.11 to 3.13.
    """

    def _execute_child(self, args, _, preexec_fn, __, pass_fds, cwd, env, *rest):
        """In the place of subprocess's fork and exec; the order of arguments is Python's."""
        *_, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[:9]
        assert preexec_fn is None and not pass_fds and args[0] == sys.executable, args
        std = [2 if errwrite == -1 else errwrite]
        std = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, *std]
        request = {
            "arguments": list(map(str, args[1:])),
            "cwd": str(cwd or os.getcwd()),
            "variables": dict(os.environ if env is None else env),
            "is_lighter": list(lighter.made_lighter()),
        }
        self._news = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._news.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, first_process.LARGEST_REQUEST)
        self._news.connect(f"\0{first_process.address()}")
        socket.send_fds(self._news, [json.dumps(request).encode()], std)
        self.pid = int(self._news.recv(100))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, *_, **__):
        return self._exit_code(seconds=0)

    def _wait(self, timeout):
        if self._exit_code(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _exit_code(self, seconds: float | None) -> int | None:
        """Waits for it so long, without an end where that is None."""
        if self.returncode is None and select.select([self._news], [], [], seconds)[0]:
            with self._news:
                self.returncode = int(self._news.recv(100))
        return self.returncode


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
