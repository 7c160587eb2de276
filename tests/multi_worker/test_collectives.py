"""Several processes make one step: the same bits as one process, in every kind of network."""

import functools
import json

import pytest
import toys
import worker_checks
from several import Workers

from towers import worker


@functools.cache
def alone(name: str, num_towers: int = 1) -> dict:
    """The oracle: one worker, in this process."""
    return worker_checks.KINDS[name](worker.Workers(), num_towers)


@pytest.fixture(
    scope="module",
    params=[(2, "some"), pytest.param((5, "all"), marks=pytest.mark.long)],
    ids=["two", "five"],
)
def of_workers(tmp_path_factory, request) -> list[dict]:
    """What each of so many workers found, with that WORKER_CHECKS of worker_checks."""
    count, which = request.param
    folder, workers = tmp_path_factory.mktemp("workers"), Workers(count)
    for index in range(count):
        workers.start(index, worker_checks.__file__, folder, WORKER_CHECKS=which)
    try:
        assert [workers.ended(index) for index in range(count)] == [(0, "")] * count
    finally:
        workers.kill()
    return [json.loads((folder / f"worker-{index}.json").read_text()) for index in range(count)]


def test_every_network_has_the_bits_of_one_worker(of_workers):
    for index, result in enumerate(of_workers):
        assert len(result["models"]) >= 2 and result["SIGINT"]  # Python's again
        for name, of_worker in result["models"].items():
            assert of_worker == alone(name), f"{name} on worker {index}"
        assert result["several_towers"] == alone("cifarnet")


def test_the_chiefs_first_weights_and_a_finished_run_are_those_of_all(of_workers):
    expected = worker_checks.own_run(worker.Workers())
    assert [result["own_run"] for result in of_workers] == [expected] * len(of_workers)


def test_another_order_of_additions_shows():
    # So that the tests above are of something.
    result = worker_checks.train(worker.Workers(), toys.small_cifarnet(), microbatch=4)
    assert result["losses"] != alone("cifarnet")["losses"]


def test_a_gradient_of_unknown_shape_is_refused(of_workers):
    for result in of_workers:
        assert "shapes must be known" in result["of_unknown_shape"]


def test_workers_that_do_something_else_are_named(of_workers):
    """Other calls, another batch, other weights, and one more call than the others."""
    for index, result in enumerate(of_workers):
        calls = ["a message", "the chief's state"]
        for message, of_chief in zip(result["at_odds"], calls, strict=True):
            assert message.startswith(f"worker {index} (") and of_chief in message
            assert f"worker {0 if index else 1} " in message
        batch, weights = result["of_others"]
        assert "worker 1" in batch and "batch" in batch
        assert "worker 1" in weights and "weights" in weights
        # It sees this itself, or hears of it from one that did.
        for named in ("worker 0 (", "'its end'", "'a message'"):
            assert named in result["at_the_end"]
