"""What the pages in docs/ take from the source: drawings, code, and the tables of settings.

python -m lessons.pages
"""

import argparse
import re
from collections.abc import Iterator

from lessons import additions, drawing, every, house, lesson
from towers_cli import command_line, settings

SETTINGS = lesson.ROOT / "docs" / "settings.md"
RECORDS = {"train": settings.TrainSettings, "eval": settings.EvalSettings}


def settings_page(page: str) -> str:
    """The page with the current tables between its marks."""
    part = re.compile(r"(<!-- settings (\w+) -->\n).*?(<!-- end -->)", re.S)
    return part.sub(lambda found: found[1] + "\n".join(tables(found[2])) + "\n" + found[3], page)


def tables(command: str) -> Iterator[str]:
    """A table for each topic of a command's settings."""
    for topic, fields in settings.by_topic(RECORDS[command]):
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
                command_line.described(field),
                allowed,
                "yes" if about["defines_run"] else "",
            ]
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def main() -> None:
    """Writes all of it again."""
    drawing.main()
    additions.main()
    house.main()
    SETTINGS.write_text(settings_page(SETTINGS.read_text(encoding="utf-8")), encoding="utf-8")
    for one in every.LESSONS:
        page = one.page.read_text(encoding="utf-8")
        one.page.write_text(lesson.refreshed(page), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m lessons.pages", description=__doc__ and __doc__.splitlines()[0]
    ).parse_args()
    main()
