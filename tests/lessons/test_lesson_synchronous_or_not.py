"""The lesson on waiting: who is there first, who needs fewest examples, and what turns it round."""

import lesson_checks
import pytest

from lessons import synchronous_or_not
from lessons.synchronous_or_not import IN_SHORT

LESSON = synchronous_or_not.LESSON
EQUAL, LAGGING, FAR = IN_SHORT["settings"]


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(glance, tmp_path):
    lesson_checks.check_finding(glance, tmp_path)


@pytest.mark.long
def test_with_equal_workers_not_waiting_gains_nothing(numbers):
    of_rule = {rule: time for (setting, rule), time in numbers["time"].items() if setting == EQUAL}
    # One seed, whose last bits are the processor's: on one of AVX2 backup workers are 6 % sooner.
    assert of_rule["synchronous"] < 1.1 * min(of_rule["backup_workers"], of_rule["asynchronous"])


@pytest.mark.long
def test_synchronous_needs_the_same_examples_whoever_is_slow(numbers):
    examples = {numbers["examples"][setting, "synchronous"] for setting in (EQUAL, LAGGING, FAR)}
    assert len(examples) == 1
    # So a straggler that takes 4 costs just that, and slow messages do, too.
    steps = examples.pop() / (16 * IN_SHORT["workers"])
    for setting, seconds in ((EQUAL, 1.2), (LAGGING, 4.2), (FAR, 5.0)):
        assert numbers["time"][setting, "synchronous"] == pytest.approx(steps * seconds)


@pytest.mark.long
def test_a_straggler_turns_it_round(numbers):
    time = numbers["time"]
    # Those that do not wait are nearly as soon there as without a straggler.
    for rule in ("backup_workers", "asynchronous"):
        assert time[LAGGING, rule] < 1.3 * time[EQUAL, rule]
    assert time[LAGGING, "synchronous"] > 2 * time[LAGGING, "asynchronous"]


@pytest.mark.long
def test_with_slow_messages_talking_less_often_wins(numbers):
    time, examples = numbers["time"], numbers["examples"]
    others = [time[FAR, rule] for rule in ("synchronous", "backup_workers", "asynchronous")]
    assert time[FAR, "local_sgd"] < 0.7 * min(others)
    assert examples[FAR, "local_sgd"] > examples[FAR, "synchronous"]


@pytest.mark.long
def test_asynchronous_gradients_of_equal_workers_are_k_minus_one_stale(numbers):
    staleness = numbers["staleness"][EQUAL, "asynchronous"]
    late = staleness.pop(IN_SHORT["workers"] - 1)
    assert staleness == dict.fromkeys(range(IN_SHORT["workers"] - 1), 1)
    assert late > 100
    assert set(numbers["staleness"][LAGGING, "synchronous"]) == {0}


@pytest.mark.long
def test_the_claim_says_who_was_first_within_an_evaluation(finding, numbers):
    of_rules = IN_SHORT["rates"]
    for setting in (EQUAL, LAGGING, FAR):
        times, examples = (
            {rule: numbers[what][setting, rule] for rule in of_rules}
            for what in ("time", "examples")
        )
        first = synchronous_or_not.together(times, examples)
        said = finding.claim.split(f"With {setting} th")[1].split(". ")[0]
        named, _, beside = said.partition(": ")[2].partition(" (")
        assert named == ", ".join(first)
        assert beside == (
            "" if setting == EQUAL else f"synchronous: after {times['synchronous']:.0f})"
        )


def test_first_are_all_within_an_evaluation_of_the_first():
    times = {"a": 100.0, "b": 105.0, "c": 107.0}
    examples = {"a": 20_000, "b": 30_000, "c": 10}  # an evaluation every 6 of a's time
    assert synchronous_or_not.together(times, examples) == ["a", "b"]


def test_where_no_rule_arrives_the_claim_says_so():
    reached = dict.fromkeys(((EQUAL, "synchronous"), (EQUAL, "asynchronous")))
    of_rules = ("synchronous", "asynchronous")
    nobody = synchronous_or_not.claim(reached, {}, (EQUAL,), of_rules, 0.9, 4)
    assert nobody == f"4 workers raced to 90% of the test images. With {EQUAL} no rule came there."


@pytest.mark.parametrize(
    ("of_straggler", "says"),
    [
        ((40.0, 45.0), "where one was slow, it gained time, and so did one backup worker."),
        ((95.0, 105.0), "where one was slow, it gained nothing either."),
    ],
)
def test_the_answer_is_computed_from_every_seed(of_straggler, says):
    def reached(soonest, latest):
        return synchronous_or_not.Reached((soonest + latest) / 2, 1_000, soonest, latest)

    found = {
        (EQUAL, "synchronous"): reached(50.0, 60.0),
        (EQUAL, "asynchronous"): reached(55.0, 65.0),
        (LAGGING, "synchronous"): reached(100.0, 110.0),
        (LAGGING, "asynchronous"): reached(*of_straggler),
        (LAGGING, "backup_workers"): reached(*of_straggler),
    }
    answer = synchronous_or_not.answer(found)
    assert "where workers were equal, not waiting gained nothing" in answer
    assert answer.endswith(says)


def test_a_rule_that_a_seed_does_not_bring_there_is_not_there():
    run = synchronous_or_not.simulation.run(
        "synchronous",
        synchronous_or_not.rules.RULES["synchronous"](0.1),
        synchronous_or_not.problems.Parabola(),
        synchronous_or_not.speeds.Speeds("constant", 2),
        until=10.0,
    )
    assert synchronous_or_not.reached_by([run], accuracy=2.0) is None


def test_the_time_lines_show_who_waits():
    def busy(rule, worker):
        return sum(one.end - one.begin for one in lines[rule] if one.worker == worker)

    lines = {rule: synchronous_or_not.time_line(rule) for rule in synchronous_or_not.DRAWN}
    last = synchronous_or_not.LANES - 1  # the straggler
    assert busy("synchronous", 0) < 0.3 * busy("synchronous", last)  # waits three quarters
    for rule in ("backup_workers", "asynchronous"):
        assert busy(rule, 0) > 0.7 * busy(rule, last)
