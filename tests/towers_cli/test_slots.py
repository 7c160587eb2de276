"""Which workers an elastic launcher can start, and which exit codes let it start them again."""

import pytest

from towers import worker_errors
from towers_cli import slots


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([3, 4], 3),
        ([0, 4], 4),
        ([0, 4, 5], 4),
        ([0, -9], 137),
        ([-15, 1], 1),  # it would come back
        ([-15, -9], 143),
        ([138, 1], 1),
        ([138, 138, -9], 137),
        ([138, 0, 138], 138),
        ([-10, 2], 2),  # SIGUSR1, by the watcher
    ],
)
def test_one_exit_code(codes, expected):
    assert slots.exit_code(codes) == expected


@pytest.mark.parametrize(
    ("codes", "asked", "expected"),
    [
        ([143, 1], [0], 1),  # the chief had to be ended after the error of the other
        ([143, 137, 138], [0], 137),
        ([143, 138], [0], 138),
        ([143, 0], [0], 143),
        ([0, 0], [0], 0),
    ],
)
def test_those_that_were_ended_say_least(codes, asked, expected):
    assert slots.exit_code(codes, asked) == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([143, 143], True), ([143, -15, 0, 138], True), ([143, -9], False), ([1, 143], False)],
)
def test_who_ended_as_asked(codes, expected):
    assert slots.ended_as_asked(codes) is expected


def test_the_code_is_that_of_the_error():
    assert worker_errors.GoneError.exit_code == slots.ANOTHER_IS_GONE


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([138, -9], True),
        ([143, 143], True),
        ([0, 138], True),
        ([-11, 138], True),
        ([138, 1], False),
        ([2, 2], False),
        ([-9, 1], False),
    ],
)
def test_what_may_be_tried_again(codes, expected):
    assert slots.may_be_tried_again(codes) is expected


@pytest.mark.parametrize(
    ("codes", "asked", "expected"),
    [
        ([138, -9, 138], [], [1]),
        ([-15, -9, -15], [0, 2], [1]),  # the others waited for it, and were ended
        ([138, -9], [1], []),  # it hung
        ([0, 138], [], []),
        ([143, -11], [], [0, 1]),
    ],
)
def test_places_are_lost_by_those_that_died_by_themselves(codes, asked, expected):
    assert slots.dead(codes, asked) == expected


class TestSlots:
    @pytest.fixture
    def clock(self):
        self.now = 0.0
        return lambda: self.now

    def test_are_all_there_at_first(self, clock):
        assert slots.Slots(3, 1, 60.0, clock).there() == [0, 1, 2]

    def test_come_back_after_a_while(self, clock):
        made = slots.Slots(3, 1, 60.0, clock)
        made.lose([1])
        assert made.there() == [0, 2]
        self.now = 59.0
        assert made.there() == [0, 2]
        self.now = 60.0
        assert made.there() == [0, 1, 2]

    def test_are_taken_early_where_too_few_are_left(self, clock):
        made = slots.Slots(3, 2, 60.0, clock)
        made.lose([2])
        self.now = 10.0
        made.lose([0, 1])
        assert made.there() == [0, 2]  # what was lost first comes first
