"""Lessons, from their definition: what they find, their pages, their command."""

import os
import re
import sys
import types

import forked
import numpy as np
import pytest
import scripts

from laboratory import data, findings
from lessons import __main__ as command
from lessons import (
    averaging,
    batch_norm,
    every,
    final_model,
    lesson,
    losses,
    memory,
    where_time_goes,
)
from lessons.where_time_goes import AHEAD, AT_ONCE, FIXED, NONE_AHEAD, SINGLE, STEP_BY_STEP

LESSONS = {one.name: one for one in every.LESSONS}
# What makes a lesson take seconds, on images that are drawn. (test_by_hand.py runs three more.)
SHORT = {
    "averaging": {"steps": 4, "epochs": 1, "examples": 640, "seeds": (0, 1)},
    "batch_norm": {"examples": 6_000, "to_estimate": 1_000},
    "final_model": {"examples": 10_000},
    "graph": {"network": data.small_cifarnet, "steps": 5},
    "memory": {"steps": 60, "processes": False},
    "scaling": {"towers": (1, 4, 16), "rules": ("fixed", "linear"), "accuracy": 0.60},
    "train_and_test_loss": {"examples": 500, "epochs": 50, "between": 10},
    "where_time_goes": {"turns": 1, "profiles": 2, "steps": 4, "processes": False},
}  # fmt: skip
LONG = SHORT.keys() - {"final_model", "graph"}
BY_HAND = {"batch_size", "elastic_averaging", "synchronous_or_not"}
RUN = [name for name in every.NAMES if name not in BY_HAND]
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in RUN]


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_finds_what_it_teaches_with_tables_an_answer_and_a_plot(name, tmp_path):
    finding = LESSONS[name].run(findings.Setup(shapes=True), **SHORT.get(name, {}))
    tables = ((finding.head, finding.rows), *finding.more)
    for (head, rows), text in zip(tables, finding.table().split("\n\n"), strict=True):
        lines = text.splitlines()
        assert len(lines) == len(rows) + 2
        assert {line.count("|") for line in lines} == {len(head) + 1}
    if name not in SHORT:
        page = LESSONS[name].page.read_text(encoding="utf-8")
        shown = page.split("<!-- table -->\n")[1].split("<!-- end -->")[0].splitlines()[2:]
        assert len(shown) == len(finding.rows)
        if name != "losses":  # whose numbers on the page are of real images
            assert f"**{finding.answer}**" in page
            for line, row in zip(shown, finding.rows, strict=True):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                # But for the museum's time of a step, which is another in each run.
                assert cells == row or cells[0] == row[0] == "9"
        if name == "museum":
            wrong, right = finding.numbers["seconds_over_towers"]
            assert 0 < wrong == right / 4
    assert len(finding.answer) > 40 and finding.answer.endswith(".")
    findings.save(finding, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    if name not in ("museum", "learning_rate"):  # whose numbers are those of their pages
        globals()[f"check_{name}"](finding.numbers)


def check_averaging(numbers):
    assert numbers["same"]  # 1, 2 and 4 towers, after every step
    gaps, first = numbers["gaps"], numbers["first"]
    # Rounding: the same two programs are closer in float64 by all that it is finer.
    assert gaps[f"{averaging.WHOLE}, float64"] < 1e-12 < first[f"{averaging.WHOLE}, float32"] < 1e-4
    assert min(far for name, far in gaps.items() if averaging.WHOLE not in name) > 1e-2
    assert first["sum instead of mean"] == pytest.approx(1.0, abs=1e-4)  # twice as far


def check_losses(numbers):
    np.testing.assert_allclose(numbers["total"], numbers["parts"], rtol=1e-6)
    assert np.ptp(numbers["decay"]) == 0 < numbers["decay"][0]
    np.testing.assert_allclose(numbers["collected"], np.cumsum(numbers["total"]), rtol=1e-6)
    assert len(numbers["total"]) == losses.TOWERS == 11


def check_graph(numbers):
    for k, built in numbers["built"].items():
        assert (built.building, built.running) == (k, 0)
        assert len(built.operations) == k
        assert min(built.operations) == max(built.operations) > 50
        assert (built.waiting, built.needed) == (0, k)
    assert all({0, 1} <= towers for towers in numbers["towers seen"])
    assert max(numbers["overlaps"][1]) < 0.01  # one by one they are not at work at once


def check_scaling(numbers):
    fixed, linear = numbers["examples"]["fixed"], numbers["examples"]["linear"]
    assert fixed[1] == linear[1]
    assert linear[4] < 2 * linear[1] < fixed[4]
    assert fixed[16] is None
    assert linear[16] is None or linear[16] > 2 * linear[1]  # and then it ends, too


def check_batch_norm(numbers):
    assert numbers["equal"] == {"gradients": True, "mean": True}
    off, wide = numbers["off"], numbers["wide"]
    of_towers = [off[f"tower {tower}'s"] for tower in range(batch_norm.TOWERS)]
    assert len(set(of_towers)) == batch_norm.TOWERS
    assert off[batch_norm.MEAN] < 0.97 * np.sqrt(np.mean(np.square(of_towers)))
    assert off[batch_norm.REESTIMATED] == 0
    # The mean of the variances leaves out how far the towers' batches are apart.
    assert wide[batch_norm.MEAN] < 1 == wide[batch_norm.REESTIMATED]
    assert min(numbers["accuracy"].values()) > 0.2  # chance is 0.1


def check_final_model(numbers):
    whole, mixed, by_class = numbers["whole"], numbers["of_nodes"], numbers["of_sorted"]
    for nodes, shares in mixed.items():
        assert len(shares) == nodes and sum(n for n, _ in shares) == whole.count
        assert final_model.together(shares) == pytest.approx(whole.accuracy, abs=1e-12)
    shares = [share for of_nodes in mixed.values() for share in of_nodes]
    assert final_model.covering(shares, whole) >= 0.8 * len(shares)
    assert final_model.spread(by_class, whole) > 2 * final_model.spread_by_chance(by_class, whole)


def check_train_and_test_loss(numbers):
    ends = {name: [run.points[-1] for run in runs] for name, runs in numbers["runs"].items()}
    shown = {name: np.mean([point.shown for point in of]) for name, of in ends.items()}
    on_test = {name: np.mean([point.test.loss for point in of]) for name, of in ends.items()}
    assert numbers["lowest"] == "plain"
    assert shown["weight decay"] > 2 * shown["plain"]
    assert shown["distortions"] > 10 * shown["plain"]
    assert on_test["distortions"] < 0.9 * on_test["plain"]


def check_memory(numbers):
    ends = {name: np.mean(curve[-10:]) for name, curve in numbers["curves"].items()}
    assert ends[memory.AT_MEAN] == pytest.approx(np.log(10), abs=0.05)  # it learns nothing
    assert ends[memory.GRADIENT] < np.log(10) - 0.2


def check_where_time_goes(numbers):
    steps, rates = numbers["steps"], numbers["rates"]
    assert set(steps) == set(where_time_goes.TRAINED)
    for step in steps.values():
        assert min(step) >= 0 and step.compute == max(step)
    assert steps[1, FIXED].input < 0.1  # the batch is there
    assert rates[AHEAD] > 3 * max(rates[SINGLE], rates[NONE_AHEAD])
    loop, at_once = (numbers["launches"][name] for name in (STEP_BY_STEP, AT_ONCE))
    assert loop.operations > 10 * where_time_goes.TIME_STEPS > 100 > at_once.operations
    assert loop.milliseconds > 3 * at_once.milliseconds


def test_what_was_found_is_shown_drawn_and_written_between_the_marks(tmp_path, capsys):
    parts = ("answer", "claim", "table", "conditions", "code lessons/lesson.py source")
    page, figure = tmp_path / "a.md", tmp_path / "figures/a.png"
    page.write_text("".join(f"<!-- {part} -->\nold\n<!-- end -->\n" for part in parts))
    finding = findings.Finding(["a"], [["1"]], {}, lambda figure: None, "", "It is.", "So.")
    run = types.SimpleNamespace(question="Is it?", run=lambda _: finding, page=page, figure=figure)
    command.show(run, findings.Setup(), write=True)
    written, said = page.read_text(), capsys.readouterr().out
    expected = "**It is.**", "So.", finding.table(), "(", "```python\ndef source("
    assert [text for text in expected if f"\n{text}" not in f"\n{written}"] == []
    assert "old" not in written and '"""' not in written
    assert re.search("; nothing is trained; .*; 10 s[)]$", findings.conditions(finding, 9.6))
    assert all(text in said for text in ("Is it?", "It is.", "So.", finding.table(), str(figure)))
    assert figure.exists()
    with pytest.raises(ValueError, match="sauce"):
        lesson.source(lesson.ROOT / "lessons/lesson.py", "sauce")


def test_every_lesson_has_a_page_with_its_question_and_figure_and_is_listed():
    listed = (lesson.PAGES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (.*) \|$", listed, re.M)
    assert rows == [(one.name, one.name, one.question) for one in every.LESSONS]
    assert {path.stem for path in lesson.PAGES.glob("*.md")} == {*LESSONS, "README"}
    for one in every.LESSONS:
        page = one.page.read_text(encoding="utf-8")
        assert one.question in " ".join(page.replace(">", "").split())
        assert f"](../figures/{one.figure.name})" in page


@pytest.mark.whole_program
class TestCommand:
    def run(self, folder, *arguments):
        path = os.environ | {"PYTHONPATH": str(scripts.ROOT)}
        call = [sys.executable, "-m", "lessons", *arguments]
        return forked.run(call, timeout=120, cwd=folder, env=path)

    def test_runs_one(self, tmp_path):
        done = self.run(tmp_path, "learning_rate")
        assert (done.returncode, done.stderr) == (0, "")
        assert LESSONS["learning_rate"].run(findings.Setup()).table() in done.stdout
        assert (tmp_path / "runs/lessons/learning_rate.png").exists()

    def test_lists_them(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["lessons"])
        assert command.main() == 0
        lines = zip(capsys.readouterr().out.splitlines(), every.LESSONS, strict=True)
        assert all(line.split()[0] == one.name and one.question in line for line, one in lines)

    @pytest.mark.parametrize("arguments", [("all", "--data_dir=."), ("avaraging",)])
    def test_refuses_what_is_not_there(self, tmp_path, arguments):
        done = self.run(tmp_path, *arguments)
        assert done.returncode == 2
        assert arguments[-1] in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_the_small_network_s_multiplications_have_a_row_for_each_time_step():
    """All factors are 1, so a gradient of the sum counts the rows."""
    for gradient in where_time_goes.multiplications()():
        rows = where_time_goes.TIME_STEPS * where_time_goes.SEQUENCES
        np.testing.assert_array_equal(gradient, rows)
