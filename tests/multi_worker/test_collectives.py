"""Several processes make one step: the same bits as one process, in every kind of network."""

import functools
import json
import os
import subprocess
import sys

import forked
import pytest
import scripts
import tensorflow as tf
import toys
import worker_checks

from towers import multi_worker, worker
from towers.multi_worker import cluster, collectives
from towers_cli import launch


def found_by(tmp_path_factory, count: int, which: str = "") -> list[dict]:
    """What each of `count` workers found; `which` is WORKER_CHECKS of worker_checks."""
    folder = tmp_path_factory.mktemp(f"workers{count}")
    call = [sys.executable, str(scripts.ROOT / "tests/helpers/worker_checks.py"), str(folder)]
    everyone = {"worker": [f"127.0.0.1:{port}" for port in launch.free_ports(count)]}
    workers = []
    for index in range(count):
        config = {"cluster": everyone, "task": {"type": "worker", "index": index}}
        environment = os.environ | {
            "TF_CONFIG": json.dumps(config),
            "WORKER_CHECKS": which,
        }
        workers.append(forked.Popen(call, env=environment, stderr=subprocess.PIPE, text=True))
    for one in workers:
        _, stderr = one.communicate(timeout=400)
        assert one.returncode == 0, stderr
    paths = [folder / f"worker-{index}.json" for index in range(count)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return found_by(tmp_path_factory, 2)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    return found_by(tmp_path_factory, 3)


@pytest.fixture(scope="module")
def of_five(tmp_path_factory):
    return found_by(tmp_path_factory, 5)


@functools.cache
def alone(name: str) -> dict:
    """The oracle: one worker, in this process."""
    return worker_checks.KINDS[name](worker.SingleWorker())


@pytest.fixture(scope="module")
def all_of_five(tmp_path_factory):
    return found_by(tmp_path_factory, 5, "all")


@pytest.fixture(
    params=[
        "of_two",
        pytest.param("of_three", marks=pytest.mark.long),
        pytest.param("of_five", marks=pytest.mark.long),
        pytest.param("all_of_five", marks=pytest.mark.long),
    ]
)
def of_workers(request):
    return request.getfixturevalue(request.param)


def test_every_network_has_the_bits_of_one_worker(of_workers):
    have_the_bits_of_one(of_workers)


def have_the_bits_of_one(of_workers):
    for index, found in enumerate(of_workers):
        assert found["models"]
        for name, of_worker in found["models"].items():
            assert of_worker == alone(name), f"{name} on worker {index}"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([3], [[0]]),
        ([1, 1, 1], [[2, 1, 0]]),  # less than a part
        ([10, 40, 10], [[2, 1], [0]]),  # 50, which is more than a part, and what is left
        ([5] * 12, [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]),
        ([20, None, 30], [[2], [0]]),
    ],
)
def test_gradients_travel_in_parts_those_of_the_last_weights_first(monkeypatch, sizes, expected):
    monkeypatch.setattr(collectives, "_LEAST_BYTES_OF_A_PART", 4 * 22)
    found = collectives._in_parts([None if n is None else tf.zeros([n]) for n in sizes])
    assert found == expected


def test_the_parts_of_each_type_are_few(monkeypatch):
    monkeypatch.setattr(collectives, "_LEAST_BYTES_OF_A_PART", 1)
    rows = tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    sums = [tf.zeros([2]), rows, *[tf.zeros([2], tf.float64)] * 3, *[tf.zeros([2])] * 100]
    parts = collectives._in_parts(sums)
    assert sorted(place for part in parts for place in part) == [0, *range(2, 105)]
    assert [len({sums[place].dtype for place in part}) for part in parts] == [1] * len(parts)
    assert len(parts) <= collectives._MOST_PARTS + 1  # some end early, with their type


def test_workers_may_have_any_number_of_towers_each(of_two):
    assert [found["several_towers"] for found in of_two] == [alone("cifarnet")] * 2


def test_another_order_of_additions_shows():
    # So that the tests above are of something.
    found = worker_checks.train(worker.SingleWorker(), toys.small_cifarnet(), microbatch=4)
    assert found["losses"] != alone("cifarnet")["losses"]


def test_the_chiefs_values_are_given_to_all(of_workers):
    expected = worker_checks.broadcast(worker.SingleWorker())
    assert [found["broadcast"] for found in of_workers] == [expected] * len(of_workers)


def test_messages_of_any_length_reach_all(of_workers):
    count = len(of_workers)
    expected = [[[index, None, 500 * index] for index in range(count)], {"a": [0, 0.1]}]
    assert [found["messages"] for found in of_workers] == [expected] * count
    alone = worker_checks.messages(worker.SingleWorker())
    assert alone == [[[0, None, 0]], {"a": [0, 0.1]}]


def test_all_know_after_the_same_step_that_one_was_asked_to_stop(of_workers):
    assert {tuple(found["stopped"]) for found in of_workers} == {(None, None, 15, 15, None)}


def test_workers_that_make_different_calls_are_named(of_workers):
    for index, found in enumerate(of_workers):
        for said, of_chief in zip(
            found["at_odds"], ["a message", "the chief's state"], strict=True
        ):
            other = f"worker {0 if index else 1} "
            assert said.startswith(f"worker {index} (") and other in said
            assert of_chief in said


def test_a_worker_that_goes_on_beyond_the_others_end_is_named(of_workers):
    for index, found in enumerate(of_workers):
        mine, others = ("a message", "its end") if index else ("its end", "a message")
        assert f"worker {index} (" in found["at_the_end"]
        assert repr(mine) in found["at_the_end"] and repr(others) in found["at_the_end"]


def test_a_run_that_has_finished_gives_all_workers_its_weights(of_workers):
    expected = worker_checks.own_run(worker.SingleWorker())
    assert expected[0] == expected[1]
    assert [found["own_run"] for found in of_workers] == [expected] * len(of_workers)


@pytest.mark.parametrize("members", [None, cluster.Cluster(("a:1",), 0)])
def test_one_worker_needs_nobody(members):
    with multi_worker.meet(members) as workers:
        assert isinstance(workers, worker.SingleWorker)
