"""docs/messages.md quotes what the code says."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
VALUE = "\0"  # where a message has one

QUOTED = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs/messages.md").read_text("utf-8"), re.M)


def texts(path: Path) -> list[str]:
    """All strings of a file, with VALUE for what is filled in."""
    result = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else VALUE for p in node.values)
            result.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            result.append(node.value)
    return result


def test_the_page_quotes_messages_that_the_code_gives():
    rooms = ("towers", "towers_cli", "input_pipeline")
    said = [text for room in rooms for path in (ROOT / room).rglob("*.py") for text in texts(path)]
    assert len(QUOTED) >= 25
    for quoted in QUOTED:
        message = re.compile(f".*{VALUE}.*".join(map(re.escape, quoted.split("…"))), re.S)
        assert any(map(message.search, said)), quoted
