"""The museum of old faults: each gives the wrong number that it should, and the right one."""

import dataclasses
import inspect
import re

import lesson_checks
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
import pytest

from laboratory import findings
from lessons import lesson, museum

# Exhibit to (wrong, right), worked out by hand.
EXPECTED = {
    # decay_steps = int(50,000 / 128 * 350) = 136,718, of 512 examples here; and the first whole
    # step that has seen 350 epochs.
    "decay_by_steps": (136_718 * 512 / 50_000, -(-350 * 50_000 // 512) * 512 / 50_000),
    # The decay of step 0 is 0.1: 0.1 * 1 + 0.9 * 1, and 0.1 * 1 + 0.9 * 0.5.
    "average_before_update": (1.0, pytest.approx(0.55, rel=1e-6)),
    # The mean of 1 and 2; the gradient is the same, and leaves 1 - 0.5 * 1.5 of the weight for the
    # mean of 3 and 4.
    "summary_of_next_batch": ((1 - 0.5 * 1.5) * 3.5, 1.5),
    # 112 of 10,000 are wrong, and with 112 more, which come twice, 224 of 10,112.
    "queue_starts_over": (
        pytest.approx(100 * (1 - 224 / 10_112), rel=1e-12),
        pytest.approx(100 * (1 - 112 / 10_000), rel=1e-7),  # Keras counts in float32
    ),
    "flag_of_type_bool": (True, False),
    "losses_of_all_towers": (1.0 + 2.0 + 3.0 + 4.0, 4.0),
    "decay_on_one_tower": (0.5 / 4, 0.5),
    "decay_added_again": ((1 + 2 + 3 + 4) * 0.5 / 4, 0.5),
    "rows_of_one_tower": ((1.0 + 3.0) / 2, 1.0 / 2),
    "sum_for_mean": (1.0 + 2.0 + 3.0 + 6.0, (1.0 + 2.0 + 3.0 + 6.0) / 4),
    "statistics_of_one_tower": ((9 + 11) / 2, (9 + 11 + 18 + 22) / 4),
    "clipped_before_the_sum": (1.0 + 1.0, 1.0),
    "mean_of_uneven_means": ((0.5 + 2.5) / 2, (3 * 0.5 + 2.5) / 4),
    "data_from_the_top": (600, 1_000),
    "same_images_twice": (100, 200),
}


LESSON = museum.LESSON


@pytest.mark.long
def test_is_a_table_a_claim_and_a_plot(finding, tmp_path):
    lesson_checks.check_finding(finding, tmp_path)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_gives_its_number_and_this_package_the_right_one(finding, name):
    assert finding.numbers[name] == EXPECTED[name]


def test_the_time_of_a_step_is_divided_by_four(finding):
    wrong, right = finding.numbers["seconds_over_towers"]
    assert 0 < wrong == right / 4


def test_every_exhibit_is_shown_and_expected():
    made = [
        function
        for _, function in inspect.getmembers(museum, inspect.isfunction)
        if function.__annotations__.get("return") is museum.Exhibit
    ]
    assert sorted(museum.EXHIBITS, key=str) == sorted(made, key=str)
    names = {function.__name__ for function in museum.EXHIBITS}
    assert names == {*EXPECTED, "seconds_over_towers"}


def test_rows_are_those_of_the_pitfalls_in_their_order(finding):
    pitfalls = (lesson.ROOT / "docs/pitfalls.md").read_text(encoding="utf-8")
    there = {int(number) for number in re.findall(r"^\| (\d+) \|", pitfalls, re.M)}
    rows = [[int(number) for number in row[0].split(", ")] for row in finding.rows]
    assert rows == sorted(rows)
    assert {number for row in rows for number in row} <= there
    assert len(rows) == len(museum.EXHIBITS)


def test_the_claim_counts_what_was_found(finding):
    assert finding.claim == (
        "None of the 16 old ways stops with an error, and all give another number than this "
        "package. 8 give one that is too large, by up to 4 times, and 7 one that is too small, "
        "down to 25% of the right one."
    )


def test_a_number_that_is_right_is_not_counted(monkeypatch):
    right = museum.sum_for_mean()
    wrong = [dataclasses.replace(right, wrong=number) for number in (3.0, 6.0, 9.0, 1.5)]
    made = [lambda exhibit=exhibit: exhibit for exhibit in wrong]
    for number, function in enumerate(made):
        function.__name__ = f"exhibit_{number}"
    monkeypatch.setattr(museum, "EXHIBITS", made)
    claim = museum.run(findings.Setup()).claim
    assert "None of the 4 old ways" in claim and "and 3 give another number" in claim
    assert "2 give one that is too large, by up to 3 times, and 1 one that is too small" in claim


def test_the_page_has_what_comes_out(finding):
    page = museum.LESSON.page.read_text(encoding="utf-8")
    assert f"<!-- claim -->\n{finding.claim}\n<!-- end -->" in page
    table = page.split("<!-- table -->\n")[1].split("<!-- end -->")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    # But for the time of a step, which is another in each run.
    assert [row for row in rows if row[0] != "9"] == [row for row in finding.rows if row[0] != "9"]


def test_the_plot_has_all_but_the_flag_and_cuts_no_text_off(finding):
    figure = matplotlib.figure.Figure(figsize=(8.5, 4.2), dpi=100, layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    finding.draw(figure)
    figure.canvas.draw()
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    shown = {row[1]: row for row in finding.rows if row[0] != "18"}
    assert sorted(labels) == sorted(shown)
    *_, wrong, right = zip(*(shown[label] for label in labels), strict=True)
    ratios = [
        float(a.replace(",", "")) / float(b.replace(",", ""))
        for a, b in zip(wrong, right, strict=True)
    ]
    assert np.all(np.diff(ratios) > -1e-3)  # from too small to too large; times are rounded
    for text in [*axes.texts, *axes.get_yticklabels(), *axes.get_xticklabels(), axes.title]:
        extent = text.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= 850 and 0 <= extent.y0 < extent.y1 <= 420, text
