"""The drawing of docs/architecture.md, and the parts of that page that come from the source.

The drawing follows one batch: that of the 1,000th step of
`python train.py --num_towers=2 --microbatch_size=32`. Its stations are functions, and its shapes
are those of that step; tests/docs/test_architecture.py makes the step and compares.
"""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import additions

from lessons import lesson

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
DRAWING = ROOT / "docs" / "figures" / "architecture.svg"

# Where to begin in the package, and what a file is read for.
READING_ORDER = {
    "towers/step.py": "the step as a whole; the next eight files are its parts",
    "towers/cutting.py": "how a batch is cut into microbatches",
    "towers/microbatch.py": "forward and backward pass of a microbatch",
    "towers/gradients.py": "the tree of additions",
    "towers/weight_decay.py": "the terms of the loss beside the cross entropy",
    "towers/networks/cifarnet.py": "the network",
    "towers/updating.py": "the update of weights, statistics and metrics, and its check",
    "towers/moving_averages.py": "the weights that are evaluated",
    "towers/schedules.py": "the rate as a function of examples seen",
    "towers/distribution.py": "how the step gets beneath Keras's fit",
    "input_pipeline/batches.py": "which examples a step gets",
    "input_pipeline/preprocess.py": "how their images are preprocessed",
    "towers/runs/callbacks.py": "what a run logs, along the way",
}
LINES_PER_MINUTE = 20  # an estimate; comments, docstrings and empty lines count

WIDTH, HEIGHT = 900, 1088
DARK, LINE = "#1c1c1c", "#4a5763"
BLUE, GREEN, ORANGE, GREY = "#e8f1fb", "#e9f6ec", "#fdf1e3", "#f0f0f0"


class Lane(NamedTuple):
    """A coloured region: what runs in one place."""

    x: int
    y: int
    width: int
    height: int
    title: str
    colour: str


class Box(NamedTuple):
    """A station of the batch: a function, and below its name a few words, one line each."""

    x: int
    y: int
    width: int
    name: str
    notes: str

    @property
    def height(self) -> int:
        """For its name and its notes, 16 pixels per line."""
        return 48 + 16 * self.notes.count("\n")


class Arrow(NamedTuple):
    """From one box to another, straight down or to the right; the label says what goes there."""

    start: str
    end: str
    label: str = ""
    label_is_left: bool = False


LANES = (
    Lane(20, 44, 860, 222, "input_pipeline, on the CPU", BLUE),
    Lane(20, 286, 860, 174, "CPU: step", ORANGE),
    Lane(20, 480, 422, 210, "tower_0, on its device", GREEN),
    Lane(458, 480, 422, 210, "tower_1, on its device", GREEN),
    Lane(20, 710, 860, 246, "CPU: average and apply", ORANGE),
    Lane(20, 976, 860, 102, "what is kept", GREY),
)
_M = "the loss float32 [],\nlogits float32 [32, 10],\n10 gradients"
_LOOP = "one graph: cuts the batch; the loop over towers gives each a copy of the weights"
_RESULT = "losses float32 [4], gradients; step 1,000, examples seen 128,000"
BOXES = {
    "read": Box(36, 72, 170, "tfds_source.read", "decodes the files,\nonce for each run"),
    "load": Box(340, 72, 230, "datasets.load", "all images in memory,\nwith their hash"),
    "ids": Box(36, 186, 170, "batches.example_ids", "which 128 of 50,000,\nby seed and step"),
    "batches": Box(272, 186, 196, "arrays.Examples.gather", "takes them,\nsome steps ahead"),
    "distort": Box(
        590, 186, 274, "preprocess.distort_for_tutorial",
        "crop, mirror, colours,\nthen mean 0 and deviation 1",
    ),
    "step": Box(
        36, 314, 828, "distribution.Distribution.train_step",
        "a callback has set the rate after 127,872 examples: 0.1",
    ),
    "run": Box(36, 396, 828, "step.Program._on_towers", _LOOP),
    "m0": Box(36, 508, 188, "microbatch.Backward", f"m0: {_M}"),
    "m1": Box(238, 508, 188, "microbatch.Backward", f"m1: {_M}"),
    "m2": Box(474, 508, 188, "microbatch.Backward", f"m2: {_M}"),
    "m3": Box(676, 508, 188, "microbatch.Backward", f"m3: {_M}"),
    "sum_0": Box(36, 626, 390, "gradients.sum_over_share", "m0 + m1"),
    "sum_1": Box(474, 626, 390, "gradients.sum_over_share", "m2 + m3"),
    "reduce": Box(36, 738, 828, "gradients.add_up", "(m0 + m1) + (m2 + m3), divided by 4"),
    "check": Box(36, 806, 162, "updating.check_finite", "losses and gradients,\nor no update"),
    "apply": Box(222, 806, 216, "keras.optimizers.SGD.apply", "10 times\nweight - rate * gradient"),
    "averages": Box(462, 806, 194, "moving_averages.update", "0.9911 * average\n+ 0.0089 * weight"),
    "state": Box(680, 806, 184, "step.Program._changes", "4 states become one;\ncifarnet has none"),
    "result": Box(36, 894, 828, "updating.Watched", _RESULT),
    "log": Box(
        36, 1004, 260, "callbacks.Log.on_train_batch_end",
        "every 20 steps: a line of\nmetrics.jsonl",
    ),
    "histograms": Box(
        306, 1004, 318, "callbacks.Histograms.on_train_batch_end",
        "every 500 steps:\nfor TensorBoard",
    ),
    "save": Box(634, 1004, 230, "checkpoints.save", "every 500 steps:\nthe state"),
}  # fmt: skip
ARROWS = (
    Arrow("read", "load", "uint8\n[50000, 32, 32, 3]"),
    Arrow("load", "batches", "uint8 [50000, 32, 32, 3], int32 [50000]"),
    Arrow("ids", "batches", "int64\n[128]"),
    Arrow("batches", "distort", "uint8\n[128, 32, 32, 3]"),
    Arrow("distort", "step", "float32 [128, 24, 24, 3], int32 [128]", label_is_left=True),
    Arrow("step", "run", "float32 [128, 24, 24, 3], int32 [128]"),
    *(Arrow("run", f"m{m}", "float32 [32, 24, 24, 3],\nint32 [32]") for m in range(4)),
    *(Arrow(f"m{m}", f"sum_{m // 2}", "10 gradients") for m in range(4)),
    *(Arrow(f"sum_{t}", "reduce", "10 × float32 [5, 5, 3, 64] … [10]") for t in (0, 1)),
    Arrow("reduce", "check"),
    Arrow("check", "apply"),
    Arrow("apply", "averages"),
    Arrow("averages", "state"),
    Arrow("state", "result"),
    Arrow("result", "log"),
    Arrow("result", "histograms"),
    Arrow("result", "save"),
)


def svg(places: Mapping[str, str] | None = None, look: str = 'role="img"') -> str:
    """The drawing; the same stations always give the same text.

    Args:
      places: where a click on a box leads, by the name of its function.
      look: further attributes of the SVG.
    """
    title = "One batch, from the files to the update: step 1,000 on 2 towers"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" {look}>',
        f"<title>{title}</title>",
        # Its own background: otherwise, on a dark page, the text would be dark on dark.
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        text(20, 29, title, size=15, is_bold=True),
        *(part for lane in LANES for part in lane_parts(lane)),
        *(part for box in BOXES.values() for part in linked(box, places or {})),
        *(part for arrow in ARROWS for part in arrow_parts(arrow)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def text(x, y, words, anchor="start", size=11, is_bold=False) -> str:
    """A line of text whose baseline is at `y`."""
    look = f'font-size="{size}" text-anchor="{anchor}"' + ' font-weight="bold"' * is_bold
    return f'<text x="{x:g}" y="{y:g}" {look} fill="{DARK}">{html.escape(words)}</text>'


def rectangle(area: Lane | Box, look: str) -> str:
    """The area of a lane or a box."""
    place = f'x="{area.x}" y="{area.y}" width="{area.width}" height="{area.height}"'
    return f'<rect {place} rx="5" {look}/>'


def lane_parts(lane: Lane) -> list[str]:
    """A lane with its title."""
    title = text(lane.x + 12, lane.y + 19, lane.title, is_bold=True)
    return [rectangle(lane, f'fill="{lane.colour}"'), title]


def box_parts(box: Box) -> list[str]:
    """A box with its name and its notes."""
    middle = box.x + box.width / 2
    notes = [
        text(middle, box.y + 36 + 16 * line, note, "middle")
        for line, note in enumerate(box.notes.split("\n"))
    ]
    name = text(middle, box.y + 20, box.name, "middle", 12, is_bold=True)
    return [rectangle(box, f'fill="#ffffff" stroke="{LINE}"'), name, *notes]


def linked(box: Box, places: Mapping[str, str]) -> list[str]:
    """A box that leads where `places` says."""
    if box.name not in places:
        return box_parts(box)
    return [f'<a href="{html.escape(places[box.name])}">', *box_parts(box), "</a>"]


def ends(arrow: Arrow) -> tuple[float, float, float, float]:
    """Where an arrow begins and ends, x and y of each: on the edges of its boxes."""
    start, end = BOXES[arrow.start], BOXES[arrow.end]
    left, right = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    if left < right:  # one stands above the other
        middle = (left + right) / 2
        return middle, start.y + start.height, middle, end.y
    middle = start.y + start.height / 2
    return start.x + start.width, middle, end.x, middle


def arrow_parts(arrow: Arrow) -> list[str]:
    """A line with its head, and its label: beside it, or above and below."""
    x1, y1, x2, y2 = ends(arrow)
    is_down = x1 == x2
    head = ((0, 0), (-4, -8), (4, -8)) if is_down else ((0, 0), (-8, -4), (-8, 4))
    points = " ".join(f"{x2 + x:g},{y2 + y:g}" for x, y in head)
    parts = [
        f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{LINE}" stroke-width="1.5"/>',
        f'<polygon points="{points}" fill="{LINE}"/>',
    ]
    lines = arrow.label.split("\n")
    if is_down:  # near its beginning, above the title of the next lane
        x, anchor = (x1 - 8, "end") if arrow.label_is_left else (x1 + 8, "start")
        y = y1 + 0.4 * (y2 - y1) + 11 - 7 * len(lines)
        return parts + [text(x, y + 14 * n, line, anchor) for n, line in enumerate(lines)]
    x, y = (x1 + x2) / 2 - 3, y1 - 6
    return parts + [text(x, y + 21 * n, line, "middle") for n, line in enumerate(lines)]


def refreshed(page: str) -> str:
    """The page with current line counts and code."""
    for name, made in (("reading_order", reading_order()), ("additions", additions.table())):
        part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        page = part.sub(lambda found, made=made: found[1] + made + found[2], page)
    return lesson.refreshed(page)


def reading_order() -> str:
    """The table of files to read, with their lines and the minutes to read them."""
    rows = ["| | file | what it is read for | lines | minutes |", "|---|---|---|---|---|"]
    lines = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in READING_ORDER}
    for place, (path, purpose) in enumerate(READING_ORDER.items(), start=1):
        minutes = round(lines[path] / LINES_PER_MINUTE)
        rows.append(f"| {place} | [{path}](../{path}) | {purpose} | {lines[path]} | {minutes} |")
    total = sum(lines.values())
    rows.append(f"| | together | | {total:,} | {round(total / LINES_PER_MINUTE)} |")
    return "\n".join(rows) + "\n"
