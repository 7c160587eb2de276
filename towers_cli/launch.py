"""Starts the workers of a run on this machine, to try out what is meant for several.

    towers-launch --workers=2 -- train.py --train_dir=runs/two
    towers-launch --workers=4 --min_workers=1 --restarts=20 -- train.py --train_dir=runs/four

Each worker is a process of its own that finds the others through TF_CONFIG, on free ports of this
machine. What they print is passed on after their index; Ctrl-C and SIGTERM go to all of them. The
exit code is 0 if all ended with 0; else it is that of the first one with an error of its own, or of
the first that died. If the launcher itself is killed, the workers still get SIGTERM.

With --restarts a run whose worker has died is started again, from its last complete step, or from
its newest checkpoint where it was the chief: with the workers that are left, as long as there are
--min_workers, and with one more when its place is back, after --return_seconds. An error that would
recur, such as a wrong flag, ends it.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import selectors
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
# themselves, or the last sign of life since. Those left are then asked to end, and killed after as
# long again, the chief later: it may be writing the checkpoint that all depend on. So may it after
# a signal, and the others wait for it.
_KILLED_AFTER_SECONDS = 30.0
_CHIEF_KILLED_AFTER_SECONDS = 600.0
_LOOKS_EVERY_SECONDS = 0.1
_READERS_LOOK_EVERY_SECONDS = 1.0
_MOST_AFTER_THE_END = 2**20  # bytes of output; no pipe holds more
_A_STEP = re.compile(rb"step [\d,]+/")  # what the chief's line of a step begins with


def command() -> None:
    """Runs the command to its end."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workers to their end; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True, help="how many processes")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often to start again after a worker has died"
    )
    parser.add_argument(
        "--min_workers", type=int, help="continue with no fewer than this; default: all"
    )
    parser.add_argument(
        "--return_seconds", type=float, default=60.0,
        help="how long a dead worker is not replaced, if the others can continue (default: 60)",
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
    try:
        return run(
            [sys.executable, "-u", script, *options.arguments],
            options.workers,
            restarts=options.restarts,
            min_workers=least,
            return_seconds=options.return_seconds,
        )
    except OSError as error:
        print(f"{parser.prog}: error: cannot start the workers: {error}", file=sys.stderr)
        return 1


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
      environment: theirs, except TF_CONFIG and the secret by which they know each other.
      restarts: how often all are started again after one has died.
      min_workers: the fewest to continue with; None for all.
      return_seconds: how long a dead one is not replaced.
    """
    places = slots.Slots(count, count if min_workers is None else min_workers, return_seconds)
    with _forwarded() as signals, _keeper() as with_keeper:
        died_at, is_elastic, here = None, restarts > 0, places.there()
        while True:
            started = _Workers(command, len(here), {**environment}, with_keeper, signals, died_at)
            codes = started.wait(lambda here=here: is_elastic and len(places.there()) > len(here))
            exit_code = slots.exit_code(codes, started.asked)
            if signals.received or started.is_unread or not exit_code:
                return exit_code
            shown = ", ".join(map(str, codes))
            if not slots.may_be_tried_again(codes):
                if is_elastic:
                    _say(f"exit codes {shown}: such an error would recur, and ends the run")
                return exit_code
            if started.made_room and slots.ended_as_asked(codes):
                here, died_at = places.there(), time.monotonic()
                _say(f"continuing with {len(here)} workers: one more is back")
                continue
            if not restarts:
                return exit_code
            restarts -= 1
            died_at = started.first_failed_at
            dead = slots.dead(codes, started.asked) or slots.dead(codes, ())
            places.lose([here[index] for index in dead])
            names = " and ".join(f"worker {index}" for index in dead)
            ended = f"{names} {'has' if len(dead) == 1 else 'have'} ended" if dead else "all ended"
            here = places.there()
            _say(
                f"{ended} (exit codes {shown}); continuing with {len(here)} of {count} workers, "
                f"{restarts} restarts left"
            )


def _say(text: str) -> None:
    if sys.stdout is not None:
        with contextlib.suppress(OSError):  # the readers of workers' output end the run then
            sys.stdout.write(f"[launcher] {text}\n")  # in one call: a reader may write, too
            sys.stdout.flush()


class _Signals:
    """Signals that were received, and who gets them."""

    def __init__(self):
        self.received: list[int] = []
        self.first_at: float | None = None
        self.workers: list[subprocess.Popen] = []

    def forward(self, number: int, _frame) -> None:
        self.received.append(number)
        if self.first_at is None:
            self.first_at = time.monotonic()
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
      asked: those that the launcher asked to end, by itself or through the chief, or killed.
      made_room: whether they were stopped because there can be more of them.
    """

    def __init__(self, command, count: int, environment, with_keeper, signals, died_at):
        self.first_failed_at: float | None = None
        self.made_room = False
        self.asked: set[int] = set()
        self._last_sign = time.monotonic()
        self._first_ended_at: float | None = None
        self._processes = signals.workers = []
        self._signals, self._died_at = signals, died_at
        self._made_a_step = threading.Event()
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        environment = environment | {"TOWERS_SECRET": secrets.token_hex(32)}
        environment.pop("TOWERS_SECRET_FILE", None)
        self._unread, self._all_ended = threading.Event(), threading.Event()
        self._readers = []
        try:
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
                    arguments = (stream, to, index)
                    self._readers.append(threading.Thread(target=self._pass_on, args=arguments))
            for reader in self._readers:
                reader.start()
        except BaseException:
            self._all_ended.set()
            self._kill()
            raise

    @property
    def is_unread(self) -> bool:
        """Whether nobody reads what they print any more."""
        return self._unread.is_set()

    def _look_at(self, index: int, line: bytes) -> None:
        """Says how long it took from a worker's end to the next step."""
        self._last_sign = time.monotonic()
        if index == 0 and not self._made_a_step.is_set() and _A_STEP.match(line):
            self._made_a_step.set()
            if self._died_at is not None:
                seconds = time.monotonic() - self._died_at
                _say(f"{seconds:.1f} s from the end to the next step shown")

    def _pass_on(self, stream, to, index: int) -> None:
        """Copies whole lines, so that those of two workers do not mix, until all have ended."""
        left = _MOST_AFTER_THE_END
        with stream, selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            begun = bytearray()  # the part of a line that has come
            while left > 0 and not self.is_unread:
                have_ended = self._all_ended.is_set()  # then all their output is there
                if not selector.select(0 if have_ended else _READERS_LOOK_EVERY_SECONDS):
                    if have_ended:
                        break
                    continue
                some = os.read(stream.fileno(), 2**16)
                if not some:
                    break
                left -= have_ended and len(some)
                begun += some
                if b"\n" in some:
                    *lines, rest = bytes(begun).split(b"\n")
                    begun = bytearray(rest)
                    self._write(to, index, lines)
            if begun:
                self._write(to, index, [bytes(begun)])

    def _write(self, to, index: int, lines: Sequence[bytes]) -> None:
        prefix = f"[{index}] ".encode()
        for line in lines:
            self._look_at(index, line)
            if to is None or self.is_unread:  # closed before this program began, or since
                continue
            try:
                to.buffer.write(prefix + line + b"\n")
                to.flush()
            except OSError as error:  # as that of `... | head`, or of a full disk
                self._unread.set()  # the workers find out as they print
                os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
                if not isinstance(error, BrokenPipeError):
                    problem = f"towers-launch: error: cannot write to {to.name}: {error.strerror}"
                    with contextlib.suppress(OSError):
                        print(problem, file=sys.stderr, flush=True)

    def wait(self, has_room: Callable[[], bool]) -> list[int]:
        """Waits for all; the exit codes.

        A worker that does not end after another has failed, or after a signal, is asked to, and
        then killed. Where there is room for more workers, the run is stopped after a step, with a
        checkpoint. Output of a process that a worker has left behind is not waited for.
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
                    self._first_ended_at = self._first_ended_at or self._last_sign
                self._end_those_that_are_late()
                if not failed and self._made_a_step.is_set() and not self.made_room and has_room():
                    self.made_room = True
                    self.asked.add(0)
                    self._processes[0].send_signal(signal.SIGTERM)
                for worker in self._processes:
                    if worker.poll() is None:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            worker.wait(_LOOKS_EVERY_SECONDS)
                        break
            if self.first_failed_at is None:
                self.first_failed_at = time.monotonic()
            self._all_ended.set()
            for reader in self._readers:
                reader.join()
        finally:
            self._all_ended.set()
            self._kill()
        codes = [worker.returncode for worker in self._processes]
        if self.made_room:  # all stop after the same step
            self.asked |= {i for i, code in enumerate(codes) if slots.ended_as_asked([code])}
        return codes

    def _end_those_that_are_late(self) -> None:
        now = time.monotonic()
        failed_at, signal_at = self.first_failed_at, self._signals.first_at
        began = min((at for at in (failed_at, signal_at, self._first_ended_at) if at), default=now)
        has_to_end_since = min((at for at in (failed_at, signal_at) if at), default=now)
        patience = _CHIEF_KILLED_AFTER_SECONDS if failed_at is None else _KILLED_AFTER_SECONDS
        late = min(now - self._last_sign, now - has_to_end_since)
        # One that prints forever is ended, too.
        late = max(late, now - has_to_end_since - _CHIEF_KILLED_AFTER_SECONDS)
        for index, worker in enumerate(self._processes):
            is_late, is_stopped = late > patience, _is_stopped(worker.pid)
            # A chief that is let continue in time has something to save.
            is_at_once = index and failed_at is not None
            is_stopped = is_stopped and (is_at_once or now - began > _KILLED_AFTER_SECONDS)
            if worker.poll() is not None or not (is_late or is_stopped):
                continue
            limit = _KILLED_AFTER_SECONDS if index else _CHIEF_KILLED_AFTER_SECONDS
            if index not in self.asked:
                worker.send_signal(signal.SIGTERM)
            if is_stopped or late > patience + limit:
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
    """While entered, workers started with what it yields end when this process dies.

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
    command()
