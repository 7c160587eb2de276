"""What the pages in docs/ take from the source: drawings, code, and the tables of settings.

python docs/drawings/pages.py
"""

import argparse
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
RECORDS = {"train": settings.TrainSettings, "eval": settings.EvalSettings}


def settings_page(page: str) -> str:
    """The page with the current tables between its marks."""
    part = re.compile(r"(<!-- settings (\w+) -->\n).*?(<!-- end -->)", re.S)
    return part.sub(lambda found: found[1] + "\n".join(tables(found[2])) + "\n" + found[3], page)


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


def main() -> None:
    """Writes all of it again."""
    additions.DRAWING.write_text(additions.svg(additions.ON_THE_PAGE), encoding="utf-8")
    batch.DRAWING.write_text(batch.svg(), encoding="utf-8")
    house.DRAWING.write_text(house.drawing(), encoding="utf-8")
    parts = {batch.PAGE: batch.refreshed, SETTINGS: settings_page}
    parts |= {one.page: lesson.refreshed for one in every.LESSONS}
    for path, refreshed in parts.items():
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0]).parse_args()
    main()
