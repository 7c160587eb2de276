"""Ends a process that cannot end itself, where another worker's connection has ended.

    python watcher.py PROCESS MESSAGE_PREFIX {"FILE DESCRIPTOR": "NAME OF THE WORKER", ...} SECONDS

While TensorFlow's servers start and find each other, Python is blocked in every thread, for up to
an hour where one of them is gone or hangs. `Channel.guarded` starts this program for that time,
with the connections to the other workers. It imports nothing but the standard library.

The process ends by a signal (exit code 138), even where the other's last word is that starting all
again will not help: the other's own exit code says that.
"""

import json
import os
import select
import signal
import socket
import sys
import time

_LOOKS_EVERY_SECONDS = 0.2
_KILLED_AFTER_SECONDS = 2.0
_LONGEST_LINE = 2000


def main(process: str, prefix: str, connections: str, seconds: str) -> None:
    """Waits for the end of a connection, or a last word on one; nobody says anything else now.

    Stops waiting after `seconds`: then one of them hangs, with its connection still open.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's and a launcher's go to it, too
    names = {int(descriptor): name for descriptor, name in json.loads(connections).items()}
    ready, until = [], time.monotonic() + float(seconds)
    while not ready and time.monotonic() < until:
        if os.getppid() != int(process):
            return  # closes this process's copies of the connections, which the others look at
        ready, _, _ = select.select(list(names), [], [], _LOOKS_EVERY_SECONDS)
    said = [f"{names[descriptor]} {last_word(descriptor)}" for descriptor in ready]
    late = f"TensorFlow's servers have not found each other within {float(seconds):g} s"
    print(f"{prefix}{'; '.join(said) or late}", file=sys.stderr, flush=True)
    # This alone ends the process, with what a shell calls exit code 138, unless a handler waits for
    # Python, which is blocked.
    os.kill(int(process), signal.SIGUSR1)
    time.sleep(_KILLED_AFTER_SECONDS)
    if os.getppid() == int(process):
        os.kill(int(process), signal.SIGKILL)


def last_word(descriptor: int) -> str:
    """What a worker has left on its connection; the message stays there."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        try:
            text = connection.recv(2**16, socket.MSG_PEEK)
            if not text:
                return "died without an error message"
            kind, body = json.loads(text[4:])
        except (OSError, ValueError, TypeError, RecursionError):
            return "is gone"
    is_reason = kind == "ended" and is_last_word(body)
    return f"has ended: {one_line(body[0])}" if is_reason else "is gone"


def is_last_word(body: object) -> bool:
    """Whether it is a reason for an end, and whether to try again."""
    is_pair = isinstance(body, list) and len(body) == 2
    return is_pair and isinstance(body[0], str) and isinstance(body[1], bool)


def one_line(text: str) -> str:
    """What another process has sent, for a message: on one line, and not too long."""
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


if __name__ == "__main__":
    main(*sys.argv[1:])
