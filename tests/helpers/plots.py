"""What a plot shows, as text in tests/plots: a person reads it there, and a change is seen."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib import collections, colors, figure, lines, style, text

from laboratory import findings

RECORDED = Path(__file__).parents[1] / "plots"


def check(name: str, draw) -> None:
    """A plot shows what its file says; where there is no file, it is written, to be looked at."""
    path, shown = RECORDED / f"{name}.txt", described(draw)
    if not path.exists():
        path.write_text(shown, encoding="utf-8")
        raise AssertionError(f"{path} is written")
    assert shown == path.read_text(encoding="utf-8")


def described(draw) -> str:
    """Each panel, its curves, bars and shapes, and all words, with their places; one in a line."""
    drawn, shown = figure.Figure(), []
    with style.context(["default", findings.STYLE]):
        draw(drawn)
    for axes in drawn.axes:
        limits = [in_short(axes.get_xlim()), in_short(axes.get_ylim())]
        shown.append(f"panel, {axes.get_xscale()} {limits[0]}, {axes.get_yscale()} {limits[1]}")
        for line in axes.lines:
            kind = f"{line.get_linestyle()} {line.get_marker()} {line.get_linewidth():g}"
            shown.append(f"curve {look(line)} {kind}: {in_short(line.get_xydata())}")
        shapes = defaultdict(list)  # by how they look
        for bar in axes.patches:
            shapes[f"bars {look(bar)}"] += bar.get_bbox().bounds
        for several in axes.collections:
            corners = [corner for path in several.get_paths() for corner in path.vertices]
            shapes[f"shapes {look(several)}"] += [*np.ravel(corners), *several.get_offsets().flat]
        shown += [f"{kind}: {in_short(places)}" for kind, places in shapes.items()]
    for words in drawn.findobj(text.Text):
        if words.get_visible() and words.get_text():
            place = in_short([*getattr(words, "xy", ()), *words.get_position()])
            size = f"{words.get_fontsize():g}"
            shown.append(f"{place}, size {size}: {' '.join(words.get_text().split())}")
    return "\n".join(shown) + "\n"


def look(artist) -> str:
    """Its colours, and its name where a legend has one."""
    is_line = isinstance(artist, lines.Line2D | collections.LineCollection)
    colour = artist.get_color() if is_line else artist.get_facecolor()
    name = "" if artist.get_label().startswith("_") else f" {artist.get_label()}"
    return " ".join(sorted({colors.to_hex(one) for one in colors.to_rgba_array(colour)})) + name


def in_short(numbers) -> str:
    """All of a few numbers; of many their number, the first and last four, and sums of columns."""
    array = np.asarray(numbers, float)
    values, sums = array.ravel(), np.ravel(array.sum(axis=0))
    if len(values) > 24:
        values = [len(values), *values[:4], *values[-4:], *sums]
    return " ".join(f"{value + 0.0:.4g}" for value in values)
