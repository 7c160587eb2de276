"""The house: rules of import, the size of the idea, figure and tables made of the source."""

import tomllib

import house
import pages
import scripts


def test_every_file_of_the_idea_is_kept_from_sockets():
    contracts = tomllib.loads((scripts.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers, rule = contracts["contracts"][0], contracts["contracts"][1]
    assert "sockets" in rule["name"]
    leaning = {name.strip() for name in layers["layers"][-1].split(":")} | {"__init__"}
    idea = {f"towers.{name}" for name in house.files("towers") if name not in leaning}
    assert set(rule["source_modules"]) == idea


def test_the_packages_have_at_most_10_000_lines():
    packages = ("towers", "towers_cli", "input_pipeline")
    files = [path for name in packages for path in (scripts.ROOT / name).rglob("*.py")]
    files += [scripts.ROOT / name for name in ("train.py", "eval.py", "setup.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 10_000


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
