"""What workers tell each other outside TensorFlow: who is there, what differs, and why one ends.

Every other worker has one TCP connection to the chief, on the chief's own `host:port`, from before
TensorFlow starts to the end of the run. A worker that is killed leaves a connection that ends
without a last message, which is how the others know. One that hangs leaves it open: so nothing here
waits without a deadline, and once TensorFlow has started, its own calls carry the messages, beside
a heartbeat (`collectives`). Whatever else connects to the chief is refused (`door`), and a message
that no worker sends ends the run with a one-line error.
"""

import contextlib
import errno
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from towers import worker_errors
from towers.multi_worker import cluster, door, watcher, wire

_LONGEST_WAIT_SECONDS = 1e6  # which `worker_wait_seconds` allows too
_ENDING_SECONDS = 5.0
_DONE_SECONDS = 30.0  # until the chief says that it has finished, as all have
_RETRY_SECONDS = 0.2
_SAYS_WAITING_AFTER_SECONDS = 5.0


class Channel:
    """The connections of one worker, opened when it is made; `end` closes them."""

    def __init__(self, members: cluster.Cluster, wait_seconds: float):
        """Meets the other workers.

        Args:
          members: who they are.
          wait_seconds: how long to wait for the last of them, and later for a message.

        Raises:
          WorkerError: names who has not connected, or says why this process cannot be reached.
        """
        self.cluster = members
        self._wait_seconds = wait_seconds
        self._peers: dict[int, wire.Peer] = {}
        self._noticed: dict[int, object] = {}  # what others have said when one was gone
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
        most = len(self.cluster.addresses) + door.MOST_STRANGERS
        with (
            self._listener(most) as listener,
            door.Strangers(listener, self.cluster.secret, most) as strangers,
        ):
            while missing := self._missing():
                names = ", ".join(self.cluster.name(index) for index in missing)
                if time.monotonic() > until:
                    problem = f"{names} did not connect within {wait_seconds:g} s"
                    self._tell_all("ended", [problem, True])
                    raise worker_errors.GoneError(problem)
                waiting.say(f"waiting for {names}")
                for peer, host, index, addresses in strangers.introduced(until):
                    if problem := self._welcome(peer, index, addresses, until):
                        strangers.name(host, problem)
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
            is_taken = error.errno == errno.EADDRINUSE  # as by a worker that has not ended yet
            kind = worker_errors.GoneError if is_taken else worker_errors.WorkerError
            raise kind(f"{name} cannot listen on its port: {reason}") from error

    def _missing(self) -> list[int]:
        """Those not connected, or gone again; workers are silent until all are connected."""
        others = range(1, len(self.cluster.addresses))
        return [i for i in others if i not in self._peers or self._peers[i].talks()]

    def _welcome(
        self, peer: wire.Peer, index: int, addresses: list[str], until: float
    ) -> str | None:
        """Accepts a worker, or returns why not."""
        problem = self._problem_with(index, addresses)
        try:
            if problem is None:
                left = max(0.0, until - time.monotonic())
                peer.send("greeted", min(left, _LONGEST_WAIT_SECONDS))
            else:
                peer.send("ended", [problem, False])
        except wire.Gone:  # it has gone again
            peer.connection.close()
            return None
        if problem is not None:
            peer.connection.close()
            return problem
        if index in self._peers:
            self._peers[index].connection.close()
        peer.largest_message = wire.LARGEST_MESSAGE
        self._peers[index] = peer
        return None

    def _problem_with(self, index: int, addresses: list[str]) -> str | None:
        own = list(self.cluster.addresses)
        if addresses != own:
            return f"workers={_shown(addresses)}: worker 0 has workers={_shown(own)}"
        if not 0 < index < len(own) or index in self._peers and not self._peers[index].talks():
            return f"worker_index={index}: another process is that worker; give each its own"
        return None

    def _connect(self, until: float, wait_seconds: float) -> wire.Peer:
        self._listener(1).close()  # TensorFlow will listen there
        chief, waiting, problem = self.cluster.name(0), _Waiting(), ""
        kind = worker_errors.GoneError
        while time.monotonic() < until:
            kind = worker_errors.GoneError
            try:
                return self._greet()
            except (OSError, UnicodeError) as error:  # not there yet, or not a host name
                problem = f": {getattr(error, 'strerror', None) or error}"
            except (wire.Gone, wire.NoWorker):  # it hung up, or another program is on its port
                problem = ": it does not answer like a worker"
            except door.AnotherSecret:
                problem, kind = ": it has a different secret", worker_errors.WorkerError
            waiting.say(f"waiting for {chief}{problem}")
            time.sleep(_RETRY_SECONDS)
        raise kind(f"{chief} could not be reached within {wait_seconds:g} s{problem}")

    def _greet(self) -> wire.Peer:
        """Connects to the chief, and waits until it has all workers or says who is missing."""
        address = cluster.host_and_port(self.cluster.addresses[0])
        connection = socket.create_connection(address, timeout=door.GREETING_SECONDS)
        try:
            peer = wire.Peer(connection)
            greeting = door.greeting(self.cluster.index, self.cluster.addresses)
            peer.send("towers", greeting)
            asked = self._answer(peer, "challenge", 0.0, is_known=False)
            proof = door.answer(self.cluster.secret, asked, greeting)
            try:
                door.check_chief(self.cluster.secret, asked, greeting)
            except door.AnotherSecret:
                peer.send("proof", "")  # so that the chief can name this worker
                raise
            peer.send("proof", proof)
            left = self._answer(peer, "greeted", 0.0)
            if not (_is_number(left) and 0 <= left <= _LONGEST_WAIT_SECONDS):
                raise wire.NoWorker
            self._answer(peer, "welcome", left)  # the chief has the clock
        except BaseException:
            connection.close()
            raise
        return peer

    def _answer(self, peer: wire.Peer, kind: str, seconds: float, is_known: bool = True) -> object:
        """What the chief says.

        Args:
          peer: the chief, or what passes for it.
          kind: of the message that is awaited.
          seconds: to wait, and a little longer.
          is_known: whether it has shown that it is the chief; only then is it believed.
        """
        try:
            got, body = peer.receive(time.monotonic() + seconds + door.GREETING_SECONDS)
        except TimeoutError:
            raise wire.Gone from None
        if got == "ended" and is_known:
            raise self._has_ended(0, body)
        if got != kind:
            raise wire.NoWorker
        return body

    def exchange(self, what: str, message: object) -> list:
        """Gives every worker the messages of all, by their index; all call it together.

        Args:
          what: the messages are about, the same on all workers.
          message: of this worker, anything that JSON can hold, and not nested too deeply.

        Raises:
          WorkerError: another one is gone, or has ended and says why; or it does something else,
            or says nothing for `wait_seconds`.
        """
        others = range(1, len(self.cluster.addresses))
        if not self.is_chief:
            self._send(0, "message", [what, message])
            # The chief waits as long, and may have begun a little later.
            messages = self._received([0], "messages", what, _ENDING_SECONDS)[0]
            is_of_all = isinstance(messages, list) and len(messages) == len(self.cluster.addresses)
            worker_errors.check_fits(is_of_all, self.cluster.name(0))
            return messages
        messages = {0: message} | self._received(others, "message", what)
        everything = [messages[index] for index in range(len(self.cluster.addresses))]
        for index in others:
            self._send(index, "messages", [what, everything])
        return everything

    def _received(
        self, indices: Iterable[int], kind: str, what: str, more_seconds: float = 0.0
    ) -> dict[int, object]:
        """The messages of that kind about `what`, from each, within `wait_seconds` and a little."""
        bodies, until = {}, time.monotonic() + self._wait_seconds + more_seconds
        try:
            received = self._receive(indices, kind, until)
        except _Silent as silent:
            names = self._names(silent.indices)
            raise worker_errors.GoneError(
                f"{names} did not reach {what!r} within {self._wait_seconds:g} s"
            ) from None
        for index, body in sorted(received.items()):
            name = self.cluster.name(index)
            fits = isinstance(body, list) and len(body) == 2 and isinstance(body[0], str)
            worker_errors.check_fits(fits, name)
            if body[0] != what:
                raise self._at_odds(index, body[0], what)
            bodies[index] = body[1]
        return bodies

    def _at_odds(self, index: int, theirs: str, ours: str) -> worker_errors.WorkerError:
        return worker_errors.WorkerError(
            f"{self.cluster.name(self.cluster.index)} is at {ours!r}, and "
            f"{self.cluster.name(index)} at {watcher.one_line(theirs)!r}: every worker must make "
            "the same calls in the same order"
        )

    def why(self, patience_seconds: float) -> worker_errors.WorkerError | None:
        """Which worker is gone or has ended, once something has gone wrong between them.

        Waits for word from the chief; the chief itself waits for a sign of those that are gone.

        Args:
          patience_seconds: how long at most.

        Returns:
          What to raise, or None if all connections are as they should be.
        """
        until = time.monotonic() + patience_seconds
        if not self.is_chief:
            with contextlib.suppress(wire.Gone):
                self._peers[0].send("noticed", None)
        try:
            self._receive(self._peers, "nothing is of this kind", until)
        except worker_errors.WorkerError as error:
            return error
        except _Silent:
            pass
        return None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """While entered, the process is killed if another worker is gone or has ended.

        The same happens after `wait_seconds`. For calls that block Python, so that nothing else
        could end them. No messages may be sent meanwhile. A line on stderr says why.
        """
        program = os.path.basename(sys.argv[0])
        names = {peer.connection.fileno(): self.cluster.name(i) for i, peer in self._peers.items()}
        seconds = min(self._wait_seconds, _LONGEST_WAIT_SECONDS)
        arguments = [str(os.getpid()), f"{program}: error: ", json.dumps(names), str(seconds)]
        with subprocess.Popen(
            [sys.executable, "-S", watcher.__file__, *arguments],
            env={name: value for name, value in os.environ.items() if name not in door.VARIABLES},
            stdin=subprocess.DEVNULL,
            pass_fds=list(names),
        ) as process:
            try:
                yield
            finally:
                process.kill()

    def end(self, reason: str | None, try_again: bool = False) -> None:
        """Closes the connections; without a reason, the chief's close last.

        Args:
          reason: why this worker cannot continue; None if it has finished.
          try_again: whether starting all workers again may help.
        """
        if reason is None and not self.is_chief:
            with contextlib.suppress(worker_errors.WorkerError, _Silent):
                self._receive([0], "done", time.monotonic() + _DONE_SECONDS)
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
            with contextlib.suppress(wire.Gone):
                peer.send(kind, body)

    def _send(self, index: int, kind: str, body: object) -> None:
        try:
            self._peers[index].send(kind, body)
        except wire.Gone:
            with contextlib.suppress(_Silent):
                # Its last word, or that it is gone.
                self._receive([index], kind, time.monotonic() + _ENDING_SECONDS)
            raise self._is_gone([index]) from None

    def _receive(self, indices: Iterable[int], kind: str, until: float) -> dict[int, object]:
        """A message of that kind from each; looks at all connections at once.

        Raises:
          WorkerError: one is gone, or has ended and says why.
          _Silent: not all have come by the time `until`.
        """
        pending, received = set(indices), {}
        while pending:
            said = self._said(pending, until)
            if not said:
                raise _Silent(sorted(pending))
            for index, message in said.items():  # before another's last word ends this
                if isinstance(message, tuple) and message[0] == "noticed":
                    self._noticed[index] = message[1]
            gone = []
            for index, message in said.items():
                name = self.cluster.name(index)
                if isinstance(message, wire.NoWorker):
                    raise worker_errors.says_no_worker(name) from message
                if isinstance(message, wire.Gone):
                    gone.append(index)
                    continue
                got, body = message
                if got == "ended":
                    raise self._has_ended(index, body)
                if got == "done" != kind:
                    raise worker_errors.WorkerError(f"{name} has finished already")
                if got == kind:
                    received[index] = body
                    pending.remove(index)
            if gone:
                raise self._is_gone(gone)
        return received

    def _said(
        self, indices: Iterable[int], until: float
    ) -> dict[int, tuple[str, object] | wire.Gone | wire.NoWorker]:
        """Waits until one of them has said something; the next message of each that has.

        Returns:
          By index: kind and body, or what is wrong; empty if nothing has come by the time `until`.
        """
        said = {}
        with selectors.DefaultSelector() as selector:
            for index in indices:
                selector.register(self._peers[index].connection, selectors.EVENT_READ, index)
            left = 0.0
            while not said and left >= 0:  # what is there already is heard, however late it is
                left = until - time.monotonic()
                for key, _ in selector.select(min(max(0.0, left), _LONGEST_WAIT_SECONDS)):
                    try:
                        message = self._peers[key.data].take()
                    except (wire.Gone, wire.NoWorker) as problem:
                        message = problem
                    if message is not None:
                        said[key.data] = message
        return said

    def _is_gone(self, indices: Sequence[int]) -> worker_errors.GoneError:
        return worker_errors.GoneError(f"{self._names(indices)} died without an error message")

    def _names(self, indices: Iterable[int]) -> str:
        return " and ".join(self.cluster.name(index) for index in indices)

    def _has_ended(self, index: int, body: object) -> worker_errors.WorkerError:
        name = self.cluster.name(index)
        worker_errors.check_fits(watcher.is_last_word(body), name)
        reason, try_again = body
        error = worker_errors.GoneError if try_again else worker_errors.WorkerError
        return error(f"{name} has ended: {watcher.one_line(reason)}")


class _Silent(Exception):
    """Not all have answered in time; `indices` are those that have not."""

    def __init__(self, indices: Sequence[int]):
        super().__init__(indices)
        self.indices = indices


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(addresses: Sequence[str]) -> str:
    return watcher.one_line(",".join(addresses))


class _Waiting:
    """Prints what it is waiting for, once that takes long and whenever it changes."""

    def __init__(self):
        self._since, self._said = time.monotonic(), ""

    def say(self, text: str) -> None:
        if text != self._said and time.monotonic() - self._since > _SAYS_WAITING_AFTER_SECONDS:
            print(text, flush=True)
            self._said = text
