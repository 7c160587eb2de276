"""Every lesson has a notebook that runs, asks before it shows, and has two checked solutions."""

import os
import re
import sys
from pathlib import Path

import forked
import lighter
import pytest

from lessons import every

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NAMES = [lesson.name for lesson in every.LESSONS]
CELL = re.compile(r"^# %%(.*)\n", re.M)


def cells(name: str) -> list[tuple[str, str]]:
    """(what stands behind its mark, its text) of each cell."""
    _, *parts = CELL.split((FOLDER / f"{name}.py").read_text("utf-8"))
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_each_lesson_has_one():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_asks_before_it_shows(name):
    texts = [text for mark, text in cells(name) if "[markdown]" in mark]
    assert f"(../lessons/{name}.md)" in texts[0]
    asked = next(place for place, text in enumerate(texts) if "## Predict, then look" in text)
    answered = next(place for place, text in enumerate(texts) if "<details><summary>" in text)
    assert asked < answered
    assert len(re.findall(r"^# ## Exercise", "\n".join(texts), re.M)) >= 2
    solutions = [text for mark, text in cells(name) if "hide-cell" in mark]
    assert len(solutions) >= 2 and all(
        re.search(r"^\s*(np\.testing\.)?assert", text, re.M) for text in solutions
    )


# One in each session of tests; all together take minutes.
RUN = [pytest.param(n, marks=() if n == "museum" else pytest.mark.long) for n in NAMES]


@pytest.mark.parametrize("name", RUN)
def test_runs_as_a_script(name, tmp_path):
    root = FOLDER.parent.parent
    call = [sys.executable, str(FOLDER / f"{name}.py")]
    found = {"PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "-1", "MPLBACKEND": "Agg"}
    with lighter.only(()):
        done = forked.run(call, cwd=tmp_path, env=os.environ | found, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
