"""Several processes make one step: the same bits as one process, in every kind of network."""

import json
import subprocess
import sys

import pytest
import scripts
import toys
import worker_checks

from towers import collectives

pytestmark = pytest.mark.whole_program


def found_by(tmp_path_factory, count: int) -> list[dict]:
    """What each of `count` workers found."""
    folder = tmp_path_factory.mktemp(f"workers{count}")
    program = str(scripts.ROOT / "tests" / "worker_checks.py")
    launch = [sys.executable, "-m", "towers.launch", f"--workers={count}", "--", program]
    done = subprocess.run([*launch, str(folder)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
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
    return worker_checks.models(collectives.Alone())


@pytest.fixture(params=["of_two", "of_four"])
def of_workers(request):
    return request.getfixturevalue(request.param)


def test_every_network_has_the_bits_of_one_worker(alone, of_workers):
    for name, expected in alone.items():
        for index, found in enumerate(of_workers):
            assert found["models"][name] == expected, f"{name} on worker {index}"


def test_two_workers_of_two_towers_are_four_microbatches_too(of_two):
    for name in worker_checks.NETWORKS:
        expected = worker_checks.train(collectives.Alone(), getattr(toys, name)())
        assert [found["two_towers"][name] for found in of_two] == [expected] * 2


def test_a_ring_of_four_agrees_with_itself_and_nearly_with_the_tree(of_four):
    rings = [found["ring"] for found in of_four]
    tree = worker_checks.train(collectives.Alone(), toys.small_cifarnet())
    assert rings == [rings[0]] * 4
    losses = [[float.fromhex(loss) for loss in run["losses"]] for run in (rings[0], tree)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # So that the tests above are of something: another order of additions shows.
    assert rings[0]["state"]["weights"] != tree["state"]["weights"]


def test_the_chiefs_values_are_given_to_all(of_workers):
    expected = worker_checks.shared(collectives.Alone())
    assert [found["shared"] for found in of_workers] == [expected] * len(of_workers)


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
