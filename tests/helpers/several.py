"""Several workers of one run, as processes on this machine."""

import json
import os
import subprocess
import sys
import time

import forked

from towers_cli import launch


class Workers:
    """The processes of one cluster.

    Attributes:
      addresses: host:port of each.
      processes: those that were started, by their index.
    """

    def __init__(self, count: int):
        self.addresses = [f"127.0.0.1:{port}" for port in launch.free_ports(count)]
        self.processes: dict[int, subprocess.Popen] = {}
        self.begin()

    def begin(self) -> None:
        """From now on `seconds` counts."""
        self._since = time.monotonic()

    def start(self, index: int, *call, **variables: str):
        """Starts `python call` as the worker of that index."""
        call = [sys.executable, *map(str, call)]
        config = {"TF_CONFIG": launch.tf_config(self.addresses, index)}
        environment = os.environ | variables | config
        self.processes[index] = forked.Popen(call, env=environment, **forked.PIPES)
        return self.processes[index]

    def ended(self, index: int) -> tuple[int, str]:
        """Exit code of a worker and its error, once it has ended: its last line after `error: `."""
        _, stderr = self.processes[index].communicate(timeout=240)
        last = stderr.splitlines()[-1] if stderr else ""
        return self.processes[index].returncode, last.partition("rror: ")[2]

    def printed(self, index: int):
        """The JSON that a worker prints last, once it has ended without an error."""
        out, stderr = self.processes[index].communicate(timeout=240)
        assert self.processes[index].returncode == 0, stderr
        return json.loads(out.splitlines()[-1])

    def name(self, index: int) -> str:
        """As messages have it."""
        return f"worker {index} ({self.addresses[index]})"

    def seconds(self) -> float:
        """How long it took."""
        return time.monotonic() - self._since

    def kill(self) -> None:
        """Ends what is left of them."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.communicate()
