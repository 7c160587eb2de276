"""The comparison of one task in four systems: what the page shows is what was measured."""

import ast
import json
import sys

import pytest
import scripts

from benchmarks.own_task import __main__ as own_task

MEASURED = scripts.ROOT / "docs/measurements/own_task.jsonl"


def test_the_page_shows_what_was_measured():
    page = (scripts.ROOT / "docs/library.md").read_text()
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    assert [row["system"] for row in rows] == [system.name for system in own_task.SYSTEMS]
    table = "\n".join([own_task.HEAD, *map(own_task.as_row, rows)])
    assert f"\n{table}\n" in page
    for row, system in zip(rows, own_task.SYSTEMS, strict=True):
        assert row["lines"] == system.lines(), "a program has changed since it was measured"


def test_lines_are_counted_without_empty_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(own_task, "HERE", tmp_path)
    (tmp_path / "program.py").write_text("import sys\n\n\nprint(\n    sys.path\n)\n")
    assert own_task.System("", "program.py", None, "", ()).lines() == 4


def test_programs_train_the_same_task_and_say_so_in_one_way():
    """Each reads the task's data, epochs, batch and patience, and reports by its function."""
    for system in own_task.SYSTEMS:
        tree = ast.parse((own_task.HERE / system.program).read_text())
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "task"
        }
        assert read == {"TRAIN", "TEST", "EPOCHS", "BATCH", "PATIENCE", "report"}, system.name


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(own_task, "_has", lambda python, modules: False)
    first, *_ = own_task.rows(sys.executable)
    lines = own_task.SYSTEMS[0].lines()
    assert own_task.as_row(first) == f"| towers | {lines} | not installed | | | |"


@pytest.mark.long
@pytest.mark.whole_program
def test_towers_alone_keeps_its_weights_on_two_devices(tmp_path):
    found = {
        system.name: own_task.compare(system, sys.executable, tmp_path / system.program)
        for system in own_task.SYSTEMS
        if "tensorflow" in system.needs
    }
    assert found["towers"]["same_weights"] == {"again": True, "killed": True, "two_devices": True}
    (other,) = (one for name, one in found.items() if name != "towers")
    assert other["same_weights"]["again"] and not other["same_weights"]["two_devices"]
