"""A lesson: a question, a short run that answers it, and a page that shows the answer."""

import ast
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from laboratory import findings

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "lessons"


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One question and the run that answers it.

    Attributes:
      name: of the command and of the page.
      question: as people ask it.
      run: from the setup to what was found; its further arguments are sizes, for a quick run.
    """

    name: str
    question: str
    run: Callable[..., findings.Finding]

    @property
    def page(self) -> Path:
        """The page that shows it."""
        return PAGES / f"{self.name}.md"

    @property
    def figure(self) -> Path:
        """The plot that the page shows."""
        return ROOT / "docs" / "figures" / f"lesson_{self.name}.png"


# A page's parts that are written by `refreshed`: <!-- claim -->...<!-- end -->, and so on.
_PART = re.compile(
    r"<!-- (answer|claim|table|conditions|code [\w/.]+ [\w.]+) -->\n.*?<!-- end -->", re.S
)


def refreshed(page: str, finding: findings.Finding | None = None, seconds: float = 0.0) -> str:
    """A page with the current code of the source, and with what was found.

    Args:
      page: text with parts `<!-- code towers/gradients.py add_up -->`, `<!-- answer -->`,
        `<!-- claim -->`, `<!-- table -->` and `<!-- conditions -->`, each up to `<!-- end -->`.
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
                "answer": f"**{finding.answer}**",
                "claim": finding.claim,
                "table": finding.table(),
                "conditions": findings.conditions(finding, seconds),
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
    nodes: Sequence[ast.AST] = ast.parse(text).body
    for part in name.split("."):
        named = [node for node in nodes if getattr(node, "name", None) == part]
        if not named:
            raise ValueError(f"{path}: there is no {name}")
        node = named[0]
        nodes = getattr(node, "body", [])
    lines = text.splitlines()
    kept = lines[node.lineno - 1 : node.end_lineno]
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        del kept[first.lineno - node.lineno : first.end_lineno - node.lineno + 1]
        if not kept[first.lineno - node.lineno].strip():
            del kept[first.lineno - node.lineno]
    indent = len(kept[0]) - len(kept[0].lstrip())
    return "\n".join(line[indent:] for line in kept)
