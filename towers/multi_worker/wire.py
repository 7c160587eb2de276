"""Messages between two workers: JSON after its length, over one TCP connection."""

import contextlib
import json
import selectors
import socket
import struct
import time
from collections.abc import Iterator

KINDS = {
    "towers",
    "challenge",
    "proof",
    "greeted",
    "welcome",
    "message",
    "messages",
    "noticed",
    "done",
    "ended",
}
LARGEST_MESSAGE = 2**24  # bytes
_DEEPEST_MESSAGE = 50  # lists and objects within each other
_LENGTH = struct.Struct("!I")
_PLAIN = str | int | float | None  # what JSON has beside lists and objects
# A machine that disappears is noticed after 10 + 3 * 5 seconds.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # milliseconds, where it does not answer what was sent
}


class Gone(Exception):
    """A connection has ended without a last message."""


class NoWorker(Exception):
    """Something has come that no worker sends."""


class Peer:
    """One connection.

    Attributes:
      connection: the socket, which has no timeout.
      largest_message: in bytes, of those that are received.
    """

    def __init__(self, connection: socket.socket, largest_message: int = LARGEST_MESSAGE):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.settimeout(None)
        self.connection = connection
        self.largest_message = largest_message
        self._begun = bytearray()  # the part of a message that has come

    def send(self, kind: str, body: object) -> None:
        text = json.dumps([kind, body]).encode()
        with _ended_is_gone():
            self.connection.sendall(_LENGTH.pack(len(text)) + text)

    def take(self) -> tuple[str, object] | None:
        """The next message, or None where not all of it has come yet; does not wait.

        What follows it stays in the connection, where `talks` and the watcher look.
        """
        while missing := self._missing():
            with _ended_is_gone():
                try:
                    part = self.connection.recv(min(missing, 2**16), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return None
            if not part:
                raise Gone
            self._begun += part
        text, self._begun = bytes(self._begun[_LENGTH.size :]), bytearray()
        return _message(text)

    def receive(self, until: float) -> tuple[str, object]:
        """Waits for the next message; TimeoutError if it has not come by the time `until`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            while (message := self.take()) is None:
                left = until - time.monotonic()
                if left < 0 or not selector.select(left):
                    raise TimeoutError
        return message

    def talks(self) -> bool:
        """Whether the other side has said something or closed the connection; nothing is read."""
        try:
            self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def wait_for_end(self, until: float) -> None:
        """Returns when the other side has closed the connection, or at the time `until`."""
        with contextlib.suppress(Gone, NoWorker, TimeoutError):
            while time.monotonic() < until:
                self.receive(until)

    def _missing(self) -> int:
        """How many bytes are still to come: of the length, or of the message after it."""
        if len(self._begun) < _LENGTH.size:
            return _LENGTH.size - len(self._begun)
        (length,) = _LENGTH.unpack_from(self._begun)
        if length > self.largest_message:
            raise NoWorker
        return _LENGTH.size + length - len(self._begun)


def _message(text: bytes) -> tuple[str, object]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoWorker from error
    if not (isinstance(message, list) and len(message) == 2 and not _is_deep(message)):
        raise NoWorker
    kind, body = message
    if not (isinstance(kind, str) and kind in KINDS):
        raise NoWorker
    return kind, body


def _is_deep(value: object) -> bool:
    """Whether lists and objects are nested so deeply that showing or sending them might fail."""
    level = [value]
    for _ in range(_DEEPEST_MESSAGE):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for many in inner if not isinstance(many, _PLAIN) for one in many]
        if not level:
            return False
    return True


@contextlib.contextmanager
def _ended_is_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Gone from error
