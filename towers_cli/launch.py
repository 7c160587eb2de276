"""Starts the workers of a run on this machine, to try with what is meant for several.

    towers-launch --workers=2 -- train.py --train_dir=runs/two
    towers-launch --workers=4 --min_workers=1 --restarts=20 -- train.py --train_dir=runs/four

Each worker is a process of its own that finds the others through TF_CONFIG, on free ports of this
machine. What they print is passed on behind their index; Ctrl-C and SIGTERM go to all of them. The
exit code is 0 where all ended with it; else it is that of the first one that did not end for
another's sake. Where the launcher itself is killed, the workers get SIGTERM all the same.

With --restarts a run whose worker has died is started again, from its last complete step, or from
its newest checkpoint where it was the chief: with the workers that are left, as long as there are
--min_workers, and with one more when its place has come back, after --return_seconds. An error that
would come back, such as a wrong flag, ends it.
"""

import argparse
import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from towers_cli import keeper, slots

_LARGEST = 64
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# After the launcher's own end; and after the first failure, which workers notice within 25 by
# themselves, or the last sign of life since. Those that are left are then asked to end, and killed
# after as long again, the chief later: it may be writing the checkpoint that all depends on.
_KILLED_AFTER_SECONDS = 30.0
_CHIEF_KILLED_AFTER_SECONDS = 600.0
_LOOKS_EVERY_SECONDS = 0.1
_A_STEP = re.compile(rb"step [\d,]+/")  # what the chief's line of a step begins with


def command() -> None:
    """Runs the command to its end."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workers to their end; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True, help="how many processes")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often to start again where a worker has died"
    )
    parser.add_argument(
        "--min_workers", type=int, help="go on with no fewer than these; default: with all"
    )
    parser.add_argument(
        "--return_seconds", type=float, default=60.0,
        help="how long a worker that has died is not replaced, if others can go on (default: 60)",
    )  # fmt: skip
    parser.add_argument("script", help="such as train.py, or towers-train")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own flags")
    options = parser.parse_args(argv)
    least = options.workers if options.min_workers is None else options.min_workers
    for flag, value, low, high in (
        ("workers", options.workers, 1, _LARGEST),
        ("min_workers", least, 1, options.workers),
        ("restarts", options.restarts, 0, 10**6),
        ("return_seconds", options.return_seconds, 0, 10**6),
    ):
        if not low <= value <= high:
            parser.error(f"--{flag}={value}: must be at least {low} and at most {high}")
    script = options.script
    if not Path(script).is_file():  # an installed command
        script = shutil.which(script, path=Path(sys.executable).parent) or shutil.which(script)
    if script is None:
        parser.error(f"{options.script}: there is no such file or command")
    return run(
        [sys.executable, "-u", script, *options.arguments],
        options.workers,
        restarts=options.restarts,
        min_workers=least,
        return_seconds=options.return_seconds,
    )


def run(
    command: Sequence[str],
    count: int,
    environment: Mapping[str, str] = os.environ,
    *,
    restarts: int = 0,
    min_workers: int | None = None,
    return_seconds: float = 60.0,
) -> int:
    """Runs `command` as each of `count` workers; returns the exit code.

    Args:
      command: program and arguments.
      count: number of workers.
      environment: theirs, but for TF_CONFIG and the secret by which they know each other.
      restarts: how often all are started again where one has died.
      min_workers: with how many the others go on; None for all.
      return_seconds: how long one that has died is not replaced.
    """
    places = slots.Slots(count, count if min_workers is None else min_workers, return_seconds)
    with _forwarded() as signals, _keeper() as with_keeper:
        died_at, is_elastic = None, restarts > 0
        while True:
            here = places.there()
            started = _Workers(command, len(here), {**environment}, with_keeper, signals, died_at)
            codes = started.wait(lambda here=here: is_elastic and len(places.there()) > len(here))
            if signals.received or not any(codes):
                return slots.exit_code(codes)
            if not slots.may_be_tried_again(codes):
                if is_elastic:
                    shown = ", ".join(map(str, codes))
                    _say(f"exit codes {shown}: such an error would come back, and ends the run")
                return slots.exit_code(codes)
            if started.made_room:
                _say(f"goes on with {len(places.there())} workers: one more has come back")
                died_at = time.monotonic()
                continue
            if not restarts:
                return slots.exit_code(codes)
            restarts -= 1
            died_at = started.first_failed_at
            dead = slots.dead(codes, started.asked)
            places.lose([here[index] for index in dead])
            names = " and ".join(f"worker {index}" for index in dead)
            ended = f"{names} {'has' if len(dead) == 1 else 'have'} ended" if dead else "all ended"
            _say(
                f"{ended} (exit codes {', '.join(map(str, codes))}); goes on with "
                f"{len(places.there())} of {count} workers, {restarts} restarts are left"
            )


def _say(text: str) -> None:
    if sys.stdout is not None:
        with contextlib.suppress(BrokenPipeError):
            print(f"[launcher] {text}", flush=True)


class _Signals:
    """Signals that were received, and who gets them."""

    def __init__(self):
        self.received: list[int] = []
        self.workers: list[subprocess.Popen] = []

    def forward(self, number: int, _frame) -> None:
        self.received.append(number)
        for worker in self.workers:
            worker.send_signal(number)


@contextlib.contextmanager
def _forwarded() -> Iterator[_Signals]:
    signals = _Signals()
    before = {
        number: signal.signal(number, signals.forward)
        for number in _FORWARDED
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # as under nohup
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers:
    """The processes of one start.

    Attributes:
      first_failed_at: the time when the first of them had failed.
      asked: those that were asked to end, or killed, because they had not ended after another.
      made_room: whether they were stopped because there can be more of them.
    """

    def __init__(self, command, count: int, environment, with_keeper, signals, died_at):
        self.first_failed_at: float | None = None
        self.made_room = False
        self.asked: set[int] = set()
        self._last_sign = time.monotonic()
        self._processes = signals.workers = []
        self._died_at = died_at
        self._made_a_step = threading.Event()
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        environment = environment | {"TOWERS_SECRET": secrets.token_hex(32)}
        environment.pop("TOWERS_SECRET_FILE", None)
        unread = threading.Event()
        self._readers = []
        for index in range(count):
            worker = subprocess.Popen(
                command,
                env=environment | {"TF_CONFIG": tf_config(addresses, index)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **with_keeper,
            )
            self._processes.append(worker)
            for number in signals.received:  # before this worker was there
                worker.send_signal(number)
            for stream, to in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr)):
                seen = functools.partial(self._look_at, index)
                arguments = (stream, to, f"[{index}] ".encode(), unread, seen)
                self._readers.append(threading.Thread(target=_pass_on, args=arguments))
        for reader in self._readers:
            reader.start()

    def _look_at(self, index: int, line: bytes) -> None:
        """Says how long it took from a worker's end to the next step."""
        self._last_sign = time.monotonic()
        if index == 0 and not self._made_a_step.is_set() and _A_STEP.match(line):
            self._made_a_step.set()
            if self._died_at is not None:
                seconds = time.monotonic() - self._died_at
                _say(f"{seconds:.1f} s from the end to the next step that is shown")

    def wait(self, has_room: Callable[[], bool]) -> list[int]:
        """Waits for all; the exit codes.

        A worker that does not end after another has failed is asked to, and then killed. Where
        there is room for more workers, the run is stopped after a step, with a checkpoint.
        """
        left = len(self._processes)
        try:
            while any(worker.poll() is None for worker in self._processes):
                failed = any(worker.poll() for worker in self._processes)
                if failed and self.first_failed_at is None:
                    self.first_failed_at = time.monotonic()
                before, left = left, sum(worker.poll() is None for worker in self._processes)
                if left < before:
                    self._last_sign = time.monotonic()
                if failed:
                    self._end_those_that_are_late()
                if not failed and self._made_a_step.is_set() and not self.made_room and has_room():
                    self.made_room = True
                    self._processes[0].send_signal(signal.SIGTERM)
                for worker in self._processes:
                    if worker.poll() is None:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            worker.wait(_LOOKS_EVERY_SECONDS)
                        break
            if self.first_failed_at is None:
                self.first_failed_at = time.monotonic()
            for reader in self._readers:
                reader.join()
        finally:
            self._kill()
        return [worker.returncode for worker in self._processes]

    def _end_those_that_are_late(self) -> None:
        now = time.monotonic()
        late = max(
            now - self._last_sign, now - self.first_failed_at - _CHIEF_KILLED_AFTER_SECONDS
        )  # one that talks forever ends, too
        for index, worker in enumerate(self._processes):
            is_late, is_stopped = late > _KILLED_AFTER_SECONDS, _is_stopped(worker.pid)
            # A chief that somebody lets go on in time has something to save.
            if worker.poll() is not None or not (is_late or (is_stopped and index)):
                continue
            limit = _KILLED_AFTER_SECONDS if index else _CHIEF_KILLED_AFTER_SECONDS
            if index not in self.asked:
                worker.send_signal(signal.SIGTERM)
            if is_stopped or late > _KILLED_AFTER_SECONDS + limit:
                worker.kill()
            self.asked.add(index)

    def _kill(self) -> None:
        for worker in self._processes:
            if worker.poll() is None:
                worker.kill()


def _is_stopped(process: int) -> bool:
    """Whether it was stopped, as by SIGSTOP, so that no other signal than SIGKILL ends it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # it has just ended, or there is no /proc
        return False
    return state == "T"


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


def _pass_on(
    stream,
    to,
    prefix: bytes,
    unread: threading.Event,
    seen: Callable[[bytes], None],
) -> None:
    """Copies whole lines, so that those of two workers do not mix; shows each to `seen`."""
    with stream:
        for line in stream:
            seen(line)
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
