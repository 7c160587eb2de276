"""What workers tell each other outside TensorFlow: who is there, what differs, and why one ends.

Every other worker has one TCP connection to the chief, on the chief's own `host:port`, from before
TensorFlow starts to the end of the run. Messages are JSON behind their length. A worker that is
killed leaves a connection that ends without a word, which is how the others know.

It is not encrypted, and whoever reaches the port can disturb the run, as with TensorFlow's own
servers: workers belong on a network of their own.
"""

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from towers import cluster, watcher

_GREETING = "towers"
_LARGEST_MESSAGE = 2**24  # bytes
_LENGTH = struct.Struct("!I")
_GREETING_SECONDS = 5.0
_ENDING_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_SAYS_WAITING_AFTER_SECONDS = 5.0
# A machine that goes without a word is noticed after 10 + 3 * 5 seconds.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # milliseconds, where it does not answer what was sent
}


class WorkerError(Exception):
    """Another worker is not there, is gone, has ended, or does not fit this one."""


class _Gone(Exception):
    """A connection has ended without a word."""


class _Peer:
    """One connection."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self.connection = connection

    def send(self, kind: str, body: object) -> None:
        text = json.dumps([kind, body]).encode()
        with _ended_is_gone():
            self.connection.sendall(_LENGTH.pack(len(text)) + text)

    def receive(self) -> tuple[str, object]:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _LARGEST_MESSAGE:
            raise _Gone
        try:
            kind, body = json.loads(self._read(length))
        except (ValueError, TypeError, RecursionError) as error:  # of no worker
            raise _Gone from error
        return kind, body

    def is_gone(self) -> bool:
        """Whether the other side has closed the connection; nothing is read."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def wait_for_end(self, until: float) -> None:
        """Returns when the other side has closed the connection, or at the time `until`."""
        with contextlib.suppress(_Gone):
            while True:
                self.connection.settimeout(max(0.01, until - time.monotonic()))
                self.receive()

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            with _ended_is_gone():
                part = self.connection.recv(min(size, 2**16))
            if not part:
                raise _Gone
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@contextlib.contextmanager
def _ended_is_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _Gone from error


class Channel:
    """The connections of one worker, made when it is made; close it by `end`."""

    def __init__(self, members: cluster.Cluster, wait_seconds: float):
        """Meets the other workers.

        Args:
          members: who they are.
          wait_seconds: how long to wait for the last of them.

        Raises:
          WorkerError: names who has not come, or why this process cannot be reached.
        """
        self.cluster = members
        self._peers: dict[int, _Peer] = {}
        until = time.monotonic() + wait_seconds
        if self.is_chief:
            self._listen(until, wait_seconds)
        else:
            self._peers[0] = self._connect(until, wait_seconds)

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0."""
        return self.cluster.index == 0

    def _listen(self, until: float, wait_seconds: float) -> None:
        count, waiting = len(self.cluster.addresses), _Waiting()
        with self._listener(count) as listener:
            while missing := self._missing():
                names = ", ".join(self.cluster.name(index) for index in missing)
                if time.monotonic() > until:
                    problem = f"{names} did not come within {wait_seconds:g} s"
                    self._tell_all("ended", problem)
                    raise WorkerError(problem)
                waiting.say(f"waiting for {names}")
                listener.settimeout(_RETRY_SECONDS)
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    self._welcome(connection)
        self._tell_all("welcome", None)

    def _listener(self, backlog: int) -> socket.socket:
        """A socket on this worker's own port."""
        host, port = cluster.host_and_port(self.cluster.addresses[self.cluster.index])
        # A machine's name may stand for an address that is not its own.
        own = host if host == "localhost" or host.startswith("127.") else ""
        try:
            return socket.create_server((own, port), backlog=backlog)
        except OSError as error:
            name = self.cluster.name(self.cluster.index)
            reason = os.strerror(error.errno)
            raise WorkerError(f"{name} cannot listen on its port: {reason}") from error

    def _missing(self) -> list[int]:
        """Those that have not come, or have gone again."""
        others = range(1, len(self.cluster.addresses))
        return [i for i in others if i not in self._peers or self._peers[i].is_gone()]

    def _welcome(self, connection: socket.socket) -> None:
        """Takes up a worker; anything else that has found the port is sent away."""
        connection.settimeout(_GREETING_SECONDS)
        peer = _Peer(connection)
        try:
            greeting, (index, addresses) = peer.receive()
            index = int(index)
            problem = self._problem_with(greeting, index, list(addresses))
            peer.send("greeted" if problem is None else "ended", problem)
        except (_Gone, ValueError, TypeError, OverflowError):
            problem = "it is no worker"
        if problem is not None:
            connection.close()
            return
        connection.settimeout(None)
        self._peers[index] = peer

    def _problem_with(self, greeting: str, index: int, addresses: list) -> str | None:
        own = list(self.cluster.addresses)
        if greeting != _GREETING:
            raise ValueError("this is no worker")
        if addresses != own:
            return f"--workers={','.join(map(str, addresses))}: it has --workers={','.join(own)}"
        if not 0 < index < len(own) or index in self._peers and not self._peers[index].is_gone():
            return f"--worker_index={index}: another process is that worker"
        return None

    def _connect(self, until: float, wait_seconds: float) -> _Peer:
        self._listener(1).close()  # TensorFlow will listen there
        chief, waiting, problem = self.cluster.name(0), _Waiting(), ""
        while time.monotonic() < until:
            try:
                return self._greet()
            except (OSError, UnicodeError) as error:  # not there yet, or no name of a machine
                problem = f": {getattr(error, 'strerror', None) or error}"
            except _Gone:  # it, or another program on its port, hung up or says something else
                problem = ": it does not answer as worker 0 does"
            waiting.say(f"waiting for {chief}{problem}")
            time.sleep(_RETRY_SECONDS)
        raise WorkerError(f"{chief} did not come within {wait_seconds:g} s{problem}")

    def _greet(self) -> _Peer:
        """Connects to the chief, and waits until it has all workers or says who is missing."""
        address = cluster.host_and_port(self.cluster.addresses[0])
        connection = socket.create_connection(address, timeout=_GREETING_SECONDS)
        try:
            peer = _Peer(connection)
            peer.send(_GREETING, [self.cluster.index, list(self.cluster.addresses)])
            for expected in ("greeted", "welcome"):
                kind, body = peer.receive()
                if kind == "ended":
                    raise WorkerError(self._has_ended(0, body))
                if kind != expected:
                    raise _Gone
                connection.settimeout(None)  # the chief has the clock from here on
        except BaseException:
            connection.close()
            raise
        return peer

    def exchange(self, message: object) -> list:
        """Gives every worker the messages of all, by their index; all call it together.

        Args:
          message: of this worker, anything that JSON can hold.

        Raises:
          WorkerError: another one is gone, or has ended and says why.
        """
        others = range(1, len(self.cluster.addresses))
        if not self.is_chief:
            self._send(0, "message", message)
            return self._receive([0], "messages")[0]
        messages = {0: message} | self._receive(others, "message")
        everything = [messages[index] for index in range(len(self.cluster.addresses))]
        for index in others:
            self._send(index, "messages", everything)
        return everything

    def from_chief(self, make: Callable[[], object]) -> object:
        """What the chief makes, on every worker; all call it together.

        Raises:
          WorkerError: the chief is gone, or has ended and says why.
        """
        if not self.is_chief:
            return self._receive([0], "from_chief")[0]
        made = make()
        for index in self._peers:
            self._send(index, "from_chief", made)
        return made

    def why(self, patience_seconds: float) -> str | None:
        """Which worker is gone or has ended, once something has gone wrong between them.

        Waits for the chief's word, or as the chief for a sign of those that are gone.

        Args:
          patience_seconds: how long at most.

        Returns:
          A sentence, or None if all connections are as they should be.
        """
        until = time.monotonic() + patience_seconds
        if not self.is_chief:
            with contextlib.suppress(_Gone):
                self._peers[0].send("noticed", None)  # so that this one is not thought to be gone
        try:
            self._receive(list(self._peers), "nothing is of this kind", until)
        except WorkerError as error:
            return str(error)
        except TimeoutError:
            pass
        return None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """While entered, the process is killed where another worker is gone or has ended.

        For calls in which Python stands still, so that nothing else could end them. Nobody may send
        messages in that time. A line on stderr says who it was.
        """
        program = os.path.basename(sys.argv[0])
        names = {peer.connection.fileno(): self.cluster.name(i) for i, peer in self._peers.items()}
        arguments = [str(os.getpid()), f"{program}: error: ", json.dumps(names)]
        with subprocess.Popen(
            [sys.executable, "-S", watcher.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=list(names),
        ) as process:
            try:
                yield
            finally:
                process.kill()

    def end(self, reason: str | None) -> None:
        """Ends the connections; without a reason the chief's end last.

        Args:
          reason: why this worker cannot go on; None if it has come to its end.
        """
        if reason is None and not self.is_chief:
            with contextlib.suppress(WorkerError, TimeoutError):
                self._receive([0], "done")
            return  # the connection ends with the process, which the chief waits for
        elif reason is None:
            self._tell_all("done", None)
            # TensorFlow's service for all workers is in this process: it ends last.
            until = time.monotonic() + _ENDING_SECONDS
            for peer in self._peers.values():
                peer.wait_for_end(until)
        else:
            self._tell_all("ended", reason)
        for peer in self._peers.values():
            peer.connection.close()

    def _tell_all(self, kind: str, body: object) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(_Gone):
                peer.send(kind, body)

    def _send(self, index: int, kind: str, body: object) -> None:
        try:
            self._peers[index].send(kind, body)
        except _Gone:
            self._receive([index], kind)  # its last word, or that it is gone
            raise WorkerError(self._is_gone([index])) from None

    def _receive(
        self, indices: Iterable[int], kind: str, until: float = float("inf")
    ) -> dict[int, object]:
        """A message of that kind from each; looks at all connections at once.

        Raises:
          WorkerError: one is gone, or has ended and says why.
          TimeoutError: not all have come by the time `until`.
        """
        pending, received = set(indices), {}
        with selectors.DefaultSelector() as selector:
            for index in pending:
                selector.register(self._peers[index].connection, selectors.EVENT_READ, index)
            while pending:
                left = until - time.monotonic()
                ready = selector.select(None if left == float("inf") else max(0.0, left))
                if not ready:
                    raise TimeoutError
                gone = []
                for key, _ in ready:
                    try:
                        got, body = self._peers[key.data].receive()
                    except _Gone:
                        gone.append(key.data)
                        continue
                    if got == "ended":
                        raise WorkerError(self._has_ended(key.data, body))
                    if got == kind:
                        received[key.data] = body
                        pending.remove(key.data)
                        selector.unregister(key.fileobj)
                if gone:
                    raise WorkerError(self._is_gone(gone))
        return received

    def _is_gone(self, indices: Sequence[int]) -> str:
        names = " and ".join(self.cluster.name(index) for index in indices)
        return f"{names} {'is' if len(indices) == 1 else 'are'} gone without a word"

    def _has_ended(self, index: int, reason: object) -> str:
        return f"{self.cluster.name(index)} has ended: {reason}"


class _Waiting:
    """Says what is waited for, once that takes long and whenever it changes."""

    def __init__(self):
        self._since, self._said = time.monotonic(), ""

    def say(self, text: str) -> None:
        if text != self._said and time.monotonic() - self._since > _SAYS_WAITING_AFTER_SECONDS:
            print(text, flush=True)
            self._said = text
