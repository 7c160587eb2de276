"""Workers that begin a run together."""

import pytest

from towers import worker
from towers_cli import agreement


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_makes_first_and_the_others_wait_for_it(is_chief):
    done = []
    one = worker.SingleWorker()
    one.is_chief, one.from_chief = is_chief, lambda what, make: done.append(what)
    assert agreement.chief_first(one, "the data", lambda: done.append("made") or 7) == 7
    assert done == (["made", "the data"] if is_chief else ["the data", "made"])
