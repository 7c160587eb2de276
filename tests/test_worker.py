"""What a step asks of its workers: the single one, and what is built on all forms alike."""

import inspect

import pytest

from towers import worker, worker_errors
from towers.multi_worker import MultiWorker


@pytest.mark.parametrize("form", [worker.SingleWorker, MultiWorker])
def test_both_forms_have_all_that_is_asked_of_workers(form):
    asked = [name for name, _ in inspect.getmembers(worker.Workers, inspect.isfunction)]
    asked = {name for name in asked if not name.startswith("_")}
    assert asked >= {"join", "exchange", "from_chief", "broadcast", "all_gather"}
    for name in asked - ({"join"} if form is worker.SingleWorker else set()):
        parameters = [
            list(inspect.signature(getattr(one, name)).parameters) for one in (worker.Workers, form)
        ]
        assert parameters[0] == parameters[1], name


def test_what_no_worker_sends_is_one_sentence():
    worker_errors.check_fits(True, "worker 1")
    with pytest.raises(worker_errors.WorkerError, match="worker 1 has sent what no worker sends;"):
        worker_errors.check_fits(False, "worker 1")
