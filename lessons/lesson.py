"""What a lesson is: a question, a short run that answers it, and a page that shows the answer."""

import ast
import dataclasses
import datetime
import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from towers import devices, noise

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "lessons"

PACKAGES = ("TensorFlow", "Keras")

Draw = Callable[["matplotlib.figure.Figure"], None]  # noqa: F821  imported when a plot is drawn


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a lesson is given.

    Attributes:
      short: for the test of the claim: it takes seconds, and draws its images itself.
      data_dir: where CIFAR-10 may lie, as in `train.py`; None for the folder of TFDS.
    """

    short: bool = False
    data_dir: str | None = None


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a lesson has found.

    Attributes:
      head: names of the table's columns.
      rows: the table, as text.
      claim: what the numbers say, in a sentence or two.
      numbers: those that the claim rests on, for the lesson's test.
      draw: draws the plot on an empty figure.
      data: what the images were; empty where there were none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    claim: str
    numbers: Mapping[str, object]
    draw: Draw
    data: str = "shapes"

    def table(self) -> str:
        """The table in Markdown, which a terminal shows well enough."""
        return table(self.head, self.rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown with columns of even width."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"{lines[0]} |", rule, *(f"{line} |" for line in lines[1:])])


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One question and the run that answers it.

    Attributes:
      name: of the command and of the page.
      question: as people ask it.
      run: setup to what was found.
    """

    name: str
    question: str
    run: Callable[[Setup], Finding]

    @property
    def page(self) -> Path:
        """The page that shows it."""
        return PAGES / f"{self.name}.md"

    @property
    def figure(self) -> Path:
        """The plot that the page shows."""
        return ROOT / "docs" / "figures" / f"lesson_{self.name}.png"


def save(finding: Finding, path: Path, size: tuple[float, float] = (8.5, 4.2)) -> None:
    """Draws the plot into a file, of so many inches.

    Raises:
      ImportError: matplotlib is not installed (`pip install matplotlib`).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure = plt.figure(figsize=size, layout="constrained")
        finding.draw(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
        plt.close(figure)


def start_runtime() -> None:
    """Four logical CPU devices, and one thread for an operation, as `train.py` has on a few cores.

    As in `train.py`, nothing is logged below an error.

    Raises:
      ValueError: TensorFlow's runtime has started with less.
    """
    noise.quiet_loggers()
    devices.use_intra_op_threads(1)
    devices.choose(4)


def conditions(finding: Finding, seconds: float) -> str:
    """What a page's numbers have to be read with."""
    versions = [f"{package} {importlib.metadata.version(package.lower())}" for package in PACKAGES]
    said = [
        f"{datetime.date.today():%B %Y}",
        "one run",
        *([finding.data] if finding.data else ["nothing is trained"]),
        *versions,
        f"{devices.available_cores()} cores of {devices.processor()}",
        f"{seconds:.0f} s",
    ]
    return f"({'; '.join(said)})"


# A page's parts that are written by `refreshed`: <!-- claim -->...<!-- end -->, and so on.
_PART = re.compile(r"<!-- (claim|table|conditions|code [\w/.]+ [\w.]+) -->\n.*?<!-- end -->", re.S)


def refreshed(page: str, finding: Finding | None = None, seconds: float = 0.0) -> str:
    """A page with the code in it as the source has it now, and with what was found.

    Args:
      page: text with parts `<!-- code towers/step.py train_step -->`, `<!-- claim -->`,
        `<!-- table -->` and `<!-- conditions -->`, each up to `<!-- end -->`.
      finding: None leaves all but the code as it is.
      seconds: that the lesson took.
    """

    def write(part: re.Match) -> str:
        kind, *arguments = part[1].split()
        if kind == "code":
            text = f"```python\n{source(ROOT / arguments[0], arguments[1])}\n```"
        elif finding is None:
            return part[0]
        else:
            written = {
                "claim": finding.claim,
                "table": finding.table(),
                "conditions": conditions(finding, seconds),
            }
            text = written[kind]
        return f"<!-- {part[1]} -->\n{text}\n<!-- end -->"

    return _PART.sub(write, page)


def source(path: Path, name: str) -> str:
    """The text of a function, or of a class's method `Class.method`, without its docstring.

    Raises:
      ValueError: the file has no such function.
    """
    text = path.read_text(encoding="utf-8")
    found: Sequence[ast.AST] = ast.parse(text).body
    for part in name.split("."):
        named = [node for node in found if getattr(node, "name", None) == part]
        if not named:
            raise ValueError(f"{path}: there is no {name}")
        node = named[0]
        found = getattr(node, "body", [])
    lines = text.splitlines()
    kept = lines[node.lineno - 1 : node.end_lineno]
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        del kept[first.lineno - node.lineno : first.end_lineno - node.lineno + 1]
        if not kept[first.lineno - node.lineno].strip():
            del kept[first.lineno - node.lineno]
    indent = len(kept[0]) - len(kept[0].lstrip())
    return "\n".join(line[indent:] for line in kept)
