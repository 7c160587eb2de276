"""How long a step takes with each number of microbatches."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

import towers
from towers.runs import microbatch_times


def test_every_number_has_a_trainer_of_its_own_and_its_turns():
    made = {}

    def make_trainer(number):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.1)
        made[number] = towers.Trainer(
            model, optimizer, towers=1, global_batch_size=8, num_microbatches=number
        )
        return made[number]

    inputs, labels = np.ones((8, 3), np.float32), np.zeros(8, np.int32)
    found = towers.time_microbatches(make_trainer, inputs, labels, (2, 4), seconds=0.01, rounds=3)
    assert list(found) == list(made) == [2, 4]
    assert all(len(times) == 3 and min(times) > 0 for times in found.values())
    assert [made[n].num_microbatches for n in made] == [2, 4]
    for trained in made.values():  # two steps to warm up, and one or more in each turn
        assert int(trained.state.step) >= 2 + 3


class Slow:
    """In place of a trainer: steps of 0.4 s of a clock of its own, done once they are read."""

    def __init__(self, number, clock, order, count=1):
        self.state = SimpleNamespace(model=object())
        self.workers = SimpleNamespace(count=count)
        self._number, self._clock, self._order = number, clock, order

    def train_step(self, *_):
        self._order.append(self._number)
        assert len(self._order) < 100, "the clock stands still"

        def read():
            self._clock[0] += 0.4

        return SimpleNamespace(losses={"total": SimpleNamespace(numpy=read)})


def test_numbers_take_turns_of_as_many_seconds(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(microbatch_times.time, "perf_counter", lambda: clock[0])
    found = towers.time_microbatches(
        lambda number: Slow(number, clock, order), None, None, (2, 4), rounds=2
    )
    assert found == {2: pytest.approx([0.4, 0.4]), 4: pytest.approx([0.4, 0.4])}
    # Two steps to warm up; the third step of a turn ends after its one second.
    assert order == [2] * 2 + [4] * 2 + ([2] * 3 + [4] * 3) * 2


def test_what_cannot_be_compared_is_refused():
    one = Slow(2, [0.0], [])
    with pytest.raises(ValueError, match="a new model each time"):
        towers.time_microbatches(lambda _: one, None, None, (2, 4))
    with pytest.raises(ValueError, match="times are of one worker"):
        towers.time_microbatches(lambda n: Slow(n, [0.0], [], count=2), None, None, (2, 4))
    with pytest.raises(ValueError, match="rounds=0: must be at least 1"):
        towers.time_microbatches(lambda n: Slow(n, [0.0], []), None, None, rounds=0)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({2: [1.0, 1.1, 1.2], 8: [2.0, 2.2, 2.4]}, (2, 2.0)),
        ({2: [1.0, 1.1, 2.1], 8: [2.0, 2.2, 2.4]}, None),  # turns overlap
        ({2: [3.0, 3.0, 3.0], 8: [2.0, 2.2, 2.4]}, None),
        ({2: [1.0, 1.1, 1.2], 4: [0.5, 0.5, 0.6], 8: [2.0, 2.0, 2.4]}, (4, 4.0)),
        ({8: [2.0, 2.0, 2.4]}, None),
        # The least median is not that of the number that is faster in every turn.
        ({2: [1.0, 1.0, 2.1], 4: [1.1, 1.1, 1.2], 8: [2.2, 2.0, 2.2]}, (4, 2.0)),
    ],
)
def test_a_number_is_faster_where_its_slowest_turn_is(times, expected):
    found = microbatch_times.fastest_microbatches(times, 8)
    assert found == (expected and (expected[0], pytest.approx(expected[1])))
