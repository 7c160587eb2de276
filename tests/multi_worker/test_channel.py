"""Workers that talk to each other on the loopback interface, each in a thread of its own."""

import contextlib
import errno
import json
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types

import pytest
import scripts

from towers import worker_errors
from towers.multi_worker import channel, cluster, collectives, door, watcher
from towers.runs import run_folder
from towers_cli import agreement, launch


@pytest.fixture
def addresses():
    """Of three workers, on ports that nobody uses."""
    return tuple(f"127.0.0.1:{port}" for port in launch.free_ports(3))


def run_all(*workers):
    """Runs each function in a thread; what it returned or raised."""
    results = queue.Queue()

    def run(number, worker):
        try:
            results.put((number, worker()))
        except Exception as error:
            results.put((number, error))

    for number, one in enumerate(workers):
        threading.Thread(target=run, args=(number, one), daemon=True).start()
    return [result for _, result in sorted([results.get(timeout=30) for _ in workers], key=_first)]


def _first(pair):
    return pair[0]


def meet_one(addresses, index, do, wait_seconds=10.0):
    """A worker of that index meets the others, does something, and ends; what it returned."""
    one = channel.Channel(cluster.Cluster(addresses, index), wait_seconds)
    try:
        result = do(one)
    except Exception as error:
        one.end(str(error), isinstance(error, worker_errors.GoneError))
        raise
    one.end(None)
    return result


def meet(addresses, indices, do=lambda one: None, wait_seconds=10.0, delays=None):
    """Workers of those indices meet, do something, and end; what each returned or raised."""

    def worker(index):
        time.sleep((delays or {}).get(index, 0))
        return meet_one(addresses, index, do, wait_seconds)

    return run_all(*(lambda index=index: worker(index) for index in indices))


def test_every_worker_gets_the_messages_of_all(addresses):
    def do(one):
        return [one.exchange("who", {"from": one.cluster.index, "round": n}) for n in range(3)]

    expected = [[{"from": i, "round": n} for i in range(3)] for n in range(3)]
    assert meet(addresses, range(3), do) == [expected] * 3


def test_a_long_message_arrives_whole(addresses):
    def do(one):
        return [len(text) for text in one.exchange("long", "x" * (1_000_000 + one.cluster.index))]

    assert meet(addresses, range(3), do) == [[1_000_000, 1_000_001, 1_000_002]] * 3


@pytest.mark.parametrize("late", [0, 2])
def test_a_worker_that_comes_late_is_waited_for(addresses, late):
    assert (
        meet(addresses, range(3), lambda one: one.exchange("one", 1), delays={late: 1.0})
        == [[1] * 3] * 3
    )


def test_a_chief_that_comes_last_has_the_clock(addresses):
    # Worker 1's own time is up before worker 2 comes; the chief's is not.
    def worker(index, delay, wait_seconds):
        time.sleep(delay)
        one = channel.Channel(cluster.Cluster(addresses, index), wait_seconds)
        one.end(None)
        return "met"

    results = run_all(
        lambda: worker(0, 0.5, 10.0), lambda: worker(1, 0, 1.0), lambda: worker(2, 2.0, 10.0)
    )
    assert results == ["met"] * 3


def test_a_worker_that_starts_again_while_another_is_waited_for_is_taken_up(addresses):
    def killed():
        with socket.create_connection(cluster.host_and_port(addresses[0])) as connection:
            assert b"greeted" in greeted(connection, [1, list(addresses)])

    def worker(index, delay):
        time.sleep(delay)
        if index == 1:
            killed()
        one = channel.Channel(cluster.Cluster(addresses, index), 10.0)
        messages = one.exchange("who", index)
        one.end(None)
        return messages

    results = run_all(lambda: worker(0, 0), lambda: worker(1, 0.5), lambda: worker(2, 1.5))
    assert results == [[0, 1, 2]] * 3


def test_a_wait_may_be_without_end(addresses):
    assert meet(addresses[:2], range(2), wait_seconds=float("inf")) == [None] * 2


def test_a_name_of_no_machine_is_said(addresses):
    (error,) = meet(("a..b:1234", addresses[1]), [1], wait_seconds=0.5)
    assert str(error).startswith("worker 0 (a..b:1234) could not be reached within 0.5 s: ")


def test_it_is_said_who_is_waited_for(addresses, monkeypatch, capsys):
    monkeypatch.setattr(channel, "_SAYS_WAITING_AFTER_SECONDS", 0.1)
    meet(addresses, range(3), delays={1: 1.0})
    said = capsys.readouterr().out.splitlines()
    assert said.count(f"waiting for worker 1 ({addresses[1]})") == 1  # once, and not at each try


def test_a_worker_that_never_comes_is_named_by_all(addresses):
    problem = f"worker 1 ({addresses[1]}) did not connect within 1 s"
    chief, other = meet(addresses, [0, 2], wait_seconds=1.0)
    assert (str(chief), type(chief)) == (problem, worker_errors.GoneError)
    assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"
    assert type(other) is worker_errors.GoneError


def test_a_chief_that_never_comes_is_named(addresses):
    (error,) = meet(addresses, [1], wait_seconds=0.5)
    assert isinstance(error, worker_errors.GoneError)
    assert str(error).startswith(f"worker 0 ({addresses[0]}) could not be reached within 0.5 s: ")


@pytest.mark.parametrize("index", [0, 1])
def test_a_port_that_is_taken_is_named(addresses, index):
    with socket.create_server(cluster.host_and_port(addresses[index])):
        (error,) = meet(addresses, [index])
    assert (
        str(error)
        == f"worker {index} ({addresses[index]}) cannot listen on its port: Address already in use"
    )
    assert error.exit_code == 138  # it will be free again


def test_two_processes_of_one_index(addresses):
    def worker(index, delay):
        time.sleep(delay)
        return channel.Channel(cluster.Cluster(addresses, index), 2.0)

    results = run_all(lambda: worker(0, 0), lambda: worker(1, 0), lambda: worker(1, 0.7))
    refused = (
        f"worker 0 ({addresses[0]}) has ended: worker_index=1: another process is that worker; "
        "give each its own"
    )
    assert refused in map(str, results)
    assert str(results[0]) == f"worker 2 ({addresses[2]}) did not connect within 2 s"


def test_another_list_of_workers_is_refused(addresses):
    others = addresses[:2]
    chief, other = run_all(
        lambda: channel.Channel(cluster.Cluster(addresses, 0), 1.0),
        lambda: channel.Channel(cluster.Cluster(others, 1), 1.0),
    )
    problem = f"workers={','.join(others)}: worker 0 has workers={','.join(addresses)}"
    assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"
    assert "worker 1 " in str(chief) and "worker 2 " in str(chief)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 2**31),
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 16) + json.dumps(["towers", "abcd"]).encode(),
        struct.pack("!I", 100_000) + b"[" * 100_000,
        struct.pack("!I", 24) + b'["towers", [Infinity, 1]]'[:24],
        struct.pack("!I", 26) + b'["towers", [Infinity, []]]',
    ],
)
def test_a_stranger_on_the_port_is_sent_away(addresses, said):
    def stranger():
        for _ in range(100):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(
                    cluster.host_and_port(addresses[0]), timeout=5
                ) as connection,
            ):
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(10)
            time.sleep(0.02)

    def worker(index):
        one = channel.Channel(cluster.Cluster(addresses[:2], index), 10.0)
        messages = one.exchange("who", index)
        one.end(None)
        return messages

    def late():
        time.sleep(0.5)
        return worker(1)

    gone, first, second = run_all(stranger, lambda: worker(0), late)
    assert not gone or isinstance(gone, OSError)
    assert (first, second) == ([0, 1], [0, 1])


def packed(message, length=None) -> bytes:
    """A message as it travels; text is taken as it is."""
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack("!I", len(text) if length is None else length) + text


def connected(address) -> socket.socket:
    """A connection to the chief's port, as soon as there is somebody."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            return socket.create_connection(cluster.host_and_port(address), timeout=5)
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on {address}")


def greeted(connection, who, secret=b"") -> bytes:
    """What the chief answers to a greeting and a proof of that secret."""
    greeting = [*who, "ab" * 32]
    connection.sendall(packed(["towers", greeting]))
    kind, asked = json.loads(connection.recv(2**16)[4:])
    assert kind == "challenge"
    connection.sendall(packed(["proof", door.answer(secret, asked, greeting)]))
    return connection.recv(2**20)


def asks(connection, secret) -> bytes:
    """Takes a greeting and its proof, as a chief that has the secret; the proof, as it came."""
    greeting = json.loads(connection.recv(1000)[4:])[1]
    connection.sendall(packed(["challenge", door.challenge(secret, greeting)]))
    proof = connection.recv(1000)
    assert b"proof" in proof
    return proof


def ended_by_other(connection) -> bool:
    """Whether the other side closes the connection without a word."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def drips(connection, text: bytes):
    """Sends a byte at a time, in a thread of its own, until the other side has had enough of it."""

    def send():
        with contextlib.suppress(OSError):
            for n in range(len(text)):
                connection.sendall(text[n : n + 1])
                time.sleep(0.05)

    threading.Thread(target=send, daemon=True).start()


def met(members, wait_seconds=20.0):
    """The seconds that a worker took to meet the others."""
    began = time.monotonic()
    one = channel.Channel(members, wait_seconds)
    seconds = time.monotonic() - began
    one.end(None)
    return seconds


def waits_in_vain(addresses, wait_seconds: float) -> None:
    """The chief of two, whose other worker does not come."""
    with pytest.raises(worker_errors.WorkerError):
        channel.Channel(cluster.Cluster(addresses[:2], 0), wait_seconds)


SLOW = packed(bytes(200))  # for `drips`, ten seconds


class _AllReady:
    """A selector that finds all of `ready` ready, in their order."""

    def __init__(self, selector, ready):
        self._selector, self._ready = selector, ready

    def select(self, _):
        return [(key, key.events) for key in self._ready]

    def __getattr__(self, name):
        return getattr(self._selector, name)


def _address(listener) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


class TestStrangers:
    """What else may connect to the chief's port."""

    def test_that_are_slow_keep_no_worker_out(self, addresses):
        def come():
            strangers = [connected(addresses[0]) for _ in range(3)]
            drips(strangers[0], packed(b"", 99))
            drips(strangers[1], SLOW)
            time.sleep(0.5)  # the chief has seen them all
            seconds = met(cluster.Cluster(addresses[:2], 1))
            assert all(ended_by_other(stranger) for stranger in strangers)
            return seconds

        _, seconds = run_all(lambda: met(cluster.Cluster(addresses[:2], 0)), come)
        assert seconds < 2.0

    def test_that_are_slow_do_not_move_the_end_of_the_wait(self, addresses):
        def come():
            strangers = [connected(addresses[0]) for _ in range(3)]
            for stranger in strangers:
                drips(stranger, SLOW)
            return strangers

        def chief():
            began = time.monotonic()
            with pytest.raises(
                worker_errors.WorkerError, match=r"worker 1 .* did not connect within 1 s"
            ):
                channel.Channel(cluster.Cluster(addresses[:2], 0), 1.0)
            return time.monotonic() - began

        seconds, _ = run_all(chief, come)
        assert 1.0 <= seconds < 2.0

    def test_that_are_slow_are_sent_away_in_time(self, addresses, monkeypatch):
        monkeypatch.setattr(door, "GREETING_SECONDS", 0.3)

        def come():
            silent, slow = (connected(addresses[0]) for _ in range(2))
            drips(slow, SLOW)
            began = time.monotonic()
            assert ended_by_other(silent) and ended_by_other(slow)
            return time.monotonic() - began

        _, seconds = run_all(lambda: waits_in_vain(addresses, 3.0), come)
        assert seconds < 2.0

    def test_that_are_many_are_held_in_part_and_keep_no_worker_out(self, addresses):
        def come():
            strangers = [connected(addresses[0]) for _ in range(100)]
            time.sleep(0.5)
            gone = sum(stranger in _readable(strangers) for stranger in strangers)
            return gone, met(cluster.Cluster(addresses[:2], 1)), strangers

        _, (gone, seconds, _) = run_all(lambda: met(cluster.Cluster(addresses[:2], 0)), come)
        assert gone == 100 - door.MOST_STRANGERS - 2  # beside as many as there are workers
        assert seconds < 2.0

    def test_that_are_many_do_not_push_out_one_that_has_greeted(self, addresses, monkeypatch):
        """Its answer may take a while, on a machine far away."""
        original = door.answer

        def slow(*arguments):
            time.sleep(0.5)
            return original(*arguments)

        monkeypatch.setattr(door, "answer", slow)
        stop = threading.Event()

        def flood():
            strangers = []
            while not stop.wait(0.002):
                with contextlib.suppress(OSError, AssertionError):  # before and after the meeting
                    strangers.append(connected(addresses[0]))
                    strangers = strangers[-200:]

        def chief():
            return met(cluster.Cluster(addresses[:2], 0), 5.0)

        def come():
            threading.Thread(target=flood, daemon=True).start()
            try:
                time.sleep(0.5)
                return met(cluster.Cluster(addresses[:2], 1), 5.0)
            finally:
                stop.set()

        assert [type(one) for one in run_all(chief, come)] == [float, float]

    def test_of_the_host_that_has_most_one_is_sent_away_first(self):
        """The oldest of those that have not greeted."""
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, door.Strangers(listener, b"", 4) as strangers:
            for name, host, said in (
                ("far", "10.0.0.1", None),
                ("greeted", "10.0.0.2", [1]),
                ("old", "10.0.0.2", None),
                ("new", "10.0.0.2", None),
            ):
                strangers._late[name] = door._Stranger(host, 0.0, said)
            gone = []
            while strangers._late:
                gone.append(strangers._least())
                del strangers._late[gone[-1]]
        assert gone == ["old", "new", "far", "greeted"]

    def test_that_have_all_files_open_make_room_one_by_one(self, addresses, monkeypatch):
        """The one that is sent away may have been found ready to be read a moment before."""

        def no_more_files():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        listener = socket.create_server(("127.0.0.1", 0))
        with listener, door.Strangers(listener, b"") as strangers:
            first, second = (connected(_address(listener)) for _ in range(2))
            while len(strangers._late) < 2:
                assert list(strangers.introduced(time.monotonic() + 1)) == []
            monkeypatch.setattr(strangers, "_listener", types.SimpleNamespace(accept=no_more_files))
            ready = list(strangers._selector.get_map().values())  # the listener first
            monkeypatch.setattr(strangers, "_selector", _AllReady(strangers._selector, ready))
            first.sendall(b"x")
            assert list(strangers.introduced(time.monotonic() + 1)) == []
            assert len(strangers._late) == 1
            assert ended_by_other(first)
            second.close()

    @pytest.mark.parametrize("length", [2**18 + 1, 2**24, 2**32 - 1])
    def test_that_announce_too_much_are_sent_away_at_once(self, addresses, length):
        def come():
            stranger = connected(addresses[0])
            stranger.sendall(packed(b"", length))
            began = time.monotonic()
            assert ended_by_other(stranger)
            return time.monotonic() - began

        _, seconds = run_all(lambda: waits_in_vain(addresses, 1.0), come)
        assert seconds < 0.9

    def test_that_greet_in_another_shape_are_sent_away(self, addresses):
        listed = list(addresses[:2])
        greetings = [
            *([True, listed], [1.0, listed], ["1", listed], [None, listed], [[1], listed]),
            *([1, addresses[0]], [1, None], [1, {"a:1": 0}], [1, [1, 2]], [1, [[]]]),
            *([1], [1, listed, 0, 0], {"1": listed}, "ab", 1, None, float("nan"), [2**31, listed]),
        ]
        greetings = [one + ["ab"] if isinstance(one, list) else one for one in greetings]
        greetings += [[1, listed], [1, listed, 1], [1, listed, None]]
        messages = [json.dumps(["towers", greeting]).encode() for greeting in greetings]
        messages += [
            b"[]",
            b"1",
            b"null",
            b'"ab"',
            b'{"a": 1, "b": 2}',
            b'["towers"]',
            b"\xff",
            b"",
        ]
        messages += [b"NaN", b"9" * 5000, b'["towers", ' + b"[" * 40 + b"]" * 40 + b"]"]
        messages += [json.dumps([kind, [1, listed]]).encode() for kind in (["towers"], 1, None)]

        def come():
            strangers = []
            for message in messages:
                strangers.append(connected(addresses[0]))
                strangers[-1].sendall(packed(message))
            assert all(ended_by_other(stranger) for stranger in strangers)
            return met(cluster.Cluster(addresses[:2], 1))

        results = run_all(lambda: met(cluster.Cluster(addresses[:2], 0)), come)
        assert [type(result) for result in results] == [float, float]

    def test_a_greeted_one_that_talks_before_all_are_there_is_no_worker(self, addresses):
        def come():
            stranger = connected(addresses[0])
            assert b"greeted" in greeted(stranger, [1, list(addresses)])
            stranger.sendall(packed(["message", 1]))
            workers = [lambda i=i: met(cluster.Cluster(addresses, i)) for i in (1, 2)]
            return run_all(*workers)

        _, results = run_all(lambda: met(cluster.Cluster(addresses, 0)), come)
        assert [type(result) for result in results] == [float, float]

    def test_get_a_short_answer_to_a_long_list(self, addresses):
        many = [f"a:{port}" for port in range(1, 20_000)]

        def come():
            with connected(addresses[0]) as stranger:
                return len(greeted(stranger, [1, many]))

        _, size = run_all(lambda: waits_in_vain(addresses, 1.0), come)
        assert 0 < size < 5000


def _readable(connections) -> list:
    return select.select(connections, [], [], 0)[0]


RIGHT, WRONG = b"the secret of this run", b"the secret of another run"


class TestSecret:
    """Who may join a run."""

    @pytest.mark.parametrize("theirs", [WRONG, b""])
    def test_a_worker_with_another_one_is_sent_away_and_named(self, addresses, capsys, theirs):
        def late():
            time.sleep(0.7)  # the other one has tried by then, as the same worker
            return met(cluster.Cluster(addresses[:2], 1, RIGHT))

        error, *seconds = run_all(
            lambda: met(cluster.Cluster(addresses[:2], 1, theirs), wait_seconds=0.5),
            lambda: met(cluster.Cluster(addresses[:2], 0, RIGHT)),
            late,
        )
        assert str(error) == (
            f"worker 0 ({addresses[0]}) could not be reached within 0.5 s: it has a different "
            "secret"
        )
        assert type(error) is worker_errors.WorkerError  # to try again does not help
        assert [type(one) for one in seconds] == [float, float]
        said = capsys.readouterr().out.splitlines()
        assert said == ["refused 127.0.0.1: it says it is worker 1, with a different secret"]

    def test_what_another_worker_has_said_cannot_be_repeated(self, addresses):
        greeting = [1, list(addresses[:2]), "ab" * 32]

        def heard(proof):
            stranger = connected(addresses[0])
            stranger.sendall(packed(["towers", greeting]))
            asked = json.loads(stranger.recv(2**16)[4:])[1]
            stranger.sendall(packed(["proof", proof(asked)]))
            return asked, stranger

        def come():
            first, stranger = heard(lambda asked: "nothing")
            assert ended_by_other(stranger)
            good = door.answer(RIGHT, first, greeting)
            for proof in (
                lambda asked: good,  # of the connection before
                lambda asked: asked[1],  # the chief's own
                lambda asked: door.answer(RIGHT, asked, [2, *greeting[1:]]),  # of another worker
                lambda asked: "\ud800",
                lambda asked: None,
            ):
                _, stranger = heard(proof)
                assert ended_by_other(stranger)
            return met(cluster.Cluster(addresses[:2], 1, RIGHT))

        results = run_all(lambda: met(cluster.Cluster(addresses[:2], 0, RIGHT)), come)
        assert [type(one) for one in results] == [float, float]

    def test_a_chief_with_another_one_is_not_believed(self, addresses, monkeypatch):
        monkeypatch.setattr(door, "GREETING_SECONDS", 0.4)

        def false_chief(listener):
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                asks(connection, WRONG)
                connection.sendall(packed(["ended", ["the disk is full", False]]))

        with socket.create_server(cluster.host_and_port(addresses[0])) as listener:
            arguments = [lambda: false_chief(listener)]
            arguments += [lambda: met(cluster.Cluster(addresses[:2], 1, RIGHT), 0.5)]
            _, error = run_all(*arguments)
        assert "the disk is full" not in str(error)
        name = f"worker 0 ({addresses[0]})"
        assert str(error).startswith(f"{name} could not be reached within 0.5 s: ")

    def test_a_worker_shows_nothing_to_a_chief_with_another_one(self, addresses, monkeypatch):
        monkeypatch.setattr(door, "GREETING_SECONDS", 0.4)
        got = []

        def false_chief(listener):
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                got.append(asks(connection, WRONG))

        with socket.create_server(cluster.host_and_port(addresses[0])) as listener:
            arguments = [lambda: false_chief(listener)]
            arguments += [lambda: met(cluster.Cluster(addresses[:2], 1, RIGHT), 0.5)]
            run_all(*arguments)
        assert got == [packed(["proof", ""])]

    def test_garbage_is_named(self, addresses, capsys):
        def come():
            stranger = connected(addresses[0])
            stranger.sendall(packed("GET / HTTP/1.1"))
            assert ended_by_other(stranger)
            return met(cluster.Cluster(addresses[:2], 1))

        run_all(lambda: met(cluster.Cluster(addresses[:2], 0)), come)
        said = capsys.readouterr().out
        assert said == "refused 127.0.0.1: it does not talk like a worker\n"

    def test_it_is_read_from_the_environment_or_a_file(self, tmp_path):
        path = tmp_path / "secret"
        path.write_text("of a file, long enough\n")
        assert door.secret_of({}) == b""
        assert door.secret_of({"TOWERS_SECRET": "of the environment"}) == b"of the environment"
        assert door.secret_of({"TOWERS_SECRET_FILE": str(path)}) == b"of a file, long enough"
        config = launch.tf_config(addresses := ("a:1", "b:1"), 1)
        members = cluster.from_environment({"TF_CONFIG": config, "TOWERS_SECRET": "s" * 16})
        assert members == cluster.Cluster(addresses, 1, b"s" * 16)
        assert "s" * 16 not in repr(members)
        assert cluster.from_environment({}) is None

    @pytest.mark.parametrize(
        ("environment", "problem"),
        [
            (
                {"TOWERS_SECRET": "short"},
                "TOWERS_SECRET: a secret must have at least 16",
            ),
            (
                {"TOWERS_SECRET_FILE": "/nowhere"},
                "_FILE=/nowhere: No such file or dir",
            ),
            (
                {"TOWERS_SECRET_FILE": "/dev/null"},
                "/dev/null: a secret must have at least 16",
            ),
            (
                {"TOWERS_SECRET": "s" * 16, "TOWERS_SECRET_FILE": "/x"},
                "TOWERS_SECRET and TOWERS_SECRET_FILE=/x are both set; set one",
            ),
            ({"TF_CONFIG": "{"}, "TF_CONFIG: is not JSON"),
        ],
    )
    def test_a_bad_one_is_refused(self, environment, problem):
        with pytest.raises(ValueError, match=problem) as error:
            cluster.from_environment(environment)
        assert "s" * 16 not in str(error.value)


# What a false worker, or a false chief, may say once it is taken for one.
SAID = [
    *(packed(["message", body]) for body in ([], 1, "ab", None, {}, [[]], [1, 2], ["a", 1, 2])),
    *(packed(["message", ["GIVEN", body]]) for body in ([], 1, "ab", None, float("nan"), [[]])),
    packed(["message", ["GIVEN", {"seed": {"a": [1, {}]}, "two\nlines": "two\nlines"}]]),
    packed(b'["message", ' + b"[" * 40 + b"]" * 40 + b"]"),
    packed(b'["message", {"seed": ' + b"[" * 60 + b"]" * 60 + b"}]"),
    packed(b"[" * 100_000),
    packed(b'["message", "\xff\xfe"]'),
    packed(b'["message", ' + b"9" * 5000 + b"]"),
    packed(b"", 2**32 - 1),
    *(packed(message) for message in ([], 1, None, "ab", {"a": 1, "b": 2}, [[], 1], ["x", 1])),
    *(packed(["ended", [said, False]]) for said in ("two\nlines \x1b[2J", "x" * 100_000, None)),
    *(packed(["ended", body]) for body in ("no flag", [], ["x"], ["x", 1], ["x", True, 1], None)),
]


def one_sentence(error) -> bool:
    text = str(error)
    return (
        type(error) in (worker_errors.WorkerError, worker_errors.GoneError)
        and text.isprintable()
        and 0 < len(text) < 2500
    )


def greeted_as_worker(address, listed) -> socket.socket:
    """A connection that the chief takes for that of worker 1, the last it has waited for."""
    connection = connected(address)
    said = greeted(connection, [1, listed])
    while b"welcome" not in said:
        said += connection.recv(1000)
    return connection


@pytest.mark.parametrize("said", SAID, ids=range(len(SAID)))
def test_what_no_worker_says_is_one_sentence_of_the_chief(addresses, said):
    said = about(said, "what they were given")

    def chief():
        members = cluster.Cluster(addresses[:2], 0)
        with collectives.MultiWorker(members, 10.0) as workers:
            agreement.check_alike(workers, scripts.settings_of())

    def false_worker():
        connection = greeted_as_worker(addresses[0], list(addresses[:2]))
        connection.sendall(said)
        return connection  # kept open

    error, _ = run_all(chief, false_worker)
    assert one_sentence(error)
    assert str(error).startswith(f"worker 1 ({addresses[1]}) ")


def about(said: bytes, what: str, kind: str = "message") -> bytes:
    """What is said, of another kind, and about something else."""
    said = said.replace(b'"message"', f'"{kind}"'.encode()).replace(b"GIVEN", what.encode())
    return said if said[4:5] != b"[" else packed(said[4:])  # it has another length


@pytest.mark.parametrize("said", SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("what", ["what they were given", "what is in the folder"])
def test_what_no_chief_says_is_one_sentence_of_the_worker(addresses, tmp_path, said, what):
    said = about(said, what, "messages")

    def false_chief():
        with socket.create_server(cluster.host_and_port(addresses[0])) as listener:
            connection, _ = listener.accept()
        asks(connection, b"")
        connection.sendall(packed(["greeted", 10.0]) + packed(["welcome", None]) + said)
        return connection

    def worker():
        members = cluster.Cluster(addresses[:2], 1)
        with collectives.MultiWorker(members, 10.0) as workers:
            if what == "what they were given":
                agreement.check_alike(workers, scripts.settings_of())
            else:
                agreement.find(workers, run_folder.RunFolder(str(tmp_path)))

    _, error = run_all(false_chief, worker)
    assert one_sentence(error)
    assert str(error).startswith(f"worker 0 ({addresses[0]}) ")


@pytest.mark.parametrize(
    ("said", "then"),
    [
        (b"", b""),
        (SLOW, b""),
        (packed(["greeted", 0.1]), b""),
        (packed(["ended", ["no", False]]), b""),
        (packed(["challenge", "ab"]), b""),
        (None, packed(["greeted", 0.1])),
        (None, packed(["greeted", 1e9])),
        (None, packed(["greeted", "1"])),
    ],
    ids=[
        "nothing",
        "slow",
        "no challenge",
        "end",
        "no proof",
        "no welcome",
        "too long",
        "no number",
    ],
)
def test_a_false_chief_does_not_hold_a_worker(addresses, monkeypatch, said, then):
    monkeypatch.setattr(door, "GREETING_SECONDS", 0.4)
    connections = []

    def false_chief(listener):
        with contextlib.suppress(OSError):
            while True:
                connections.append(listener.accept()[0])
                if said is None:
                    asks(connections[-1], b"")
                drips(connections[-1], said) if said == SLOW else connections[-1].send(said or then)

    with socket.create_server(cluster.host_and_port(addresses[0])) as listener:
        threading.Thread(target=false_chief, args=(listener,), daemon=True).start()
        began = time.monotonic()
        (error,) = meet(addresses[:2], [1], wait_seconds=0.5)
        assert time.monotonic() - began < 3.0
        listener.shutdown(socket.SHUT_RDWR)
    assert "could not be reached within 0.5 s: it does not answer like a worker" in str(error)


def close(one):
    """As the system does for a process that is killed."""
    for peer in one._peers.values():
        peer.connection.close()


def test_a_worker_that_is_killed_is_named_by_all(addresses):
    def do(one):
        if one.cluster.index == 2:
            close(one)
            return "killed"
        return one.exchange("who", None)

    chief, other, _ = meet(addresses, range(3), do)
    problem = f"worker 2 ({addresses[2]}) died without an error message"
    assert str(chief) == problem
    assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"
    assert (chief.exit_code, other.exit_code) == (138, 138)


def test_a_chief_that_is_killed_is_named(addresses):
    def do(one):
        if one.is_chief:
            close(one)
            return "killed"
        return one.exchange("what", None)

    results = meet(addresses, range(3), do)
    assert [str(error) for error in results[1:]] == [
        f"worker 0 ({addresses[0]}) died without an error message"
    ] * 2


@pytest.mark.parametrize("index", [0, 2])
def test_workers_that_have_come_to_different_calls_are_named(addresses, index):
    def do(one):
        time.sleep(0.3 * (one.cluster.index == 1))  # the first in order is the last to come
        if one.cluster.index == index:
            return one.exchange("the images", 1)
        return one.exchange("their processors", 1)

    found = [str(error) for error in meet(addresses, range(3), do)]
    same = "every worker must make the same calls in the same order"
    names = [f"worker {i} ({addresses[i]})" for i in range(3)]
    said = {
        0: f"{names[0]} is at 'the images', and {names[1]} at 'their processors': {same}",
        2: f"{names[0]} is at 'their processors', and {names[2]} at 'the images': {same}",
    }[index]
    assert found[0] == said
    assert found[1:] == [f"{names[0]} has ended: {said}"] * 2


@pytest.mark.parametrize("culprit", [0, 1])
def test_why_a_worker_has_ended_is_told_to_all(addresses, culprit):
    def do(one):
        if one.cluster.index == culprit:
            raise OSError("the disk is full")
        return one.exchange("who", None)

    results = meet(addresses, range(3), do)
    said = f"worker {culprit} ({addresses[culprit]}) has ended: the disk is full"
    expected = [said, f"worker 0 ({addresses[0]}) has ended: {said}"]
    assert all(str(error) in expected for i, error in enumerate(results) if i != culprit)
    assert str(results[culprit]) == "the disk is full"
    # That will not go away when all are started again.
    assert {error.exit_code for i, error in enumerate(results) if i != culprit} == {1}


class TestDeadlines:
    """One that hangs ends no connection."""

    @pytest.mark.parametrize("hangs", [0, 1])
    def test_a_worker_that_says_nothing_is_named(self, addresses, monkeypatch, hangs):
        monkeypatch.setattr(channel, "_ENDING_SECONDS", 0.3)

        def do(one):
            if one.cluster.index == hangs:
                return time.sleep(2.0)
            return one.exchange("who", None)

        results = meet(addresses, range(3), do, wait_seconds=0.6)
        said = f"worker {hangs} ({addresses[hangs]}) did not reach 'who' within 0.6 s"
        chief_said = f"worker 0 ({addresses[0]}) has ended: {said}"
        expected = {0: [None, said, said], 1: [said, None, chief_said]}[hangs]
        assert [error and str(error) for error in results] == expected
        assert {error.exit_code for error in results if error} == {138}

    def test_all_that_say_nothing_are_named(self, addresses):
        def do(one):
            return one.exchange("who", None) if one.is_chief else time.sleep(1.5)

        names = " and ".join(f"worker {index} ({addresses[index]})" for index in (1, 2))
        chief, *_ = meet(addresses, range(3), do, wait_seconds=0.6)
        assert str(chief) == f"{names} did not reach 'who' within 0.6 s"

    def test_a_chief_that_hangs_at_its_end_holds_nobody(self, addresses, monkeypatch):
        monkeypatch.setattr(channel, "_DONE_SECONDS", 0.3)

        def do(one):
            return None if not one.is_chief else time.sleep(2.0)

        began = time.monotonic()
        results = run_all(
            *(lambda i=i: (meet_one(addresses, i, do), time.monotonic())[1] for i in range(3))
        )
        assert [ended - began > 1.8 for ended in results] == [True, False, False]


class TestWhy:
    """What is found out after TensorFlow has noticed that something is wrong."""

    def test_the_one_that_is_gone_is_named_and_not_those_that_noticed(self, addresses):
        def do(one):
            if one.cluster.index == 1:
                close(one)
                return None
            if one.is_chief:
                time.sleep(0.3)  # the others notice first
            raise one.why(5.0)

        chief, _, other = meet(addresses, range(3), do)
        problem = f"worker 1 ({addresses[1]}) died without an error message"
        assert str(chief) == problem
        assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"

    def test_a_chief_that_has_come_to_its_end_is_not_gone(self, addresses):
        def do(one):
            return None if one.is_chief else one.exchange("hashes of their states", 1)

        _, *others = meet(addresses, range(3), do)
        said = f"worker 0 ({addresses[0]}) has finished already"
        assert [(str(error), error.exit_code) for error in others] == [(said, 1)] * 2

    def test_nothing_is_found_where_all_are_there(self, addresses):
        def do(one):
            found = one.why(0.3)
            time.sleep(1.0)  # longer than that of any other
            return found

        assert meet(addresses, range(3), do) == [None] * 3


def test_the_watcher_is_not_ended_by_a_signal_to_all():
    """Ctrl-C on the terminal, or a launcher's keeper, meets it too."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [
                sys.executable,
                "-S",
                watcher.__file__,
                str(os.getpid()),
                "",
                f'{{"{ours.fileno()}": ""}}',
                "60",
            ],
            pass_fds=[ours.fileno()],
        ) as process,
    ):
        try:
            time.sleep(0.5)  # until it has begun
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        finally:
            process.kill()  # before the connection ends, at which it would kill this process


class TestLastWord:
    """What `watcher` says of a worker while TensorFlow starts."""

    @pytest.mark.parametrize(
        ("left", "said"),
        [
            (b"", "died without an error message"),
            (packed(["ended", ["the disk is full", False]]), "has ended: the disk is full"),
            (b"\0\0\0\x1a[", "is gone"),
            (b"\0\1\0\0" + b"[" * 50_000, "is gone"),
            (packed(["ended", [1]]), "is gone"),
            (packed(["ended", "no flag"]), "is gone"),
            (b'\0\0\0\x10["noticed", 1]', "is gone"),
            (packed(["ended", ["a\nb\u001b", True]]), "has ended: a b?"),
        ],
    )
    def test_is_what_it_left_on_its_connection(self, left, said):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(left)
            assert watcher.last_word(ours.fileno()) == said
            assert ours.recv(2**16) == left  # still there
