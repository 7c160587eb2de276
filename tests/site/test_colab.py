"""A site published from GitHub: its notebooks open in Colab, and install the package there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs/site/extensions")!r})
project = "small"
extensions = ["myst_nb", "notebooks"]
nb_execution_mode = "off"
"""


def build(folder, repository):
    (folder / "notebooks").mkdir()
    (folder / "conf.py").write_text(CONF)
    (folder / "index.md").write_text("# Small\n\n```{toctree}\nnotebooks/losses\n```\n")
    script = (ROOT / "docs/notebooks/losses.py").read_text("utf-8")
    (folder / "notebooks/losses.py").write_text(script.replace("](../", "](https://example.org/"))
    call = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", folder, folder / "made"]
    environment = {"PATH": "/usr/bin:/bin", "TOWERS_REPOSITORY": repository}
    return subprocess.run(call, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("repository", ["https://github.com/owner/a.name", ""])
def test_the_page_offers_colab_and_the_notebook_begins_with_an_installation(tmp_path, repository):
    done = build(tmp_path, repository)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "made/notebooks/losses.html").read_text("utf-8")
    buttons = re.findall(r'<a class="colab" href="([^"]*)">', page)
    cells = json.loads((tmp_path / "made/notebooks/losses.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["cell_type"] == "markdown"  # the title
    if not repository:
        assert not buttons and "pip install" not in code[0]
        return
    colab = "https://colab.research.google.com/github/owner/a.name/blob/notebooks/losses.ipynb"
    assert buttons == [colab]
    assert "git clone --quiet --depth 1 https://github.com/owner/a.name towers-" in code[0]
    assert "%pip install --quiet ./towers-repository" in code[0]
    assert "%env CUDA_VISIBLE_DEVICES=-1" in code[0]
    assert "import towers" in code[1]


def test_an_address_that_colab_cannot_read_is_refused(tmp_path):
    done = build(tmp_path, "https://example.org/owner/name")
    assert done.returncode != 0
    assert "TOWERS_REPOSITORY=https://example.org/owner/name: must be a repository" in done.stderr
