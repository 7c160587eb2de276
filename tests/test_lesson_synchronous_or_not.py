"""The lesson on waiting: who is there first, who needs fewest examples, and what turns it round."""

import lesson_checks

from lessons import synchronous_or_not
from lessons.synchronous_or_not import IN_SHORT

LESSON = synchronous_or_not.LESSON
EQUAL, LAGGING = IN_SHORT["settings"]


def test_is_a_table_a_claim_and_a_plot(finding, tmp_path):
    lesson_checks.check_finding(finding, tmp_path)


def test_with_equal_workers_not_waiting_gains_nothing(numbers):
    of_rule = {rule: time for (setting, rule), time in numbers["time"].items() if setting == EQUAL}
    assert of_rule["synchronous"] == min(of_rule.values())


def test_a_straggler_turns_it_round(numbers):
    time = numbers["time"]
    # Backup workers are as soon there as without a straggler, asynchronous workers nearly so.
    assert time[LAGGING, "backup_workers"] == time[EQUAL, "backup_workers"]
    assert time[LAGGING, "asynchronous"] < 1.3 * time[EQUAL, "asynchronous"]
    assert time[LAGGING, "synchronous"] is None or (
        time[LAGGING, "synchronous"] > 2 * time[LAGGING, "backup_workers"]
    )


def test_asynchronous_gradients_of_equal_workers_are_k_minus_one_stale(numbers):
    staleness = numbers["staleness"][EQUAL, "asynchronous"]
    late = staleness.pop(IN_SHORT["workers"] - 1)
    assert staleness == dict.fromkeys(range(IN_SHORT["workers"] - 1), 1)
    assert late > 100
    assert set(numbers["staleness"][LAGGING, "synchronous"]) == {0}


def test_the_claim_says_who_was_first_and_what_was_not_reached(finding):
    assert f"With {EQUAL} synchronous was there first" in finding.claim
    assert f"With {LAGGING} backup_workers was there first" in finding.claim
    assert "(synchronous: not there at the end)" in finding.claim
    nobody = synchronous_or_not.claim(
        dict.fromkeys(((EQUAL, "synchronous"), (EQUAL, "asynchronous"))),
        {},
        (EQUAL,),
        ("synchronous", "asynchronous"),
        0.9,
        4,
    )
    assert nobody == f"4 workers raced to 90% of the test images. With {EQUAL} no rule came there."


def test_synchronous_needs_the_same_examples_whoever_is_slow():
    """In the published run, too, whose table is on the page."""
    page = LESSON.page.read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| synchronous ")]
    examples = {cell.split("(")[1].split(")")[0] for cell in row.split("|")[2:-1]}
    assert len(examples) == 1
