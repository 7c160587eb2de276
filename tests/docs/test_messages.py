"""docs/messages.md quotes what the code says."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VALUE = "\0"  # where a message has one

QUOTED = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs/messages.md").read_text("utf-8"), re.M)


def texts(path: Path) -> list[str]:
    """All strings of a file, with VALUE for what is filled in."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else VALUE for p in node.values)
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


@pytest.fixture(scope="module")
def said():
    rooms = ("towers", "towers_cli", "input_pipeline")
    return [text for room in rooms for path in (ROOT / room).rglob("*.py") for text in texts(path)]


def test_the_page_quotes_messages():
    assert len(QUOTED) >= 25


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_message_is_one_that_the_code_gives(quoted, said):
    parts = [re.escape(part) for part in quoted.split("…")]
    message = re.compile(f".*{VALUE}.*".join(parts) if len(parts) > 1 else parts[0], re.S)
    assert [text for text in said if message.search(text)]
