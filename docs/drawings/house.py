"""The figure of the house in docs/design.md: rooms, their files and lines, who imports whom.

The rooms and their files come from the folders, the arrows from the imports, which grimp reads as
import-linter does. The rules that the arrows keep are in pyproject.toml.
"""

import html
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import grimp

from lessons import lesson

DRAWING = lesson.ROOT / "docs" / "figures" / "house.svg"
PACKAGES = ("towers", "towers_cli", "input_pipeline", "lessons", "laboratory", "benchmarks")
WIDTH, HEIGHT, LINE_HEIGHT, CHARACTER = 940, 604, 15, 6.4
DARK, LINE = "#1c1c1c", "#4a5763"
BLUE, GREEN, ORANGE, GREY = "#e8f1fb", "#e9f6ec", "#fdf1e3", "#f0f0f0"


class Room(NamedTuple):
    """A folder of modules with one purpose, and where it is drawn."""

    package: str  # of its modules; those of a room within it are not its own
    title: str
    purpose: str
    place: tuple[int, int, int, int]  # x, y, width, height
    colour: str


ROOMS = (
    Room("lessons", "lessons/", "questions, answered", (20, 20, 260, 100), GREY),
    Room("laboratory", "laboratory/", "update rules, simulated", (340, 20, 260, 100), GREY),
    Room("benchmarks", "benchmarks/", "what is measured", (660, 20, 260, 100), GREY),
    Room("towers_cli", "towers_cli/", "the commands: settings, and a run made of them",
         (20, 164, 900, 100), ORANGE),
    Room("towers.networks", "towers/networks/", "the networks",
         (20, 308, 200, 116), GREEN),
    Room("towers.runs", "towers/runs/", "a run in its folder", (240, 308, 260, 116), GREEN),
    Room("towers.multi_worker", "towers/multi_worker/", "processes",
         (520, 308, 180, 116), GREEN),
    Room("input_pipeline", "input_pipeline/", "images and batches", (720, 308, 200, 146), ORANGE),
    Room("towers", "towers/", "the idea: one step, cut into towers, whose gradients become one",
         (20, 468, 680, 116), BLUE),
)  # fmt: skip
# Only these imports have arrows: to the row below, and across. Rooms below the top row list their
# other imports in words; rooms in the top row may import everything.
ARROWS = {
    ("lessons", "laboratory"),
    ("lessons", "towers_cli"),
    ("laboratory", "towers_cli"),
    ("benchmarks", "towers_cli"),
    ("towers_cli", "towers.networks"),
    ("towers_cli", "towers.runs"),
    ("towers_cli", "towers.multi_worker"),
    ("towers_cli", "input_pipeline"),
    ("towers.networks", "towers"),
    ("towers.runs", "towers"),
    ("towers.multi_worker", "towers"),
}


def room_of(module: str) -> str:
    """The room that a module is in, by its package."""
    within = [room.package for room in ROOMS if f"{module}.".startswith(f"{room.package}.")]
    return max(within, key=len)


def imports(graph: grimp.ImportGraph) -> dict[tuple[str, str], int]:
    """(room, room) to the number of pairs in which a module of the one imports one of the other."""
    counts: dict[tuple[str, str], int] = {}
    for module in graph.modules:
        # The public face imports its rooms for its users, and is not part of the idea.
        for imported in (
            graph.find_modules_directly_imported_by(module) if module != "towers" else ()
        ):
            pair = room_of(module), room_of(imported)
            if pair[0] != pair[1]:
                counts[pair] = counts.get(pair, 0) + 1
    return counts


def files(package: str) -> dict[str, int]:
    """The files of a room, by name without extension, with their lines."""
    folder = lesson.ROOT / package.replace(".", "/")
    paths = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    return {path.stem: lines(path) for path in [folder / "__init__.py", *paths]}


def lines(path: Path) -> int:
    """All lines of a file: code, docstrings, comments and empty ones."""
    return len(path.read_text(encoding="utf-8").splitlines())


def hundreds(of_files: Mapping[str, int]) -> str:
    """The lines of a room, to the hundred: so the figure does not change with every line."""
    return f"{round(sum(of_files.values()), -2):,}"


def drawing() -> str:
    """The figure as SVG."""
    counts = imports(grimp.build_graph(*PACKAGES, cache_dir=None))
    parts = [_room(room, counts) for room in ROOMS]
    place = {room.package: room.place for room in ROOMS}
    parts += [_arrow(place[a], place[b], counts[a, b]) for a, b in sorted(ARROWS & counts.keys())]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="system-ui, sans-serif">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker>'
            "</defs>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _room(room: Room, counts: Mapping[tuple[str, str], int]) -> str:
    x, y, width, height = room.place
    own = files(room.package)
    names = ", ".join(name for name in own if not name.startswith("__"))
    far = [
        f"{other.title.rstrip('/').rpartition('/')[2]} {counts[room.package, other.package]}"
        for other in ROOMS
        if (room.package, other.package) in counts.keys() - ARROWS and room.colour != GREY
    ]
    said = textwrap.wrap(names, int((width - 20) / CHARACTER), break_long_words=False)
    last = [f"imports also {', '.join(far)}"] if far else []
    last = textwrap.wrap("".join(last), int((width - 20) / CHARACTER), break_long_words=False)
    shown = (height - 40) // LINE_HEIGHT - len(last)
    if len(said) > shown:
        said = [*said[: shown - 1], f"{said[shown - 1].rstrip(',')}, ..."]
    rows = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{room.colour}" '
        f'stroke="{LINE}"/>',
        _text(x + 10, y + 19, room.title, 13, "bold"),
        _text(x + 10, y + 35, f"{room.purpose}: {hundreds(own)} lines", 11.5, "normal", LINE),
    ]
    rows += [_text(x + 10, y + 35 + LINE_HEIGHT * (i + 1), row, 11.5) for i, row in enumerate(said)]
    for i, row in enumerate(last):
        below = y + height - 8 - LINE_HEIGHT * (len(last) - 1 - i)
        rows.append(_text(x + 10, below, row, 11.5, "normal", LINE))
    return "\n".join(rows)


def _arrow(start: tuple, end: tuple, count: int) -> str:
    """From the middle of the span that two rooms share, or between their edges; with a number."""
    (x, y, width, height), (to_x, to_y, to_width, _) = start, end
    left, right = max(x, to_x), min(x + width, to_x + to_width)
    across = (left + right) / 2 if left < right else None
    if across is None or abs(y - to_y) < 10:  # side by side
        at, to = (x + width, y + 41), (to_x, to_y + 41)
    else:
        at, to = (across, y + height), (across, to_y)
    middle = ((at[0] + to[0]) / 2 + (6 if at[0] == to[0] else -8), (at[1] + to[1]) / 2)
    middle = (middle[0], middle[1] + (4 if at[0] == to[0] else -6))
    return (
        f'<line x1="{at[0]:.0f}" y1="{at[1]:.0f}" x2="{to[0]:.0f}" y2="{to[1]:.0f}" '
        f'stroke="{LINE}" marker-end="url(#head)"/>\n' + _text(*middle, str(count), 11.5)
    )


def _text(x, y, text: str, size: float, weight: str = "normal", colour: str = DARK) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{html.escape(text)}</text>'
    )
