"""How long a step takes with each number of microbatches."""

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


def test_a_turn_lasts_as_long_as_it_should():
    class Slow:
        def train_step(self, *_):
            clock[0] += 0.4
            return result

    clock, result = [0.0], None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbatch_times.time, "perf_counter", lambda: clock[0])
        patch.setattr(microbatch_times, "_wait_for", lambda _: None)
        found = towers.time_microbatches(lambda _: Slow(), None, None, (2,), rounds=2)
    assert found == {2: pytest.approx([0.4, 0.4])}
    assert clock[0] == pytest.approx(0.4 * (2 + 2 * 3))  # the third step ends after one second


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({2: [1.0, 1.1, 1.2], 8: [2.0, 2.2, 2.4]}, (2, 2.0)),
        ({2: [1.0, 1.1, 2.1], 8: [2.0, 2.2, 2.4]}, None),  # turns overlap
        ({2: [3.0, 3.0, 3.0], 8: [2.0, 2.2, 2.4]}, None),
        ({2: [1.0, 1.1, 1.2], 4: [0.5, 0.5, 0.6], 8: [2.0, 2.0, 2.4]}, (4, 4.0)),
        ({8: [2.0, 2.0, 2.4]}, None),
    ],
)
def test_a_number_is_faster_where_its_slowest_turn_is(times, expected):
    found = microbatch_times.fastest(times, 8)
    assert found == (expected and (expected[0], pytest.approx(expected[1])))
