"""The house: rules of import, the size of the idea, figure and tables made of the source."""

import subprocess
import sys
import tomllib
from pathlib import Path

import house
import pages
import pytest
import scripts


def lint(folder):
    """What `make lint` says of the imports in a folder."""
    call = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True)


def test_the_rules_of_import_are_kept():
    """They are in pyproject.toml; `exhaustive` there lets no new file be without a place."""
    done = lint(scripts.ROOT)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 6 kept, 0 broken." in done.stdout


BREACHES = [
    ("towers/step.py", "from towers.runs import run", "the rooms import the idea"),
    ("towers/gradients.py", "import socket", "no sockets and no processes"),
    ("towers/new.py", "", "the rooms import the idea"),
]


@pytest.mark.parametrize(("module", "line", "broken"), BREACHES)
def test_a_rule_that_is_broken_is_named(module, line, broken, tmp_path):
    for path in [*scripts.ROOT.glob("*/**/*.py"), *scripts.ROOT.glob("*.*")]:
        inside = path.relative_to(scripts.ROOT)
        if inside.parts[0] in (*house.PACKAGES, "pyproject.toml"):
            (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / inside).write_bytes(path.read_bytes())
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    said = [text for text in done.stdout.splitlines() if "BROKEN" in text]
    assert any(broken in text for text in said)


def test_every_file_of_the_idea_is_kept_from_sockets():
    contracts = tomllib.loads((scripts.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers, rule = contracts["contracts"][0], contracts["contracts"][1]
    assert "sockets" in rule["name"]
    leaning = {name.strip() for name in layers["layers"][-1].split(":")} | {"__init__"}
    idea = {f"towers.{name}" for name in house.files("towers") if name not in leaning}
    assert set(rule["source_modules"]) == idea


@pytest.mark.parametrize(
    ("packages", "most"),
    [(("towers", "towers_cli"), 11_000), (("towers", "towers_cli", "input_pipeline"), 13_600)],
)
def test_the_packages_only_get_shorter(packages, most):
    """All are to have at most 10,000 lines together; these bounds go down with them."""
    files = [path for name in packages for path in (scripts.ROOT / name).rglob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= most


class TestTheFigure:
    def test_is_what_the_imports_are(self):
        drawn = house.DRAWING.read_text(encoding="utf-8")
        assert drawn == house.drawing(), "python docs/drawings/pages.py draws it again"

    def test_arrows_are_imports_that_there_are(self):
        import grimp

        counts = house.imports(grimp.build_graph(*house.PACKAGES, cache_dir=None))
        assert counts.keys() >= house.ARROWS
        assert all(house.room_of(room) == room for pair in counts for room in pair)


class TestTheTablesOfSettings:
    def test_are_what_the_definitions_say(self):
        page = pages.SETTINGS.read_text(encoding="utf-8")
        assert page == pages.settings_page(page), "python docs/drawings/pages.py writes them again"
