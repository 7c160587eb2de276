"""What a step asks of its workers: the single one, and what is built on all forms alike."""

import inspect

import pytest

from towers import worker, worker_errors
from towers.multi_worker import MultiWorker


@pytest.mark.parametrize("form", [worker.SingleWorker, MultiWorker])
def test_both_forms_have_all_that_is_asked_of_workers(form):
    asked = [name for name, _ in inspect.getmembers(worker.Workers, inspect.isfunction)]
    asked = {name for name in asked if not name.startswith("_")}
    assert asked >= {"join", "exchange", "from_chief", "broadcast"}
    for name in asked - ({"join"} if form is worker.SingleWorker else set()):
        parameters = [
            list(inspect.signature(getattr(one, name)).parameters) for one in (worker.Workers, form)
        ]
        assert parameters[0] == parameters[1], name


class Two(worker.SingleWorker):
    """The chief of two workers, of which the other has its own values."""

    def __init__(self, other: dict):
        self._other = other

    def exchange(self, what, message):
        return [message, self._other]


def test_what_differs_is_named_with_both_values():
    own = {"seed": 0, "decay": None, "batch": 8}
    worker.check_same(Two(own), "settings", own)
    with pytest.raises(worker_errors.WorkerError) as error:
        worker.check_same(
            Two({"seed": 1, "batch": 8, "more": [1, 2]}), "settings", own, "--{}=".format
        )
    assert str(error.value) == (
        "worker 1 differs from worker 0: --seed=1 (worker 0 has 0); --more=1,2 (worker 0 has None)"
    )


def test_one_worker_differs_from_nobody():
    worker.check_same(worker.SingleWorker(), "settings", {"seed": 0})
