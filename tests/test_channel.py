"""Workers that talk to each other on the loopback interface, each in a thread of its own."""

import contextlib
import json
import queue
import socket
import struct
import threading
import time

import pytest

from towers import channel, cluster, launch, watcher


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

    for number, worker in enumerate(workers):
        threading.Thread(target=run, args=(number, worker), daemon=True).start()
    return [result for _, result in sorted([results.get(timeout=30) for _ in workers], key=_first)]


def _first(pair):
    return pair[0]


def meet(addresses, indices, do=lambda one: None, wait_seconds=10.0, delays=None):
    """Workers of those indices meet, do something, and end; what each returned or raised."""

    def worker(index):
        time.sleep((delays or {}).get(index, 0))
        one = channel.Channel(cluster.Cluster(addresses, index), wait_seconds)
        try:
            result = do(one)
        except Exception as error:
            one.end(str(error))
            raise
        one.end(None)
        return result

    return run_all(*(lambda index=index: worker(index) for index in indices))


def test_every_worker_gets_the_messages_of_all(addresses):
    def do(one):
        return [one.exchange({"from": one.cluster.index, "round": n}) for n in range(3)]

    expected = [[{"from": i, "round": n} for i in range(3)] for n in range(3)]
    assert meet(addresses, range(3), do) == [expected] * 3


def test_every_worker_gets_what_the_chief_makes(addresses):
    def do(one):
        return one.from_chief(lambda: [one.cluster.index, None, "ä"])

    assert meet(addresses, range(3), do) == [[0, None, "ä"]] * 3


def test_a_long_message_arrives_whole(addresses):
    def do(one):
        return [len(text) for text in one.exchange("x" * (1_000_000 + one.cluster.index))]

    assert meet(addresses, range(3), do) == [[1_000_000, 1_000_001, 1_000_002]] * 3


@pytest.mark.parametrize("late", [0, 2])
def test_a_worker_that_comes_late_is_waited_for(addresses, late):
    assert (
        meet(addresses, range(3), lambda one: one.exchange(1), delays={late: 1.0}) == [[1] * 3] * 3
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
            text = json.dumps(["towers", [1, list(addresses)]]).encode()
            connection.sendall(struct.pack("!I", len(text)) + text)
            assert connection.recv(100)

    def worker(index, delay):
        time.sleep(delay)
        if index == 1:
            killed()
        one = channel.Channel(cluster.Cluster(addresses, index), 10.0)
        messages = one.exchange(index)
        one.end(None)
        return messages

    results = run_all(lambda: worker(0, 0), lambda: worker(1, 0.5), lambda: worker(2, 1.5))
    assert results == [[0, 1, 2]] * 3


def test_a_name_of_no_machine_is_said(addresses):
    (error,) = meet(("a..b:1234", addresses[1]), [1], wait_seconds=0.5)
    assert str(error).startswith("worker 0 (a..b:1234) did not come within 0.5 s: ")


def test_it_is_said_who_is_waited_for(addresses, monkeypatch, capsys):
    monkeypatch.setattr(channel, "_SAYS_WAITING_AFTER_SECONDS", 0.1)
    meet(addresses, range(3), delays={1: 1.0})
    said = capsys.readouterr().out.splitlines()
    assert said.count(f"waiting for worker 1 ({addresses[1]})") == 1  # once, and not at each try


def test_a_worker_that_never_comes_is_named_by_all(addresses):
    problem = f"worker 1 ({addresses[1]}) did not come within 1 s"
    chief, other = meet(addresses, [0, 2], wait_seconds=1.0)
    assert (str(chief), type(chief)) == (problem, channel.WorkerError)
    assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"


def test_a_chief_that_never_comes_is_named(addresses):
    (error,) = meet(addresses, [1], wait_seconds=0.5)
    assert isinstance(error, channel.WorkerError)
    assert str(error).startswith(f"worker 0 ({addresses[0]}) did not come within 0.5 s: ")


@pytest.mark.parametrize("index", [0, 1])
def test_a_port_that_is_taken_is_named(addresses, index):
    with socket.create_server(cluster.host_and_port(addresses[index])):
        (error,) = meet(addresses, [index])
    assert (
        str(error)
        == f"worker {index} ({addresses[index]}) cannot listen on its port: Address already in use"
    )


def test_two_processes_of_one_index(addresses):
    def worker(index, delay):
        time.sleep(delay)
        return channel.Channel(cluster.Cluster(addresses, index), 2.0)

    results = run_all(lambda: worker(0, 0), lambda: worker(1, 0), lambda: worker(1, 0.7))
    refused = (
        f"worker 0 ({addresses[0]}) has ended: --worker_index=1: another process is that worker"
    )
    assert refused in map(str, results)
    assert str(results[0]) == f"worker 2 ({addresses[2]}) did not come within 2 s"


def test_another_list_of_workers_is_refused(addresses):
    others = addresses[:2]
    chief, other = run_all(
        lambda: channel.Channel(cluster.Cluster(addresses, 0), 1.0),
        lambda: channel.Channel(cluster.Cluster(others, 1), 1.0),
    )
    problem = f"--workers={','.join(others)}: it has --workers={','.join(addresses)}"
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
        messages = one.exchange(index)
        one.end(None)
        return messages

    def late():
        time.sleep(0.5)
        return worker(1)

    gone, first, second = run_all(stranger, lambda: worker(0), late)
    assert not gone or isinstance(gone, OSError)
    assert (first, second) == ([0, 1], [0, 1])


def close(one):
    """As the system does for a process that is killed."""
    for peer in one._peers.values():
        peer.connection.close()


def test_a_worker_that_is_killed_is_named_by_all(addresses):
    def do(one):
        if one.cluster.index == 2:
            close(one)
            return "killed"
        return one.exchange(None)

    chief, other, _ = meet(addresses, range(3), do)
    problem = f"worker 2 ({addresses[2]}) is gone without a word"
    assert str(chief) == problem
    assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"


def test_a_chief_that_is_killed_is_named(addresses):
    def do(one):
        if one.is_chief:
            close(one)
            return "killed"
        return one.from_chief(lambda: None)

    results = meet(addresses, range(3), do)
    assert [str(error) for error in results[1:]] == [
        f"worker 0 ({addresses[0]}) is gone without a word"
    ] * 2


@pytest.mark.parametrize("culprit", [0, 1])
def test_why_a_worker_has_ended_is_told_to_all(addresses, culprit):
    def do(one):
        if one.cluster.index == culprit:
            raise OSError("the disk is full")
        return one.exchange(None)

    results = meet(addresses, range(3), do)
    said = f"worker {culprit} ({addresses[culprit]}) has ended: the disk is full"
    expected = [said, f"worker 0 ({addresses[0]}) has ended: {said}"]
    assert all(str(error) in expected for i, error in enumerate(results) if i != culprit)
    assert str(results[culprit]) == "the disk is full"


class TestWhy:
    """What is found out after TensorFlow has noticed that something is wrong."""

    def test_the_one_that_is_gone_is_named_and_not_those_that_noticed(self, addresses):
        def do(one):
            if one.cluster.index == 1:
                close(one)
                return None
            if one.is_chief:
                time.sleep(0.3)  # the others notice first
            raise channel.WorkerError(one.why(5.0))

        chief, _, other = meet(addresses, range(3), do)
        problem = f"worker 1 ({addresses[1]}) is gone without a word"
        assert str(chief) == problem
        assert str(other) == f"worker 0 ({addresses[0]}) has ended: {problem}"

    def test_nothing_is_found_where_all_are_there(self, addresses):
        def do(one):
            found = one.why(0.3)
            time.sleep(1.0)  # longer than that of any other
            return found

        assert meet(addresses, range(3), do) == [None] * 3


class TestLastWord:
    """What `watcher` says of a worker while TensorFlow starts."""

    @pytest.mark.parametrize(
        ("left", "said"),
        [
            (b"", "is gone without a word"),
            (b'\0\0\0\x1a["ended", "the disk is full"]', "has ended: the disk is full"),
            (b"\0\0\0\x1a[", "is gone"),
        ],
    )
    def test_is_what_it_left_on_its_connection(self, left, said):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(left)
            assert watcher.last_word(ours.fileno()) == said
            assert ours.recv(100) == left  # still there
