"""Several processes make one step: the same bits as one process, in every kind of network."""

import json
import os
import subprocess
import sys
import types

import forked
import numpy as np
import pytest
import scripts
import tensorflow as tf
import toys
import worker_checks

from towers import tower, worker
from towers.multi_worker import cluster, collectives
from towers_cli import launch


def found_by(tmp_path_factory, count: int, every: bool = False) -> list[dict]:
    """What each of `count` workers found; with `every`, in all networks."""
    folder = tmp_path_factory.mktemp(f"workers{count}")
    call = [sys.executable, str(scripts.ROOT / "tests/helpers/worker_checks.py"), str(folder)]
    everyone = {"worker": [f"127.0.0.1:{port}" for port in launch.free_ports(count)]}
    workers = []
    for index in range(count):
        config = {"cluster": everyone, "task": {"type": "worker", "index": index}}
        environment = os.environ | {
            "TF_CONFIG": json.dumps(config),
            "WORKER_CHECKS_ALL": str(int(every)),
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
def of_four(tmp_path_factory):
    return found_by(tmp_path_factory, 4)


@pytest.fixture(scope="module")
def alone():
    """The oracle: one worker, in this process."""
    return worker_checks.models(worker.SingleWorker())


@pytest.fixture(scope="module")
def all_of_two(tmp_path_factory):
    return found_by(tmp_path_factory, 2, every=True)


@pytest.fixture(scope="module")
def all_of_four(tmp_path_factory):
    return found_by(tmp_path_factory, 4, every=True)


@pytest.fixture(params=["of_two", "of_four", pytest.param("all_of_four", marks=pytest.mark.long)])
def of_workers(request):
    return request.getfixturevalue(request.param)


def test_every_network_has_the_bits_of_one_worker(alone, of_workers):
    for index, found in enumerate(of_workers):
        assert set(found["models"]) in ({"cifarnet"}, {"cifarnet", "resnet"}, set(alone))
        for name, of_worker in found["models"].items():
            assert of_worker == alone[name], f"{name} on worker {index}"


@pytest.mark.parametrize("fixture", ["of_two", pytest.param("all_of_two", marks=pytest.mark.long)])
def test_two_workers_of_two_towers_are_four_microbatches_too(request, fixture):
    of_workers = request.getfixturevalue(fixture)
    for name in of_workers[0]["two_towers"]:
        expected = worker_checks.train(worker.SingleWorker(), getattr(toys, name)())
        assert [found["two_towers"][name] for found in of_workers] == [expected] * 2


def test_a_ring_of_four_agrees_with_itself_and_nearly_with_the_tree(of_four):
    rings = [found["ring"] for found in of_four]
    tree = worker_checks.train(worker.SingleWorker(), toys.small_cifarnet())
    assert rings == [rings[0]] * 4
    losses = [[float.fromhex(loss) for loss in run["losses"]] for run in (rings[0], tree)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # So that the tests above are of something: another order of additions shows.
    assert rings[0]["state"]["weights"] != tree["state"]["weights"]


def test_the_chiefs_values_are_given_to_all(of_workers):
    expected = worker_checks.broadcast(worker.SingleWorker())
    assert [found["broadcast"] for found in of_workers] == [expected] * len(of_workers)


def test_all_know_after_the_same_step_that_one_was_asked_to_stop(of_workers):
    assert {tuple(found["stopped"]) for found in of_workers} == {(None, None, 15, 15, 15)}


def test_what_is_not_finite_is_named_by_all_and_nothing_is_updated(of_workers):
    last = len(of_workers) - 1
    said = f"step 1, tower {last}: the loss (cross_entropy) is not finite"
    assert [found["not_finite"] for found in of_workers] == [[said, True]] * len(of_workers)


def test_a_batch_has_to_be_a_workers_share(of_workers):
    count = len(of_workers)
    said = f"global_batch_size=16 / {count} workers; fill it up"
    assert all(said in found["wrong_size"] for found in of_workers)


def test_a_worker_without_examples_takes_part_in_an_evaluation(of_workers):
    expected = worker_checks.few_examples(worker.SingleWorker())
    assert [found["few_examples"] for found in of_workers] == [expected] * len(of_workers)


class TestWatched:
    """What an error of TensorFlow's between workers is turned into."""

    def workers(self, why, index=0):
        made = object.__new__(collectives.MultiWorker)
        made.cluster, made.index = cluster.Cluster(("a:1", "b:2", "c:3"), index), index
        made._channel = types.SimpleNamespace(why=lambda patience: why)
        return made

    @pytest.mark.parametrize(
        ("why", "message", "said"),
        [
            ("worker 2 is gone", "Socket closed", "worker 2 is gone"),
            (
                None,
                "unhealthy: /job:worker/replica:0/task:2 reported by /job:worker/task:0",
                "TensorFlow hears nothing of worker 2 (c:3) any more",
            ),
        ],
    )
    def test_it_names_the_worker(self, why, message, said):
        workers = self.workers(why)
        with pytest.raises(worker.WorkerError) as error, workers.watched():
            raise tf.errors.UnavailableError(None, None, message)
        assert str(error.value) == said

    @pytest.mark.parametrize(
        ("index", "said"),
        [
            (0, "TensorFlow has lost the connection to other workers (Deadline Exceeded)"),
            (1, "worker 0 (a:1) does not answer"),
        ],
    )
    def test_where_nobody_is_named(self, index, said):
        workers = self.workers(None, index)
        with pytest.raises(worker.WorkerError) as error, workers.watched():
            message = "At node x\nCollective ops is aborted by: Deadline Exceeded\nMore of it"
            raise tf.errors.DeadlineExceededError(None, None, message)
        assert str(error.value) == said

    @pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.InvalidArgumentError])
    def test_an_error_of_no_other_worker_stays_as_it_is(self, kind):
        with pytest.raises(kind), self.workers(None).watched():
            raise kind(None, None, "of something else")


def test_workers_join_what_has_none():
    own = tower.TowerResult([tf.ones([1])], {"total": tf.ones([2])}, None, None, [])
    joined = collectives._as_one_tower([own, own])
    assert joined.correct is None
    np.testing.assert_array_equal(joined.losses["total"], np.ones(4))
