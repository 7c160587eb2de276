"""The documentation holds: each pitfall has a test, and the README's program runs."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import house
import lighter
import photos
import pytest

from benchmarks import bias_gradients, networks, start, step_memory, time_to_accuracy, workers
from benchmarks import input as reading
from lessons import every

ROOT = Path(__file__).resolve().parents[2]


def test_every_pitfall_has_a_test_that_names_it():
    text = (ROOT / "docs/pitfalls.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.M) == [str(row) for row in range(1, 35)]
    tests = "".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    tested = ",".join(re.findall(r"@pytest\.mark\.pitfall\(([\d, ]+)\)", tests))
    assert {int(row) for row in tested.split(",")} == set(range(1, 35))


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)


def run(folder: Path, *command: str, start=forked.run) -> str:
    """What a program prints that ends well."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = start([sys.executable, *command], cwd=folder, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.whole_program
def test_the_readme_program_trains_a_model():
    [program] = programs("README.md")
    assert float(run(ROOT, "-c", program).splitlines()[-1]) > 0.5  # ten classes: chance is 0.1


LEARN = [("library", 0, 0.6), ("library", 3, 0.8)]
LATER = [("library", 1, 0.5), ("library", 2, 0.03), ("data", 1, -0.1)]


@pytest.mark.whole_program
@pytest.mark.parametrize(
    "page, place, least", [*LEARN, *(pytest.param(*each, marks=pytest.mark.long) for each in LATER)]
)
def test_the_programs_of_a_page_learn(page, place, least, tmp_path):
    """More than chance, but of drawn pictures. A run that has finished says the same again."""
    photos.folder(tmp_path / "pictures", 40)
    program = programs(f"docs/{page}.md")[place]
    shown = run(tmp_path, "-c", program)
    assert least < float(re.findall(r"(?:accuracy: |^)(\d\.\d+)", shown, re.M)[-1]) <= 1
    assert page != "data" or (tmp_path / "runs/mine/final_model.json").exists()
    if (page, place) == ("library", 3):
        assert run(tmp_path, "-c", program).splitlines()[-1] == shown.splitlines()[-1]


@pytest.mark.long
@pytest.mark.whole_program
def test_the_page_s_fine_tuning_takes_the_weights_of_its_first_run(tmp_path):
    run(tmp_path, "-c", programs("docs/library.md")[4])
    config = json.loads((tmp_path / "runs/all/config.json").read_text())
    assert "runs/head" in config["resolved"]["init_from"]["path"]


@pytest.mark.long
@pytest.mark.whole_program
def test_the_program_for_several_workers_ends_with_the_weights_of_one(tmp_path):
    [program] = programs("docs/workers.md")
    (tmp_path / "program.py").write_text(program)
    # As processes of their own: a fork has as many threads as its parent began with.
    start = functools.partial(subprocess.run, capture_output=True, text=True)
    finals = []
    for command in (["-m", "towers_cli.launch", "--workers=2", "--", "program.py"], ["program.py"]):
        run(tmp_path, *command, start=start)
        finals.append(json.loads((tmp_path / "runs/program/final_model.json").read_text()))
        shutil.rmtree(tmp_path / "runs")
    assert finals[0] == finals[1]
    assert finals[0]["val_accuracy"] > 0.5


def test_the_page_on_data_lists_pictures_that_cannot_be_decoded(tmp_path):
    root = photos.folder(tmp_path / "pictures", 3)
    (root / "ant" / "Thumbs.db").touch()
    assert run(tmp_path, "-c", programs("docs/data.md")[0]) == ""
    (root / "ant" / "001.jpg").write_bytes(b"<html>not found</html>")
    (root / "bee" / "002.jpg").write_bytes((root / "bee" / "002.jpg").read_bytes()[:-100])
    shown = sorted(run(tmp_path, "-c", programs("docs/data.md")[0]).splitlines())
    starts = "pictures/ant/001.jpg is not JPEG", "pictures/bee/002.jpg cannot be decoded"
    assert all(line.startswith(start) for line, start in zip(shown, starts, strict=True))


def span(values: list[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low}–{high}"


def measured(name: str) -> list[dict]:
    text = (ROOT / f"docs/measurements/{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("page", "name", "benchmark", "rows"),
    [
        ("workers.md", "workers", workers, 12), ("speed.md", "networks", networks, 18),
        ("speed.md", "step_memory", step_memory, 7), ("speed.md", "start", start, 7),
        ("speed.md", "input", reading, 8), ("fast.md", "time_to_accuracy", time_to_accuracy, 3),
        ("reliability.md", "bias_gradients", bias_gradients, 10),
    ],
)  # fmt: skip
def test_tables_are_what_was_measured(page, name, benchmark, rows):
    shown = [row for row in measured(name) if name != "time_to_accuracy" or row["epoch"] > 11]
    table = [benchmark.HEAD, *map(benchmark.as_row, shown)]
    assert len(table) == rows + 1
    assert "\n".join(table) in (ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.pitfall(10)
def test_the_results_show_what_was_measured():
    jpeg, whole, short = map(measured, ("cifar10_jpeg_q75", "tutorial", "time_to_accuracy"))
    assert {row["count"] for row in (*jpeg, *whole)} == {10_000}
    assert whole[-1]["step"] == 100_000
    by_epoch = {}
    for row in jpeg:
        if row["train_epochs"] == 5 or row["epoch"] > 5:
            by_epoch.setdefault(row["epoch"], []).append(row)
    first_epochs = [f"| {epoch} | {accuracies(runs)} |" for epoch, runs in sorted(by_epoch.items())]
    of_schedules = [
        f"| {runs[0]['recipe']} | {int(runs[0]['epoch'])} "
        f"| {span([row['training_seconds'] / 3600 for row in runs], '.2f')} | {accuracies(runs)} |"
        for runs in (
            *([row] for row in whole if row["epoch"] in (8, 16, 32, 64, 128, 192, 256)),
            *([row for row in short if int(row["epoch"]) == epoch] for epoch in (8, 11)),
        )
    ]
    assert (len(first_epochs), len(of_schedules)) == (8, 9)
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert "\n".join(first_epochs) in page and "\n".join(of_schedules) in page


def accuracies(runs: list[dict]) -> str:
    """The cells of a table that say how many are right, and with which seeds."""
    shares = span([100 * run["accuracy"] for run in runs], ".1f")
    return f"{shares} % | {', '.join(str(run['seed']) for run in runs)}"


def test_the_numbers_of_the_readme_are_what_was_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ratios = [
        row["to_best_peer"] for row in measured("networks") if row["compute_dtype"] == "float32"
    ]
    [speed] = re.findall(r"^- \*\*Speed\*\*.*?(?=^- |\n\n)", readme, re.M | re.S)
    assert f"{min(ratios):.2f}" in speed and f"{max(ratios):.2f}" in speed
    ends = [row for row in measured("time_to_accuracy") if row["epoch"] > 11]
    assert min(row["accuracy"] for row in ends) >= 0.9
    minutes = span([row["training_seconds"] / 60 for row in ends], ".1f")
    assert f"after {minutes} minutes" in readme


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    own = [link for link in links if not link.startswith("http")]
    assert [link for link in own if not (page.parent / link).exists()] == []


def test_every_module_has_a_room_in_the_design():
    design = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    told, room = {}, ""
    for title, files, concept in re.findall(r"^\| ([^|]*)\| ([^|]*)\| ([^|]*)\|$", design, re.M):
        room = title.partition("`")[2].partition("`")[0] or room
        told[room] = told.get(room, "") + files + concept
    for package in {room.package for room in house.ROOMS} - {"lessons", "benchmarks"}:
        modules = [name for name in house.files(package) if name != "__init__"]
        rows = told[f"{package.replace('.', '/')}/"]
        assert modules and [name for name in modules if f"`{name}.py`" not in rows] == []


NOTEBOOKS = ROOT / "docs/notebooks"


def test_each_lesson_has_one():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.py")) == sorted(every.NAMES)


# One in each session of tests; all together take minutes.
RUN = [pytest.param(n, marks=() if n == "museum" else pytest.mark.long) for n in every.NAMES]


@pytest.mark.parametrize("name", RUN)
def test_runs_as_a_script(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    with lighter.only(()):
        run(tmp_path, str(NOTEBOOKS / f"{name}.py"))
