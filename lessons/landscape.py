"""The README's picture: a batch, its split, the towers, the average, the update.

python -m lessons.landscape     writes it, for a light and for a dark page
"""

import argparse
import html
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1000, 392
PARTS = ("m0", "m1", "m2", "m3")
# A theme's colours: background, text, lines, a box's edge and background, and one for each part
# (Okabe and Ito's, which colour-blind readers can tell apart).
THEMES = {
    "light": {
        "ground": "#ffffff", "text": "#1f2328", "quiet": "#59636e", "line": "#59636e",
        "box": "#f6f8fa", "edge": "#d1d9e0",
        "parts": ("#56b4e9", "#0072b2", "#e69f00", "#d55e00"),
    },
    "dark": {
        "ground": "#0d1117", "text": "#f0f6fc", "quiet": "#9198a1", "line": "#9198a1",
        "box": "#151b23", "edge": "#3d444d",
        "parts": ("#56b4e9", "#3a8fd0", "#e69f00", "#e8743b"),
    },
}  # fmt: skip


def path(theme: str) -> Path:
    """The file of a theme."""
    return ROOT / "docs" / "figures" / f"step_{theme}.svg"


def picture(theme: str) -> str:
    """The SVG."""
    of = THEMES[theme]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
            'font-size="15">',
            "<title>One training step: a batch is split into microbatches, two towers compute "
            "their gradients, the gradients are averaged in a fixed order, and one update changes "
            "the one set of weights</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{of["ground"]}"/>',
            f'<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{of["line"]}"/>'
            "</marker></defs>",
            *_batch(of),
            *_tower(of, 0, 44),
            *_tower(of, 1, 196),
            *_average(of),
            *_update(of),
            *_shared_weights(of),
            "</svg>\n",
        ]
    )


def _batch(of) -> Iterator[str]:
    yield _text(90, 78, "one batch", of["text"], bold=True)
    for index, part in enumerate(PARTS):
        y = 92 + 50 * index
        yield _box(40, y, 100, 44, of["parts"][index], of["edge"])
        yield _text(90, y + 28, part, "#ffffff" if index % 2 else "#111111", bold=True)
    yield _text(90, 312, "in microbatches,", of["quiet"])
    yield _text(90, 331, "a fixed size", of["quiet"])
    for tower, y in enumerate((106, 258)):
        yield _arrow(of, f"M146 {142 + 98 * tower} C 185 {142 + 98 * tower}, 185 {y}, 222 {y}")


def _tower(of, index: int, y: int) -> Iterator[str]:
    yield _box(226, y, 300, 128, of["box"], of["edge"])
    yield _text(240, y + 26, f"tower {index}", of["text"], bold=True, anchor="start")
    yield _text(512, y + 26, "on its own device", of["quiet"], anchor="end")
    for place, part in enumerate(PARTS[2 * index : 2 * index + 2]):
        x = 244 + 136 * place
        yield _box(x, y + 42, 126, 70, of["ground"], of["parts"][2 * index + place], 2)
        yield _text(x + 63, y + 64, f"{part}: loss", of["text"])
        yield _text(x + 63, y + 83, "+ weight decay", of["text"])
        yield _text(x + 63, y + 102, "→ gradients", of["text"])
    yield _arrow(
        of, f"M528 {y + 64} C 562 {y + 64}, 562 {166 + 36 * index}, 594 {166 + 36 * index}"
    )


def _average(of) -> Iterator[str]:
    yield _box(598, 62, 180, 244, of["box"], of["edge"])
    yield _text(688, 88, "average on the CPU", of["text"], bold=True)
    leaves = [630 + 39 * index for index in range(4)]
    for left, right in ((0, 1), (2, 3)):
        middle = (leaves[left] + leaves[right]) / 2
        for leaf in (leaves[left], leaves[right]):
            yield _line(of, leaf, 126, middle, 172)
        yield _line(of, middle, 172, 688.5, 220)
    for index, x in enumerate(leaves):
        yield f'<circle cx="{x}" cy="122" r="12" fill="{of["parts"][index]}"/>'
    for x, y in ((649.5, 172), (727.5, 172), (688.5, 220)):
        yield f'<circle cx="{x}" cy="{y}" r="12" fill="{of["ground"]}" stroke="{of["line"]}"/>'
        yield _text(x, y + 5, "+", of["text"])
    yield _text(688, 258, "÷ 4", of["text"], bold=True)
    yield _text(688, 284, "always in this order", of["quiet"])
    yield _arrow(of, "M780 184 L 820 184")


def _update(of) -> Iterator[str]:
    yield _box(824, 110, 152, 148, of["box"], of["edge"])
    yield _text(900, 136, "one update", of["text"], bold=True)
    yield _text(900, 166, "weights −", of["text"])
    yield _text(900, 185, "rate × gradient", of["text"])
    yield _text(900, 218, "the rate decays by", of["quiet"])
    yield _text(900, 237, "epochs of data", of["quiet"])


def _shared_weights(of) -> Iterator[str]:
    yield _arrow(of, "M900 260 L 900 352 L 376 352 L 376 328", dashed=True)
    yield _text(
        640, 377, "the same weights on every tower, whatever their number", of["text"], bold=True
    )


def _box(x, y, width, height, fill, edge, thickness=1) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{edge}" stroke-width="{thickness}"/>'
    )


def _text(x, y, words, fill, *, bold=False, anchor="middle") -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{fill}" text-anchor="{anchor}"{weight}>'
        f"{html.escape(words)}</text>"
    )


def _line(of, x, y, to_x, to_y) -> str:
    return f'<path d="M{x} {y} L {to_x} {to_y}" stroke="{of["line"]}" fill="none"/>'


def _arrow(of, course: str, *, dashed=False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="{course}" stroke="{of["line"]}" stroke-width="1.6" fill="none"'
        f'{dash} marker-end="url(#head)"/>'
    )


def main() -> None:
    """Writes both pictures."""
    for theme in THEMES:
        path(theme).write_text(picture(theme), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m lessons.landscape", description=__doc__ and __doc__.splitlines()[0]
    ).parse_args()
    main()
