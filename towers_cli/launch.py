"""Starts the workers of a run on this machine, to try out what is meant for several.

    towers-launch --workers=2 [--restarts=20] -- train.py --train_dir=runs/two

They find each other through TF_CONFIG. What each prints is passed on after its index; signals go to
all. Once one has ended, the others are asked to end after a minute and killed after another. The
exit code is 0, that of an error, or that of a death, after which --restarts starts all again.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from towers_cli import command_line

_PATIENCE_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workers to their end; returns the exit code."""
    parser = command_line.Parser("towers-launch", __doc__)
    parser.add_argument("--workers", type=int, required=True, help="how many processes")
    parser.add_argument("--restarts", type=int, default=0, help="how often to start again")
    parser.add_argument("script", help="such as train.py, or towers-train")
    parser.add_argument("arguments", nargs="...", help="the script's own flags")
    options = parser.parse_args(argv)
    for flag, low, high in (("workers", 1, 64), ("restarts", 0, 10**6)):
        if not low <= (value := getattr(options, flag)) <= high:
            parser.error(f"--{flag}={value}: must be at least {low} and at most {high}")
    script, beside_python = options.script, os.path.dirname(sys.executable)
    if not os.path.isfile(script):  # an installed command
        script = shutil.which(script, path=beside_python) or shutil.which(script)
    if script is None:
        parser.error(f"{options.script}: there is no such file or command")
    program = [sys.executable, "-u", script, *options.arguments]
    workers, signals = list[subprocess.Popen](), list[int]()

    def forward(number: int, _frame) -> None:
        signals.append(number)
        for worker in workers:
            worker.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as that of SIGHUP is under nohup
            signal.signal(number, forward)
    for left in range(options.restarts, -1, -1):
        codes = _run(program, options.workers, workers, signals)
        # An error that would recur, a death, or 138: that another one has ended.
        code = min(filter(None, codes), key=lambda c: (c >= 128, c == 138), default=0)
        if code < 128 or signals or not left:
            break
        print(f"[launcher] exit codes {codes}; restarts left: {left - 1}", flush=True)
    return code


def _run(program: Sequence[str], count: int, workers: list, signals: list) -> list[int]:
    """Runs all to their ends, in `workers`, until one ends or a signal comes; their exit codes."""
    addresses, readers = [f"127.0.0.1:{port}" for port in free_ports(count)], []
    workers.clear()
    for index in range(count):
        worker = subprocess.Popen(
            program, env=os.environ | {"TF_CONFIG": tf_config(addresses, index)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            process_group=0,  # the terminal's Ctrl-C comes through the launcher alone
        )  # fmt: skip
        workers.append(worker)
        for number in signals:  # before this worker was there
            worker.send_signal(number)
        for stream, to in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr)):
            arguments = stream, to, b"[%d] " % index, signals
            readers.append(threading.Thread(target=_pass_on, args=arguments, daemon=True))
            readers[-1].start()
    while all(worker.poll() is None for worker in workers) and not signals:
        time.sleep(0.1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _PATIENCE_SECONDS
        while any(worker.poll() is None for worker in workers) and time.monotonic() < until:
            time.sleep(0.1)
        for worker in workers:
            worker.send_signal(number)
    for reader in readers:
        reader.join(1.0)  # a process that a worker has left behind may hold its output
    return [code if code >= 0 else 128 - code for code in (one.wait() for one in workers)]


def _pass_on(stream, to, prefix: bytes, signals: list) -> None:
    """Copies whole lines, so that those of two workers do not mix."""
    try:
        with stream:
            for line in stream:
                to.buffer.write(prefix + line.rstrip(b"\n") + b"\n")
                to.flush()
    except OSError:  # as with `| head`; the workers find out as they print
        signals.append(signal.SIGPIPE)


def tf_config(addresses: Sequence[str], index: int) -> str:
    """What TF_CONFIG must be for one of the workers at these addresses."""
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
    sys.exit(main())
