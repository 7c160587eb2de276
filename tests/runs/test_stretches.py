"""What a run ran on, stretch by stretch: by hand, and as train.py writes it down."""

from towers.runs import stretches

A, B = {"tensorflow": "2.21.0", "processor": "Zen"}, {"tensorflow": "2.22.0", "processor": "Zen"}


def test_one_more_where_a_run_goes_on_on_something_else():
    start = stretches.extended([], 0, A)
    assert start == [{"first_step": 0, "runs_on": A}]
    assert stretches.extended(start, 10, A) == start
    assert stretches.extended(start, 10, B) == [*start, {"first_step": 10, "runs_on": B}]


def test_a_stretch_that_left_nothing_is_forgotten():
    """A run goes on under B at step 10, is killed, and goes on under A from step 10 again."""
    both = stretches.extended(stretches.extended([], 0, A), 10, B)
    assert stretches.extended(both, 10, A) == [{"first_step": 0, "runs_on": A}]
    assert stretches.extended(both, 12, A) == [*both, {"first_step": 12, "runs_on": A}]


def test_changes_name_the_step_and_both_values():
    both = stretches.extended(stretches.extended([], 0, A), 10, B | {"XLA_FLAGS": "--x"})
    version, flags = stretches.changes(both)
    assert all(part in version for part in ("step 10", "tensorflow", "2.22.0", "2.21.0"))
    assert all(part in flags for part in ("step 10", "XLA_FLAGS", "--x"))
    assert stretches.changes(both[:1]) == []
