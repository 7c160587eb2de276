"""The tree of additions for one weight: its gradients in eight microbatches, on 1 to 8 towers."""

import functools
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from towers import gradients, shares

# Of a bias of `cifarnet`'s first layer, in the first step on `shapes` (128 images). Measured once:
# the last bits differ from one processor to the next.
VALUES = tuple(
    map(
        np.float32,
        (
            -8.181406883522868e-06,
            -0.0002501381968613714,
            0.0022728878539055586,
            0.002071857452392578,
            -0.00011277454905211926,
            -0.0023473436012864113,
            -0.0013925544917583466,
            0.0013741848524659872,
        ),
    )
)
MICROBATCHES = len(VALUES)
DRAWING = Path(__file__).resolve().parents[1] / "figures" / "additions.svg"
ON_THE_PAGE = 3  # towers of the drawing that the Markdown page shows

COLUMN, LEFT, TOP, LEVEL = 104, 14, 92, 62  # pixels
WIDTH = 2 * LEFT + MICROBATCHES * COLUMN
BOX = (100, 28)
TEXT, QUIET, LINE = "#1c1c1c", "#4a5763", "#4a5763"
TOWER, CPU, CPU_EDGE = "#e9f6ec", "#fdf1e3", "#d55e00"


def along_the_tree(values: Sequence[np.float32]) -> np.float32:
    """Their sum as this package adds them up, on any number of towers."""
    return gradients.pairwise_tree(values, np.add)


def tower_by_tower(values: Sequence[np.float32], num_towers: int) -> np.float32:
    """Their sum where each tower adds up its own from left to right, and the CPU the towers'."""

    def in_order(parts: Sequence[np.float32]) -> np.float32:
        return functools.reduce(np.add, parts)

    owns = shares.evenly(len(values), num_towers)
    return in_order([in_order([values[m] for m in own]) for own in owns])


def shown(value: np.float32) -> str:
    """In thousandths, with as many digits as tell float32 numbers apart."""
    return f"{1000 * float(value):.8f}".replace("-", "−")


def table() -> str:
    """Both sums for each number of towers, as Markdown."""
    rows = ["| towers | each tower first, then their sums | along the tree |", "|---|---|---|"]
    for num_towers in range(1, MICROBATCHES + 1):
        cells = shown(tower_by_tower(VALUES, num_towers)), shown(along_the_tree(VALUES))
        rows.append(f"| {num_towers} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def sentence(num_towers: int) -> str:
    """What a reader who does not see the drawing has to know."""
    owns = shares.evenly(MICROBATCHES, num_towers)
    hands = [gradients.subtrees(own, MICROBATCHES) for own in owns]
    return "; ".join(
        f"tower {tower} hands over " + " and ".join(_name(subtree) for subtree in of_tower)
        for tower, of_tower in enumerate(hands)
    )


def _name(subtree: gradients.Subtree) -> str:
    first, end = subtree
    return f"m{first}" if end - first == 1 else f"m{first} to m{end - 1}"


def svg(num_towers: int) -> str:
    """The drawing for a number of towers."""
    title = f"The gradient of one weight in {MICROBATCHES} microbatches on {num_towers} "
    title += "tower" if num_towers == 1 else "towers"
    height = TOP + LEVEL * _level((0, MICROBATCHES)) + BOX[1] + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" role="img">',
        f"<title>{title}: {sentence(num_towers)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(LEFT + 4, 24, f"{title}, in thousandths", size=16, anchor="start", bold=True),
        *_lanes(num_towers),
        *_additions(VALUES, (0, MICROBATCHES), on_towers(num_towers)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def on_towers(num_towers: int) -> set[gradients.Subtree]:
    """The subtrees that lie within one tower's microbatches; the CPU adds up the others."""
    return {
        (first, end)
        for own in shares.evenly(MICROBATCHES, num_towers)
        for first in own
        for end in range(first + 1, own.stop + 1)
    }


def _level(subtree: gradients.Subtree) -> int:
    """How far below the leaves its sum stands."""
    return (subtree[1] - subtree[0] - 1).bit_length()


def _place(subtree: gradients.Subtree) -> tuple[float, float]:
    """The middle of the top of its box."""
    first, end = subtree
    return LEFT + COLUMN * (first + end) / 2, TOP + LEVEL * _level(subtree)


def _lanes(num_towers: int) -> Iterator[str]:
    """Behind each tower's microbatches and the sums it makes of them, its colour and name."""
    for tower, own in enumerate(shares.evenly(MICROBATCHES, num_towers)):
        subtrees = gradients.subtrees(own, MICROBATCHES)
        for first, end in subtrees:
            bottom = TOP + LEVEL * _level((first, end)) + BOX[1] + 10
            x, width = LEFT + COLUMN * first, COLUMN * (end - first)
            yield f'<rect x="{x}" y="40" width="{width}" height="{bottom - 40}" fill="{TOWER}"/>'
        x = LEFT + COLUMN * own.start
        if tower:
            yield f'<rect x="{x - 1}" y="40" width="3" height="{LEVEL * 3}" fill="#ffffff"/>'
        yield _text(x + 8, 58, f"tower {tower}", anchor="start", bold=True)


def _additions(values, subtree: gradients.Subtree, on_towers) -> Iterator[str]:
    """The sum over a subtree in its box, with lines to the two it is made of."""
    first, end = subtree
    x, y = _place(subtree)
    is_leaf = end - first == 1
    if not is_leaf:
        for half in gradients.halves(subtree):
            half_x, half_y = _place(half)
            bottom = half_y + BOX[1]
            yield (
                f'<path d="M{half_x:g} {bottom:g}L{half_x:g} {y - 12:g}L{x:g} {y - 12:g}'
                f'L{x:g} {y:g}" fill="none" stroke="{LINE}"/>'
            )
            yield from _additions(values, half, on_towers)
    width, height = BOX
    is_on_tower = subtree in on_towers
    fill, edge = ("#ffffff", LINE) if is_on_tower else (CPU, CPU_EDGE)
    yield (
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width}" height="{height}" rx="4" '
        f'fill="{fill}" stroke="{edge}"/>'
    )
    leaves = {(m, m + 1): value for m, value in enumerate(values)}
    yield _text(x, y + 19, shown(gradients.add_up(leaves, subtree, np.add)))
    if is_leaf:
        yield _text(x, y - 6, f"m{first}", colour=QUIET)
    elif not is_on_tower:
        yield _text(x + width / 2 + 6, y + 19, "CPU", colour=QUIET, anchor="start")


def _text(x, y, words, *, size=14, anchor="middle", bold=False, colour=TEXT) -> str:
    look = f'font-size="{size}" text-anchor="{anchor}"' + ' font-weight="bold"' * bold
    return f'<text x="{x:g}" y="{y:g}" {look} fill="{colour}">{html.escape(words)}</text>'
