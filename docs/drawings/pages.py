"""What the pages in docs/ take from the source: drawings, code, and the tables of settings.

python docs/drawings/pages.py
"""

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the lessons, which are not installed

import additions
import batch
import house

from lessons import every, lesson
from towers_cli import settings

SETTINGS = lesson.ROOT / "docs" / "settings.md"
LABORATORY = lesson.ROOT / "docs" / "laboratory.md"
RECORDS = {"train": settings.TrainSettings, "eval": settings.EvalSettings}


def refreshed(page: str) -> str:
    """The page with what stands now between its marks, `<!-- settings train -->` and the like."""
    part = re.compile(r"(<!-- (settings|sizes|flags) ([\w/.:]+) -->\n).*?(<!-- end -->)", re.S)
    write = {"settings": tables, "sizes": sizes, "flags": flags}
    return part.sub(lambda m: m[1] + "\n".join(write[m[2]](m[3])) + "\n" + m[4], page)


def sizes(name: str) -> Iterator[str]:
    """The lines of a file (or `file:NAME`) that set constants, where these have a number."""
    file, _, constant = name.partition(":")
    text = (lesson.ROOT / file).read_text(encoding="utf-8")
    yield "```python"
    for node in ast.parse(text).body:
        values = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        has_number = any(isinstance(one, int | float) for one in values)
        if isinstance(node, ast.Assign) and has_number and ast.unparse(node).startswith(constant):
            yield from text.splitlines()[node.lineno - 1 : node.end_lineno]
    yield "```"


def tables(command: str) -> Iterator[str]:
    """A table for each topic of a command's settings."""
    for topic, fields in settings.by_topic(RECORDS[command]).items():
        yield f"\n### {topic}"
        yield "| flag | default | meaning | allowed | defines the run |"
        yield "|---|---|---|---|---|"
        for field in fields:
            about = field.metadata
            default = "" if field.default is None else settings.shown(field.default)
            allowed = about["allowed"].allowed if about["allowed"] else ""
            cells = [
                f"`--{field.name}`",
                f"`{default}`" if default else "",
                about["help"],
                allowed,
                "yes" if not about["may_change"] else "",
            ]
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def flags(command: str) -> Iterator[str]:
    """A table of the flags of a command with argparse; a wrong value says what is allowed."""
    yield from ("| flag | meaning | allowed |", "|---|---|---|")
    for action in importlib.import_module(command).make_parser()._actions[1:]:
        name, allowed = action.option_strings or [action.dest], ""
        try:
            (action.type or str)("?")
        except argparse.ArgumentTypeError as error:
            allowed = str(error).removeprefix("?: must be ")
        numbers = allowed if "at least" in allowed else ""  # the meaning has all names
        yield f"| `{name[0]}` | {action.help % vars(action)} | {numbers} |"


def main() -> None:
    """Writes all of it again."""
    additions.DRAWING.write_text(additions.svg(additions.ON_THE_PAGE), encoding="utf-8")
    batch.DRAWING.write_text(batch.svg(), encoding="utf-8")
    house.DRAWING.write_text(house.drawing(), encoding="utf-8")
    shown = {batch.PAGE: batch.refreshed, SETTINGS: str, LABORATORY: lesson.refreshed}
    shown |= {one.page: lesson.refreshed for one in every.LESSONS}
    for path, with_code in shown.items():
        page = refreshed(with_code(path.read_text(encoding="utf-8")))
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0]).parse_args()
    main()
