"""Starts the workers of a run on this machine, to try with what is meant for several.

    towers-launch --workers=2 -- train.py --train_dir=runs/two --num_microbatches=4

Each worker is a process of its own that finds the others through TF_CONFIG, on free ports of this
machine. What they print is passed on behind their index; Ctrl-C and SIGTERM go to all of
them. The exit code is 0 where all ended with it; else it is the chief's, or that of the first
other one that failed. Where the launcher itself is killed, the workers get SIGTERM all the same.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from towers_cli import keeper

_LARGEST = 64
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# After the first failure, which workers notice within 25 by themselves, or the launcher's own end.
_KILLED_AFTER_SECONDS = 30.0


def command() -> None:
    """Runs the command to its end."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workers to their end; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True, help="how many processes")
    parser.add_argument("script", help="such as train.py, or towers-train")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own flags")
    options = parser.parse_args(argv)
    if not 1 <= options.workers <= _LARGEST:
        parser.error(f"--workers={options.workers}: must be at least 1 and at most {_LARGEST}")
    script = options.script
    if not Path(script).is_file():  # an installed command
        script = shutil.which(script, path=Path(sys.executable).parent) or shutil.which(script)
    if script is None:
        parser.error(f"{options.script}: there is no such file or command")
    return run([sys.executable, "-u", script, *options.arguments], options.workers)


def run(command: Sequence[str], count: int, environment: Mapping[str, str] = os.environ) -> int:
    """Runs `command` as each of `count` workers; returns the exit code.

    Args:
      command: program and arguments.
      count: number of workers.
      environment: theirs, but for TF_CONFIG.
    """
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    workers, received = [], []

    def forward(number, _frame):
        received.append(number)
        for worker in workers:
            worker.send_signal(number)

    before = {
        number: signal.signal(number, forward)
        for number in _FORWARDED
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # as under nohup
    }
    kept = contextlib.ExitStack()
    try:
        with_keeper = kept.enter_context(_keeper())
        for index in range(count):
            own = {"TF_CONFIG": tf_config(addresses, index)}
            workers.append(
                subprocess.Popen(
                    command,
                    env={**environment, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    **with_keeper,
                )
            )
            for number in received:  # before this worker was there
                workers[-1].send_signal(number)
        unread = threading.Event()
        readers = [
            threading.Thread(target=_pass_on, args=(stream, to, f"[{index}] ".encode(), unread))
            for index, worker in enumerate(workers)
            for stream, to in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr))
        ]
        for reader in readers:
            reader.start()
        codes = _wait(workers)
        for reader in readers:
            reader.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
        kept.close()
    return exit_code(codes)


@contextlib.contextmanager
def _keeper() -> Iterator[dict]:
    """While entered, workers that are started with what it gives end where this process goes.

    They are in a process group of their own, so that the terminal's Ctrl-C comes through the
    launcher alone.
    """
    nobody_left, alive = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-S", keeper.__file__, str(nobody_left), str(_KILLED_AFTER_SECONDS)],
            stdin=subprocess.PIPE,  # which ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[nobody_left],
            process_group=0,
        ) as process:
            try:
                yield {"process_group": process.pid, "pass_fds": [alive]}
            finally:
                process.kill()
    finally:
        os.close(nobody_left)
        os.close(alive)


def exit_code(codes: Sequence[int]) -> int:
    """One exit code for all: 0, the chief's, or the first other one; 128 + n for a signal n."""
    failed = [code for code in codes if code]
    code = codes[0] or (failed[0] if failed else 0)
    return 128 - code if code < 0 else code


def _wait(workers: Sequence[subprocess.Popen]) -> list[int]:
    """Waits for all; a worker that does not end after another has failed is killed."""
    ended = threading.Event()

    def end_all():
        if not ended.wait(_KILLED_AFTER_SECONDS):
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()

    watcher = None
    left = list(workers)
    while left:
        for worker in list(left):
            try:
                worker.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            left.remove(worker)
            if worker.returncode and watcher is None:
                watcher = threading.Thread(target=end_all, daemon=True)
                watcher.start()
    ended.set()
    return [worker.returncode for worker in workers]


def _pass_on(stream, to, prefix: bytes, unread: threading.Event) -> None:
    """Copies whole lines, so that those of two workers do not mix."""
    with stream:
        for line in stream:
            if to is None:  # was closed before this program began
                continue
            try:
                to.buffer.write(prefix + line if line.endswith(b"\n") else prefix + line + b"\n")
                to.flush()
            except BrokenPipeError:  # as that of `... | head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
                unread.set()
            if unread.is_set():
                return  # the workers find out as they print


def tf_config(addresses: Sequence[str], index: int) -> str:
    """What TF_CONFIG has to be for one of the workers at these addresses."""
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": task})


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


if __name__ == "__main__":
    command()
