"""What workers tell each other outside TensorFlow: who is there, what differs, and why one ends.

Every other worker has one TCP connection to the chief, on the chief's own `host:port`, from before
TensorFlow starts to the end of the run. Messages are JSON behind their length. A worker that is
killed leaves a connection that ends without a word, which is how the others know. Whatever else
connects to the chief is sent away, and what no worker sends ends the run with one sentence.

It is not encrypted, and whoever reaches the port can disturb the run, as with TensorFlow's own
servers: workers belong on a network of their own.
"""

import contextlib
import errno
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from towers.multi_worker import cluster, watcher
from towers.support import worker_errors

_GREETING = "towers"
_KINDS = {
    _GREETING,
    "greeted",
    "welcome",
    "message",
    "messages",
    "noticed",
    "done",
    "ended",
}
_LARGEST_GREETING, _LARGEST_MESSAGE = 2**18, 2**24  # bytes; a greeting has all addresses
_DEEPEST_MESSAGE = 50  # lists and objects within each other
_LENGTH = struct.Struct("!I")
_GREETING_SECONDS = 5.0
_MOST_STRANGERS = 32  # that are connected at a time and have not said who they are
_LONGEST_WAIT_SECONDS = 1e6  # as --worker_wait_seconds has it
_ENDING_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_SAYS_WAITING_AFTER_SECONDS = 5.0
_PLAIN = str | int | float | None  # what JSON has beside lists and objects
# A machine that goes without a word is noticed after 10 + 3 * 5 seconds.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # milliseconds, where it does not answer what was sent
}


class _Gone(Exception):
    """A connection has ended without a word."""


class _NoWorker(Exception):
    """Something has come that no worker sends."""


class _Peer:
    """One connection.

    Attributes:
      connection: the socket, which has no timeout.
      largest_message: in bytes, of those that are received.
    """

    def __init__(self, connection: socket.socket, largest_message: int = _LARGEST_MESSAGE):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if hasattr(socket, option):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.settimeout(None)
        self.connection = connection
        self.largest_message = largest_message
        self._begun = bytearray()  # the message of which some has come

    def send(self, kind: str, body: object) -> None:
        text = json.dumps([kind, body]).encode()
        with _ended_is_gone():
            self.connection.sendall(_LENGTH.pack(len(text)) + text)

    def take(self) -> tuple[str, object] | None:
        """The next message, or None where not all of it has come yet; does not wait.

        What is behind it stays in the connection, where `talks` and the watcher look.
        """
        while missing := self._missing():
            with _ended_is_gone():
                try:
                    part = self.connection.recv(min(missing, 2**16), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return None
            if not part:
                raise _Gone
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
        with contextlib.suppress(_Gone, _NoWorker, TimeoutError):
            while time.monotonic() < until:
                self.receive(until)

    def _missing(self) -> int:
        """How many bytes are to come of the length, or of what it is the length of."""
        if len(self._begun) < _LENGTH.size:
            return _LENGTH.size - len(self._begun)
        (length,) = _LENGTH.unpack_from(self._begun)
        if length > self.largest_message:
            raise _NoWorker
        return _LENGTH.size + length - len(self._begun)


def _message(text: bytes) -> tuple[str, object]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NoWorker from error
    if not (isinstance(message, list) and len(message) == 2 and not _is_deep(message)):
        raise _NoWorker
    kind, body = message
    if not (isinstance(kind, str) and kind in _KINDS):
        raise _NoWorker
    return kind, body


def _is_deep(value: object) -> bool:
    """Whether lists and objects are nested so deep that to show or send them might fail."""
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
        self._noticed: dict[int, object] = {}  # what others have said where one was gone
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
        waiting = _Waiting()
        backlog = max(len(self.cluster.addresses), _MOST_STRANGERS)
        with self._listener(backlog) as listener, _Strangers(listener) as strangers:
            while missing := self._missing():
                names = ", ".join(self.cluster.name(index) for index in missing)
                if time.monotonic() > until:
                    problem = f"{names} did not come within {wait_seconds:g} s"
                    self._tell_all("ended", [problem, True])
                    raise worker_errors.GoneError(problem)
                waiting.say(f"waiting for {names}")
                for peer, kind, body in strangers.introduced(until):
                    self._welcome(peer, kind, body, until)
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
            raise worker_errors.WorkerError(
                f"{name} cannot listen on its port: {reason}"
            ) from error

    def _missing(self) -> list[int]:
        """Those that have not come, or have gone again; workers are silent until all are there."""
        others = range(1, len(self.cluster.addresses))
        return [i for i in others if i not in self._peers or self._peers[i].talks()]

    def _welcome(self, peer: _Peer, kind: str, body: object, until: float) -> None:
        """Takes up a worker; anything else that has found the port is sent away."""
        if not _is_greeting(kind, body):
            peer.connection.close()
            return
        index, addresses = body
        problem = self._problem_with(index, addresses)
        try:
            if problem is None:
                left = max(0.0, until - time.monotonic())
                peer.send("greeted", min(left, _LONGEST_WAIT_SECONDS))
            else:
                peer.send("ended", [problem, False])
        except _Gone:
            problem = "it is gone again"
        if problem is not None:
            peer.connection.close()
            return
        if index in self._peers:
            self._peers[index].connection.close()
        peer.largest_message = _LARGEST_MESSAGE
        self._peers[index] = peer

    def _problem_with(self, index: int, addresses: list[str]) -> str | None:
        own = list(self.cluster.addresses)
        if addresses != own:
            return f"--workers={_shown(addresses)}: it has --workers={_shown(own)}"
        if not 0 < index < len(own) or index in self._peers and not self._peers[index].talks():
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
            except (_Gone, _NoWorker):  # it hung up, or another program is on its port
                problem = ": it does not answer as worker 0 does"
            waiting.say(f"waiting for {chief}{problem}")
            time.sleep(_RETRY_SECONDS)
        raise worker_errors.GoneError(f"{chief} did not come within {wait_seconds:g} s{problem}")

    def _greet(self) -> _Peer:
        """Connects to the chief, and waits until it has all workers or says who is missing."""
        address = cluster.host_and_port(self.cluster.addresses[0])
        connection = socket.create_connection(address, timeout=_GREETING_SECONDS)
        try:
            peer = _Peer(connection)
            peer.send(_GREETING, [self.cluster.index, list(self.cluster.addresses)])
            left = self._answer(peer, "greeted", 0.0)
            if not (_is_number(left) and 0 <= left <= _LONGEST_WAIT_SECONDS):
                raise _NoWorker
            self._answer(peer, "welcome", left)  # the chief has the clock
        except BaseException:
            connection.close()
            raise
        return peer

    def _answer(self, peer: _Peer, kind: str, seconds: float) -> object:
        """What the chief says, a little later than within so many seconds at most."""
        try:
            got, body = peer.receive(time.monotonic() + seconds + _GREETING_SECONDS)
        except TimeoutError:
            raise _Gone from None
        if got == "ended":
            raise self._has_ended(0, body)
        if got != kind:
            raise _NoWorker
        return body

    def exchange(self, what: str, message: object) -> list:
        """Gives every worker the messages of all, by their index; all call it together.

        Args:
          what: the messages are, the same on all workers.
          message: of this worker, anything that JSON can hold, and not nested too deep.

        Raises:
          WorkerError: another one is gone, or has ended and says why; or it does something else.
        """
        others = range(1, len(self.cluster.addresses))
        if not self.is_chief:
            self._send(0, "message", [what, message])
            messages = self._received([0], "messages", what)[0]
            is_of_all = isinstance(messages, list) and len(messages) == len(self.cluster.addresses)
            worker_errors.check_fits(is_of_all, self.cluster.name(0))
            return messages
        messages = {0: message} | self._received(others, "message", what)
        everything = [messages[index] for index in range(len(self.cluster.addresses))]
        for index in others:
            self._send(index, "messages", [what, everything])
        return everything

    def from_chief(self, what: str, make: Callable[[], object]) -> object:
        """What the chief makes, on every worker; all call it together.

        Raises:
          WorkerError: the chief is gone, or has ended and says why; or it does something else.
        """
        return self.exchange(what, make() if self.is_chief else None)[0]

    def _received(self, indices: Iterable[int], kind: str, what: str) -> dict[int, object]:
        """The messages of that kind about `what`, from each."""
        bodies = {}
        for index, body in sorted(self._receive(indices, kind).items()):
            name = self.cluster.name(index)
            fits = isinstance(body, list) and len(body) == 2 and isinstance(body[0], str)
            worker_errors.check_fits(fits, name)
            if body[0] != what:
                raise self._at_odds(index, body[0], what)
            bodies[index] = body[1]
        return bodies

    def _at_odds(self, index: int, theirs: str, ours: str) -> worker_errors.WorkerError:
        return worker_errors.WorkerError(
            f"{self.cluster.name(self.cluster.index)} has come to {ours!r}, and "
            f"{self.cluster.name(index)} to {watcher.one_line(theirs)!r}: every worker has to make "
            "the same calls in the same order"
        )

    def why(
        self, patience_seconds: float, of_itself: object = None
    ) -> worker_errors.WorkerError | None:
        """Which worker is gone or has ended, once something has gone wrong between them.

        Waits for the chief's word, or as the chief for a sign of those that are gone.

        Args:
          patience_seconds: how long at most.
          of_itself: what this worker tells the chief, for its `survivors`.

        Returns:
          What to raise, or None if all connections are as they should be.
        """
        until = time.monotonic() + patience_seconds
        if not self.is_chief:
            with contextlib.suppress(_Gone):
                self._peers[0].send("noticed", of_itself)
        try:
            self._receive(list(self._peers), "nothing is of this kind", until)
        except worker_errors.WorkerError as error:
            return error
        except TimeoutError:
            pass
        return None

    def survivors(self, reason: str, seconds: float) -> dict[int, object]:
        """What those that are left have told the chief of themselves, once another one is gone.

        Args:
          reason: why the chief ends, too; they are told, and need not wait any longer.
          seconds: how long to wait for those that have not noticed yet.
        """
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for index, peer in self._peers.items():
                if index not in self._noticed:
                    selector.register(peer.connection, selectors.EVENT_READ, index)
            while selector.get_map() and (
                ready := selector.select(max(0.0, until - time.monotonic()))
            ):
                for key, _ in ready:
                    try:
                        message = self._peers[key.data].take()
                    except (_Gone, _NoWorker):
                        selector.unregister(key.fileobj)
                        continue
                    if message is not None and message[0] == "noticed":
                        self._noticed[key.data] = message[1]
                        selector.unregister(key.fileobj)
        self._tell_all("ended", [reason, True])
        return self._noticed

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

    def end(self, reason: str | None, try_again: bool = False) -> None:
        """Ends the connections; without a reason the chief's end last.

        Args:
          reason: why this worker cannot go on; None if it has come to its end.
          try_again: whether it may help to start all workers again.
        """
        if reason is None and not self.is_chief:
            with contextlib.suppress(worker_errors.WorkerError, TimeoutError):
                self._receive([0], "done")
            return  # the connection ends with the process, which the chief waits for
        elif reason is None:
            self._tell_all("done", None)
            # TensorFlow's service for all workers is in this process: it ends last.
            until = time.monotonic() + _ENDING_SECONDS
            for peer in self._peers.values():
                peer.wait_for_end(until)
        else:
            self._tell_all("ended", [reason, try_again])
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
            with contextlib.suppress(TimeoutError):
                # Its last word, or that it is gone.
                self._receive([index], kind, time.monotonic() + _ENDING_SECONDS)
            raise self._is_gone([index]) from None

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
                if not ready or left < 0:
                    raise TimeoutError
                gone = []
                for key, _ in ready:
                    try:
                        message = self._peers[key.data].take()
                    except _Gone:
                        gone.append(key.data)
                        continue
                    except _NoWorker as error:
                        raise worker_errors.says_no_worker(self.cluster.name(key.data)) from error
                    if message is None:
                        continue
                    got, body = message
                    if got == "ended":
                        raise self._has_ended(key.data, body)
                    if got == "done" != kind:
                        name = self.cluster.name(key.data)
                        raise worker_errors.WorkerError(f"{name} has come to its end")
                    if got == "noticed":
                        self._noticed[key.data] = body
                    if got == kind:
                        received[key.data] = body
                        pending.remove(key.data)
                        selector.unregister(key.fileobj)
                if gone:
                    raise self._is_gone(gone)
        return received

    def _is_gone(self, indices: Sequence[int]) -> worker_errors.GoneError:
        names = " and ".join(self.cluster.name(index) for index in indices)
        are = "is" if len(indices) == 1 else "are"
        return worker_errors.GoneError(f"{names} {are} gone without a word")

    def _has_ended(self, index: int, body: object) -> worker_errors.WorkerError:
        name = self.cluster.name(index)
        worker_errors.check_fits(watcher.is_last_word(body), name)
        reason, try_again = body
        error = worker_errors.GoneError if try_again else worker_errors.WorkerError
        return error(f"{name} has ended: {watcher.one_line(reason)}")


class _Strangers:
    """What has connected to the chief's port and not said who it is yet; nobody is waited for."""

    def __init__(self, listener: socket.socket):
        """
        Args:
          listener: the chief's.
        """
        self._listener = listener
        self._late: dict[_Peer, float] = {}  # each with its time, in the order they came in
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "_Strangers":
        return self

    def __exit__(self, *_) -> None:
        for peer in list(self._late):
            self._send_away(peer)
        self._selector.close()

    def introduced(self, until: float) -> Iterator[tuple[_Peer, str, object]]:
        """Those that have sent a message, with it; waits a little for one, and not after `until`.

        They are the caller's from then on. Whoever is slow, or says what no worker says, is sent
        away; so is the first of too many.
        """
        left = max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(min(_RETRY_SECONDS, left)):
            peer = key.data or self._accepted()
            if peer not in self._late:  # nobody came, or it was sent away a moment ago
                continue
            try:
                message = peer.take()
            except (_Gone, _NoWorker):
                self._send_away(peer)
                continue
            if message is not None:
                self._let_go(peer)
                yield peer, *message
        now = time.monotonic()
        late = [peer for peer, at in self._late.items() if at < now]
        for peer in late or list(self._late)[:-_MOST_STRANGERS]:
            self._send_away(peer)

    def _accepted(self) -> _Peer | None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it is gone again, in one of many ways
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._send_away_oldest()
            return None
        try:
            peer = _Peer(connection, _LARGEST_GREETING)
        except OSError:
            connection.close()
            return None
        self._late[peer] = time.monotonic() + _GREETING_SECONDS
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _send_away_oldest(self) -> None:
        for peer in list(self._late)[:1]:
            self._send_away(peer)

    def _let_go(self, peer: _Peer) -> None:
        del self._late[peer]
        self._selector.unregister(peer.connection)

    def _send_away(self, peer: _Peer) -> None:
        self._let_go(peer)
        peer.connection.close()


def _is_greeting(kind: str, body: object) -> bool:
    return (
        kind == _GREETING
        and isinstance(body, list)
        and len(body) == 2
        and type(body[0]) is int
        and isinstance(body[1], list)
        and all(isinstance(address, str) for address in body[1])
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(addresses: Sequence[str]) -> str:
    return watcher.one_line(",".join(addresses))


class _Waiting:
    """Says what is waited for, once that takes long and whenever it changes."""

    def __init__(self):
        self._since, self._said = time.monotonic(), ""

    def say(self, text: str) -> None:
        if text != self._said and time.monotonic() - self._since > _SAYS_WAITING_AFTER_SECONDS:
            print(text, flush=True)
            self._said = text
