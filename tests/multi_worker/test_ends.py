"""How workers end, and what the others then do: the table of docs/workers.md.

What ends by a heartbeat that is missed, or late, is long.
"""

import json
import os
import re
import signal
import socket
import time

import pytest
import scripts
import tensorflow as tf

from towers import errors
from towers.multi_worker import cluster, runtime

ENDS = scripts.ROOT / "tests/helpers/ends.py"


def start(workers, index: int, **wanted):
    """Starts one; `wanted` is as `ends.py` takes it."""
    return workers.start(index, ENDS, json.dumps(wanted))


def wait_for_step(workers, index: int, step: int) -> None:
    """From now on time is counted."""
    scripts.wait_for_line(workers.processes[index], f"step {step}")
    workers.begin()


def test_an_ordinary_end_beside_a_pause_and_garbage_on_the_ports(several):
    three = several(3)
    for index, (step, seconds) in enumerate(((3, 1.0), (9, 0.5), (9, 0.5))):
        start(three, index, at=step, act=seconds)
    wait_for_step(three, 0, 3)
    for address in three.addresses:
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(1000))
    three.processes[1].send_signal(signal.SIGSTOP)
    time.sleep(4)  # less than a heartbeat
    three.processes[1].send_signal(signal.SIGCONT)
    assert [three.ended(index) for index in range(3)] == [(0, "")] * 3


@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_is_killed_is_named_at_once(several, victim):
    three = several(3)
    for index in range(3):
        start(three, index, at=3, act="SIGKILL" if index == victim else 0.2)
    wait_for_step(three, victim, 3)
    for index in {0, 1, 2} - {victim}:
        code, text = three.ended(index)
        assert code == 138 and text.startswith(f"{three.name(victim)} died")
        assert three.seconds() < 20


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_hangs_is_named_when_it_misses_its_heartbeat(several, victim):
    two = several()
    start(two, victim, at=3, act="SIGSTOP")
    start(two, 1 - victim)
    wait_for_step(two, victim, 3)
    code, text = two.ended(1 - victim)
    assert code == 138 and text.startswith(two.name(victim))
    assert two.seconds() < 40


@pytest.mark.parametrize("culprit", [1, 0])
def test_the_others_are_told_of_an_error(several, culprit):
    two = several()
    start(two, culprit, at=3, act=["error", 0])
    start(two, 1 - culprit)
    code, text = two.ended(1 - culprit)
    assert code == 1 and text.startswith(two.name(culprit)) and text.endswith("my disk is full")
    assert two.ended(culprit)[0] == 1


def test_an_error_is_not_told_to_a_chief_that_hangs(several):
    """Which would be waited for."""
    two = several()
    start(two, 0, at=3, act="SIGSTOP")
    start(two, 1, at=3, act=["error", 1.0])
    wait_for_step(two, 0, 3)
    assert two.ended(1)[0] == 1 and two.seconds() < 20


def test_one_that_runs_on_something_else_is_refused_with_both_values(several):
    two = several()
    start(two, 0)
    two.start(1, ENDS, "{}", CUBLAS_WORKSPACE_CONFIG=":16:8")
    for index in range(2):
        code, text = two.ended(index)
        assert code == 1 and text.startswith(two.name(1))
        for piece in (two.name(0), "CUBLAS_WORKSPACE_CONFIG", ":16:8"):
            assert piece in text


@pytest.mark.parametrize("missing", [1, pytest.param(0, marks=pytest.mark.long)])
def test_one_that_never_starts_is_named(several, missing):
    two = several()
    process = start(two, 1 - missing, seconds=6.0)
    scripts.wait_for_line(process, "waiting for other workers")
    assert two.seconds() > 4
    code, text = two.ended(1 - missing)
    assert code == 138 and text.startswith(two.name(missing)) and "6 s" in text
    assert 6 + 3 < two.seconds() < 30  # it lingers: another may be slow to see what has happened


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 0])
def test_one_that_is_killed_before_all_have_met_is_named(several, victim):
    three = several(3)
    for index in (0, 1):
        start(three, index, seconds=12.0)
    for index in (0, 1):
        scripts.wait_for_line(three.processes[index], "waiting for other workers")
    three.processes[victim].kill()
    three.begin()
    start(three, 2, seconds=12.0)
    for index in (1 - victim, 2):
        code, text = three.ended(index)
        assert code == 138 and text.startswith(three.name(victim))
        assert three.seconds() < 40


def test_a_worker_that_waits_ends_at_once_when_it_is_asked_to(several):
    two = several()
    process = start(two, 0)
    scripts.wait_for_line(process, "waiting for other workers")
    two.begin()
    process.send_signal(signal.SIGTERM)
    assert two.ended(0)[0] == -signal.SIGTERM and two.seconds() < 5


def test_a_second_process_with_the_same_index_ends_and_the_others_do_not(several):
    two = several()
    start(two, 0, at=1, act=2.5)
    first = start(two, 1)
    wait_for_step(two, 1, 1)
    start(two, 1)
    code, text = two.ended(1)
    assert code == 138 and text.startswith(f"{two.name(1)} cannot listen on its port")
    two.processes[1] = first
    assert [two.ended(index)[0] for index in range(2)] == [0, 0]


def test_tensorflow_may_not_have_started_before(several):
    two = several()
    start(two, 0, is_early=True)
    code, text = two.ended(0)
    assert code == 1 and "TensorFlow" in text


TASK = "/job:worker/replica:0/task:"
TASKS = f"timed out task names:\n{TASK}{{}}\n{TASK}1\nAdditional GRPC"


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        ("Could not start gRPC server", ["0 (a:1)"]),
        (TASKS.format(1), ["1 (b:1)"]),
        (TASKS.format(0), ["0 (a:1)", "1 (b:1)"]),
        (TASKS.format(2), ["2", "0"]),  # which this one's cluster does not have
        ("no answer", ["0 (a:1)"]),
    ],
)
def test_who_has_not_come_is_named(failure, named):
    members = cluster.Cluster(("a:1", "b:1"), 0)
    why = runtime._why_not_met(failure, members, 7.0)
    assert re.findall(r"worker (\d(?: \(.*?\))?)", why) == named


@pytest.mark.parametrize(
    ("message", "kind", "named"),
    [
        (
            "x [worker 0 has ended] out of memory",
            errors.WorkerError,
            "worker 0 (a:1) has ended: out",
        ),
        ("Collective ops is aborted by: reset\nmore", errors.GoneError, "(reset)"),
        ("out of range", None, ""),
    ],
)
def test_an_error_of_another_worker_is_told_from_an_error_here(message, kind, named):
    error = tf.errors.InternalError(None, None, message)
    result = runtime.explain(error, cluster.Cluster(("a:1",), 0))
    assert type(result) is (kind or type(None)) and named in str(result)


def tf_config(jobs, kind="worker", index=0) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:x", "a b:1", "::1:80",
     "host:1:2", "host:１", "grpc://host:1", "[::1]:1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        cluster.Cluster((address, "b:1"), 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_of_no_worker_is_refused(index):
    with pytest.raises(ValueError, match=f"^index={index}: "):
        cluster.Cluster(("a:1", "b:1"), index)


def read(monkeypatch, text):
    """What a TF_CONFIG describes."""
    monkeypatch.setenv("TF_CONFIG", text)
    return cluster.from_tf_config()


@pytest.mark.parametrize(
    ("jobs", "kind", "index", "expected"),
    [
        ({"worker": ["a:1", "b:1", "c:1"]}, "worker", 2, 2),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "chief", 0, 0),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "worker", 1, 2),
    ],
)
def test_a_chief_comes_before_the_workers(jobs, kind, index, expected, monkeypatch):
    text = tf_config(jobs, kind, index)
    assert read(monkeypatch, text) == cluster.Cluster(("a:1", "b:1", "c:1"), expected)


@pytest.mark.parametrize(
    "text", ["", "{}", tf_config({"worker": ["a:1"]}), tf_config({"ps": ["a:1"]})]
)
def test_one_process_or_none_is_no_cluster(text, monkeypatch):
    assert read(monkeypatch, text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("{", "NaN", "null", '{"cluster": []}'),
        '{"cluster": {"worker": null}}',
        tf_config({"worker": ["a:1", "b:1"]}, index=2),
        tf_config({"worker": ["a:1", "b:1"]}, index=-1),
        tf_config({"worker": ["a:1", "b:1"]}, "evaluator"),
        tf_config({"worker": ["a:1", "b"]}),
        tf_config({"worker": ["a:1", 2]}),
        tf_config({"worker": {"1": "a:1", "3": "b:1"}}),
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": 3}',
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
    ],
)
def test_a_tf_config_that_is_none_is_refused(text, monkeypatch):
    with pytest.raises(ValueError, match="^TF_CONFIG: ") as error:
        read(monkeypatch, text)
    assert len(str(error.value)) < 300
