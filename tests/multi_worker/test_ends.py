"""How workers end, and what the others then do: the table of docs/workers.md.

Each test is of processes on this machine. What ends by a heartbeat that is missed, or late, is
long.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import forked
import pytest
import scripts

from towers_cli import launch

ENDS = str(scripts.ROOT / "tests/helpers/ends.py")


class Ended:
    """A worker that has ended: its exit code, the last line of its stderr, and how long it took."""

    def __init__(self, process, since: float):
        _, stderr = process.communicate(timeout=90)
        self.code, self.seconds = process.returncode, time.monotonic() - since
        self.said = stderr.splitlines()[-1].partition(": error: ")[2] if stderr else ""


class Workers:
    """Processes of one cluster."""

    def __init__(self, count: int):
        self.addresses = [f"127.0.0.1:{port}" for port in launch.free_ports(count)]
        self.processes, self.since = [], time.monotonic()

    def start(self, index: int, environment=None, **wanted):
        """Starts one; `wanted` is as `ends.py` takes it."""
        wanted = {"addresses": self.addresses, "index": index, "seconds": 60.0} | wanted
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, ENDS, json.dumps(wanted)]
        one = forked.Popen(command, env=os.environ | (environment or {}), **pipes)
        self.processes.append(one)
        return one

    def name(self, index: int) -> str:
        return f"worker {index} ({self.addresses[index]})"

    def ended(self, process) -> Ended:
        """Waits for its end, which is timed from `since` on."""
        return Ended(process, self.since)


@pytest.fixture
def cluster():
    """Makes `Workers`, and kills what is left of them."""
    made = []

    def make(count: int) -> Workers:
        made.append(Workers(count))
        return made[-1]

    yield make
    for process in (process for workers in made for process in workers.processes):
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for_step(workers: Workers, process, step: int) -> None:
    """From now on time is counted."""
    scripts.wait_for_line(process, f"step {step}")
    workers.since = time.monotonic()


def test_an_ordinary_end_beside_garbage_on_the_ports(cluster):
    three = cluster(3)
    first = three.start(0, at=3, act=1.0)
    others = [three.start(index, at=9, act=0.5) for index in (1, 2)]
    wait_for_step(three, first, 3)
    for address in three.addresses:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(1000))
    assert [three.ended(one).code for one in (first, *others)] == [0, 0, 0]


@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_is_killed_is_named_at_once(cluster, victim):
    three = cluster(3)
    processes = [
        three.start(index, at=3, act="SIGKILL" if index == victim else 0.2) for index in range(3)
    ]
    wait_for_step(three, processes[victim], 3)
    for index in {0, 1, 2} - {victim}:
        end = three.ended(processes[index])
        assert (end.code, end.said) == (138, f"{three.name(victim)} died without an error message")
        assert end.seconds < 20


def test_one_that_is_killed_while_the_others_compute_is_named_at_their_next_step(cluster):
    two = cluster(2)
    busy, killed = two.start(0, at=3, act=5.0), two.start(1, at=3, act="SIGKILL")
    wait_for_step(two, killed, 3)
    end = two.ended(busy)
    assert (end.code, end.said) == (138, f"{two.name(1)} died without an error message")
    assert 5 < end.seconds < 25


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_hangs_is_named_when_it_misses_its_heartbeat(cluster, victim):
    two = cluster(2)
    hangs, other = two.start(victim, at=3, act="SIGSTOP"), two.start(1 - victim)
    wait_for_step(two, hangs, 3)
    end = two.ended(other)
    assert (end.code, end.said) == (138, f"{two.name(victim)} does not answer")
    assert end.seconds < 40


@pytest.mark.parametrize("culprit", [1, 0])
def test_the_others_are_told_of_an_error(cluster, culprit):
    two = cluster(2)
    fails, other = two.start(culprit, at=3, act=["error", 0]), two.start(1 - culprit)
    wait_for_step(two, fails, 3)
    end = two.ended(other)
    assert (end.code, end.said) == (1, f"{two.name(culprit)} has ended: my disk is full")
    assert two.ended(fails).code == 1


def test_an_error_is_not_told_to_a_chief_that_hangs(cluster):
    """Which would be waited for."""
    two = cluster(2)
    hangs, fails = two.start(0, at=3, act="SIGSTOP"), two.start(1, at=3, act=["error", 1.0])
    wait_for_step(two, hangs, 3)
    end = two.ended(fails)
    assert end.code == 1 and end.seconds < 20


def test_one_that_runs_on_something_else_is_refused_with_both_values(cluster):
    two = cluster(2)
    other = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    for process in (two.start(0), two.start(1, other)):
        end = two.ended(process)
        assert end.code == 1
        assert end.said == (
            f"{two.name(1)} differs from {two.name(0)}: CUBLAS_WORKSPACE_CONFIG :16:8 "
            f"({two.name(0)} has None)"
        )


@pytest.mark.parametrize("missing", [1, pytest.param(0, marks=pytest.mark.long)])
def test_one_that_never_starts_is_named(cluster, missing):
    two = cluster(2)
    end = two.ended(two.start(1 - missing, seconds=3.0))
    assert (end.code, end.said) == (138, f"{two.name(missing)} did not connect within 3 s")
    assert end.seconds < 30


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_is_killed_before_all_have_met_is_named(cluster, victim):
    three = cluster(3)
    killed, other = (three.start(index, seconds=12.0) for index in (victim, 1 - victim))
    for process in (killed, other):
        scripts.wait_for_line(process, "waiting for other workers")
    killed.kill()
    three.since = time.monotonic()
    for process in (other, three.start(2, seconds=12.0)):
        end = three.ended(process)
        assert end.code == 138 and end.said.startswith(three.name(victim))
        assert end.seconds < 40


def test_a_worker_that_waits_ends_at_once_when_it_is_asked_to(cluster):
    two = cluster(2)
    for number in (signal.SIGTERM, signal.SIGINT):
        process = two.start(0)
        scripts.wait_for_line(process, "waiting for other workers")
        two.since = time.monotonic()
        process.send_signal(number)
        end = two.ended(process)
        assert end.code == -number and end.seconds < 5


@pytest.mark.long
def test_a_port_that_is_taken_is_named(cluster):
    two = cluster(2)
    host, port = two.addresses[1].split(":")
    with socket.create_server((host, int(port))):
        chief, other = two.start(0, seconds=5.0), two.start(1, seconds=5.0)
        ends = two.ended(other), two.ended(chief)
    assert [end.code for end in ends] == [138, 138]
    assert ends[0].said == f"{two.name(1)} cannot listen on its port: another process does"
    assert ends[1].said == f"{two.name(1)} did not connect within 5 s"


@pytest.mark.long
def test_workers_with_other_lists_of_addresses_do_not_meet(cluster):
    three = cluster(3)
    chief = three.start(0, seconds=5.0)
    other = three.start(1, seconds=5.0, addresses=three.addresses[:2])
    end = three.ended(chief)
    assert (end.code, end.said) == (138, f"{three.name(2)} did not connect within 5 s")
    end = three.ended(other)
    assert end.code == 138 and "worker 2, which worker 0 waits for, is not among" in end.said


def test_a_second_process_with_the_same_index_ends_and_the_others_do_not(cluster):
    two = cluster(2)
    chief, other = two.start(0, at=1, act=4.0), two.start(1)
    wait_for_step(two, other, 1)
    end = two.ended(two.start(1))
    assert (end.code, "cannot listen on its port" in end.said) == (138, True)
    assert [two.ended(one).code for one in (chief, other)] == [0, 0]


def test_tensorflow_may_not_have_started_before(cluster):
    end = (one := cluster(2)).ended(one.start(0, is_early=True))
    assert end.code == 1 and end.said.startswith("TensorFlow has started before the workers")
