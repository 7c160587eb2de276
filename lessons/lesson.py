"""What a lesson is: a question, a short run that answers it, and a page that shows the answer."""

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "lessons"

Draw = Callable[["matplotlib.figure.Figure"], None]  # noqa: F821  imported when a plot is drawn


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a lesson has found.

    Attributes:
      head: names of the table's columns.
      rows: the table, as text.
      claim: what the numbers say, in a sentence or two.
      numbers: those that the claim rests on, for the lesson's test.
      draw: draws the plot on an empty figure.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    claim: str
    numbers: Mapping[str, object]
    draw: Draw

    def table(self) -> str:
        """The table in Markdown, which a terminal shows well enough."""
        columns = list(zip(self.head, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            for row in (self.head, *self.rows)
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        return "\n".join([f"{lines[0]} |", rule, *(f"{line} |" for line in lines[1:])])


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One question and the run that answers it.

    Attributes:
      name: of the command and of the page.
      question: as people ask it.
      run: (short) to what was found; `short` takes seconds, for the test of the claim.
    """

    name: str
    question: str
    run: Callable[[bool], Finding]

    @property
    def page(self) -> Path:
        """The page that shows it."""
        return PAGES / f"{self.name}.md"

    @property
    def figure(self) -> Path:
        """The plot that the page shows."""
        return ROOT / "docs" / "figures" / f"lesson_{self.name}.png"


def save(finding: Finding, path: Path) -> None:
    """Draws the plot into a file.

    Raises:
      ImportError: matplotlib is not installed (`pip install matplotlib`).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(8.5, 4.2), layout="constrained")
        finding.draw(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
        plt.close(figure)


# A page's parts that are written by `refreshed`: <!-- claim -->...<!-- end -->, and so on.
_PART = re.compile(r"<!-- (claim|table|code [\w/.]+ [\w.]+) -->\n.*?<!-- end -->", re.S)


def refreshed(page: str, finding: Finding | None = None) -> str:
    """A page with the code in it as the source has it now, and with what was found.

    Args:
      page: text with parts `<!-- code towers/step.py train_step -->`, `<!-- claim -->` and
        `<!-- table -->`, each up to `<!-- end -->`.
      finding: None leaves claim and table as they are.
    """

    def write(part: re.Match) -> str:
        kind, *arguments = part[1].split()
        if kind == "code":
            text = f"```python\n{source(ROOT / arguments[0], arguments[1])}\n```"
        elif finding is None:
            return part[0]
        else:
            text = finding.claim if kind == "claim" else finding.table()
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
    indent = len(kept[0]) - len(kept[0].lstrip())
    return "\n".join(line[indent:] for line in kept)
