"""The house: rules of import, the size of the idea, and all that pages take from the source."""

import ast
import re
import tomllib
from pathlib import Path

import batch
import grimp
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


def test_arrows_of_the_figure_are_imports_that_there_are():
    counts = house.imports(grimp.build_graph(*house.PACKAGES, cache_dir=None))
    assert counts.keys() >= house.ARROWS
    assert all(house.room_of(room) == room for pair in counts for room in pair)


def test_drawings_code_and_tables_of_pages_are_what_the_source_says(monkeypatch):
    written = {}
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: written.update({path: text}))
    pages.main()
    assert written.keys() > {batch.PAGE, batch.DRAWING, house.DRAWING, pages.SETTINGS}
    stale = [path for path, text in written.items() if path.read_text("utf-8") != text]
    assert stale == [], "python docs/drawings/pages.py writes them again"


VALUE = "\0"  # where a message has one

QUOTED = re.findall(r"^\| `(.+?)` \|", (scripts.ROOT / "docs/messages.md").read_text("utf-8"), re.M)


def texts(path: Path) -> list[str]:
    """All strings of a file, with VALUE for what is filled in."""
    result = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else VALUE for p in node.values)
            result.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            result.append(node.value)
    return result


def test_the_page_quotes_messages_that_the_code_gives():
    rooms = ("towers", "towers_cli", "input_pipeline")
    said = [
        text
        for room in rooms
        for path in (scripts.ROOT / room).rglob("*.py")
        for text in texts(path)
    ]
    assert len(QUOTED) >= 25
    for quoted in QUOTED:
        message = re.compile(f".*{VALUE}.*".join(map(re.escape, quoted.split("…"))), re.S)
        assert any(map(message.search, said)), quoted
