"""Every lesson has a notebook that runs, and its solutions check themselves."""

import os
import sys
from pathlib import Path

import forked
import lighter
import pytest

from lessons import every

FOLDER = Path(__file__).parents[2] / "docs/notebooks"


def test_each_lesson_has_one():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(every.NAMES)


# One in each session of tests; all together take minutes.
RUN = [pytest.param(n, marks=() if n == "museum" else pytest.mark.long) for n in every.NAMES]


@pytest.mark.parametrize("name", RUN)
def test_runs_as_a_script(name, tmp_path):
    root = FOLDER.parent.parent
    call = [sys.executable, str(FOLDER / f"{name}.py")]
    variables = {"PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "-1", "MPLBACKEND": "Agg"}
    with lighter.only(()):
        done = forked.run(call, cwd=tmp_path, env=os.environ | variables, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
