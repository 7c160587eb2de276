"""Who may join a run: whoever proves that it has the run's secret, which is never sent.

A worker greets the chief with a random number (a nonce), and the chief answers with one of its own.
Each then sends a proof, HMAC-SHA256 (RFC 2104) of both numbers and the greeting under the secret,
which only a holder of the same secret can make. Replaying it on a later connection does not help:
the numbers differ. Later messages are neither signed nor encrypted. So this keeps out strangers and
workers of other runs, but not somebody between the machines, who can relay the whole handshake and
then speak for either side. Whoever greets gets a proof from the chief, and can try at leisure which
secret made it: so it must be a random one.

`multiprocessing.connection` has such a handshake, too. It waits for each stranger in turn, and uses
HMAC-MD5 before Python 3.12.
"""

import collections
import dataclasses
import errno
import hmac
import json
import os
import secrets
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from towers.multi_worker import wire

GREETING_SECONDS = 5.0
_LARGEST_GREETING = 2**18  # bytes; it has all addresses
MOST_STRANGERS = 32  # connected at a time that have not shown who they are
_MOST_NAMED = 20  # lines about who was refused
_LOOKS_EVERY_SECONDS = 0.2
_SHORTEST_SECRET = 16  # characters
_VARIABLE = "TOWERS_SECRET"
_FILE_VARIABLE = "TOWERS_SECRET_FILE"
VARIABLES = (_VARIABLE, _FILE_VARIABLE)  # of the environment, which no other program needs


class AnotherSecret(Exception):
    """What is on the other side does not have this process's secret."""


def secret_of(environment: Mapping[str, str] = os.environ) -> bytes:
    """The run's secret: TOWERS_SECRET, or the contents of the file that TOWERS_SECRET_FILE names.

    Returns:
      The secret, without white space around it; empty where neither is set: then anyone may join.

    Raises:
      ValueError: names the variable, and says what is wrong.
    """
    text, path = environment.get(_VARIABLE, ""), environment.get(_FILE_VARIABLE, "")
    if text and path:
        raise ValueError(f"{_VARIABLE} and {_FILE_VARIABLE}={path} are both set; set one")
    name = _VARIABLE
    if path:
        name = f"{_FILE_VARIABLE}={path}"
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    secret = text.strip().encode("utf-8", "surrogateescape")
    if (text or path) and len(secret) < _SHORTEST_SECRET:
        raise ValueError(f"{name}: a secret must have at least {_SHORTEST_SECRET} characters")
    return secret


def greeting(index: int, addresses: Sequence[str]) -> list:
    """What a worker says first."""
    return [index, list(addresses), secrets.token_hex(32)]


def challenge(secret: bytes, said: list) -> list:
    """The chief's answer to a greeting: its own random number and its proof."""
    number = secrets.token_hex(32)
    return [number, _proof(secret, "chief", number, said)]


def answer(secret: bytes, asked: object, said: list) -> str:
    """A worker's proof, for the chief's challenge.

    Raises:
      NoWorker: it is not a challenge.
    """
    if not (isinstance(asked, list) and [type(text) for text in asked] == [str] * 2):
        raise wire.NoWorker
    return _proof(secret, "worker", asked[0], said)


def check_chief(secret: bytes, asked: list, said: list) -> None:
    """Raises AnotherSecret if the chief's proof is not that of this worker's secret."""
    _check(asked[1], _proof(secret, "chief", asked[0], said))


def _proof(secret: bytes, side: str, number: str, said: list) -> str:
    text = json.dumps([side, number, said])
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _check(given: str, expected: str) -> None:
    if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode()):
        raise AnotherSecret


@dataclasses.dataclass
class _Stranger:
    """One that has not shown who it is.

    Attributes:
      host: where it comes from.
      until: when it is refused, on the clock of `time.monotonic`.
      said: its greeting, if that has come.
      number: the chief's random number, for its proof.
    """

    host: str
    until: float
    said: list | None = None
    number: str = ""


class Strangers:
    """Whoever has connected to the chief's port and not yet shown who they are; waits for none."""

    def __init__(self, listener: socket.socket, secret: bytes, most: int = MOST_STRANGERS):
        """
        Args:
          listener: the chief's.
          secret: the run's.
          most: how many are kept at a time.
        """
        self._listener, self._secret, self._most = listener, secret, most
        self._late: dict[wire.Peer, _Stranger] = {}  # in the order they came in
        self._named: set[str] = set()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "Strangers":
        return self

    def __exit__(self, *_) -> None:
        for peer in list(self._late):
            self._send_away(peer)
        self._selector.close()

    def introduced(self, until: float) -> Iterator[tuple[wire.Peer, str, int, list[str]]]:
        """Those that have the secret, with their host and who they say they are: index, addresses.

        They are the caller's from then on. Waits a little for one, and not after `until`. Whoever
        is slow, has another secret, or says what no worker says, is refused and named; so is the
        first of too many.
        """
        left = max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(min(_LOOKS_EVERY_SECONDS, left)):
            peer = key.data or self._accepted()
            if peer not in self._late:  # nobody came, or it was refused a moment ago
                continue
            stranger = self._late[peer]
            try:
                message = peer.take()
                has_shown = message is not None and self._hear(peer, stranger, *message)
            except wire.Gone:
                self._send_away(peer)
            except wire.NoWorker:
                self._send_away(peer, "it does not talk like a worker")
            except AnotherSecret:
                self._send_away(
                    peer, f"it says it is worker {stranger.said[0]}, with a different secret"
                )
            else:
                if has_shown:
                    self._let_go(peer)
                    yield peer, stranger.host, *stranger.said[:2]
        now = time.monotonic()
        for peer in [one for one, stranger in self._late.items() if stranger.until < now]:
            self._send_away(peer, f"it did not say who it is within {GREETING_SECONDS:g} s")
        while len(self._late) > self._most:
            self._send_away(self._least(), f"more than {self._most} did not say who they are")

    def name(self, host: str, reason: str) -> None:
        """Says once that a connection was refused, and why."""
        line = f"refused {host}: {reason}"
        if line not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(line)
            print(line, flush=True)

    def _hear(self, peer: wire.Peer, stranger: _Stranger, kind: str, body: object) -> bool:
        """Answers a greeting; whether this was the proof that it has the secret."""
        if stranger.said is None:
            if not _is_greeting(kind, body):
                raise wire.NoWorker
            asked = challenge(self._secret, body)
            stranger.said, stranger.number = body, asked[0]
            peer.send("challenge", asked)
            return False
        if kind != "proof" or not isinstance(body, str):
            raise wire.NoWorker
        _check(body, _proof(self._secret, "worker", stranger.number, stranger.said))
        return True

    def _accepted(self) -> wire.Peer | None:
        try:
            connection, (host, _) = self._listener.accept()
        except OSError as error:  # it is gone again, in one of many ways
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return None
        try:
            peer = wire.Peer(connection, _LARGEST_GREETING)
        except OSError:
            connection.close()
            return None
        self._late[peer] = _Stranger(host, time.monotonic() + GREETING_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _make_room(self) -> None:
        if self._late:
            self._send_away(self._least(), "this process cannot open more connections")
        else:
            time.sleep(_LOOKS_EVERY_SECONDS)  # others have to close theirs

    def _least(self) -> wire.Peer:
        """Who is refused first: of the host that has most, one that has not even greeted.

        The oldest of these. A worker has greeted before its host can have many others.
        """
        of_host = collections.Counter(stranger.host for stranger in self._late.values())
        return min(
            self._late,
            key=lambda peer: (
                -of_host[self._late[peer].host],
                self._late[peer].said is not None,
            ),
        )

    def _let_go(self, peer: wire.Peer) -> None:
        del self._late[peer]
        self._selector.unregister(peer.connection)

    def _send_away(self, peer: wire.Peer, reason: str | None = None) -> None:
        if reason is not None:
            self.name(self._late[peer].host, reason)
        self._let_go(peer)
        peer.connection.close()


def _is_greeting(kind: str, body: object) -> bool:
    return (
        kind == "towers"
        and isinstance(body, list)
        and len(body) == 3
        and type(body[0]) is int
        and abs(body[0]) < 2**31
        and isinstance(body[1], list)
        and all(isinstance(address, str) for address in body[1])
        and isinstance(body[2], str)
    )
