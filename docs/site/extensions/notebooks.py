"""Notebooks are made of the scripts in docs/notebooks, and can be downloaded from their pages.

Where TOWERS_REPOSITORY is a repository on GitHub, such as https://github.com/owner/name, a page has
a button that opens its notebook in Colab, and the notebook begins with a cell that installs the
package where it is missing. Colab reads the notebooks from the branch that hosted CI writes them to
(.github/workflows/docs.yml).
"""

import os
import pathlib
import re
import shutil

import jupytext
import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

_FOLDER = "notebooks"
_KERNEL = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}


_BRANCH = "notebooks"
_ON_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)")
_INSTALL = """\
# In a place without towers, such as Colab: install it, and take the CPU, which has several towers.
import importlib.util
import sys

if importlib.util.find_spec("towers") is None:
    !git clone --quiet --depth 1 {repository} towers-repository
    %pip install --quiet ./towers-repository
    sys.path.append("towers-repository")  # for the laboratory, which is not installed
    %env CUDA_VISIBLE_DEVICES=-1"""


def _repository() -> str | None:
    """What TOWERS_REPOSITORY says; None where it says nothing."""
    address = os.environ.get("TOWERS_REPOSITORY")
    if address and not _ON_GITHUB.fullmatch(address):
        raise ValueError(
            f"TOWERS_REPOSITORY={address}: must be a repository on GitHub, such as "
            "https://github.com/owner/name"
        )
    return address or None


def _make(app: Sphinx, config: Config) -> None:
    for path in (pathlib.Path(app.srcdir) / _FOLDER).glob("*.py"):
        notebook = jupytext.read(path)
        notebook.metadata = nbformat.from_dict(_KERNEL)
        if _repository():
            install = nbformat.v4.new_code_cell(_INSTALL.format(repository=_repository()))
            notebook.cells.insert(1, install)  # after the title
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"  # else drawn at random, and every build another file
        made, text = path.with_suffix(".ipynb"), nbformat.writes(notebook)
        if not made.exists() or made.read_text("utf-8") != text:
            made.write_text(text, "utf-8")


def _offer(app: Sphinx, doctree: nodes.document) -> None:
    folder, _, name = app.env.docname.rpartition("/")
    if folder != _FOLDER or not (pathlib.Path(app.srcdir) / _FOLDER / f"{name}.ipynb").exists():
        return
    link = f'<a href="{name}.ipynb" download>{name}.ipynb</a>'
    title = next(doctree.findall(nodes.title))
    place = title.parent.index(title) + 1
    offer = f"As a notebook: {link}"
    if _repository():
        repository = _ON_GITHUB.fullmatch(_repository())[1]
        colab = f"https://colab.research.google.com/github/{repository}/blob/{_BRANCH}/{name}.ipynb"
        offer += f' · <a class="colab" href="{colab}">Open in Colab</a>'
    title.parent.insert(place, nodes.raw("", f"<p>{offer}</p>", format="html"))


def _copy(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for path in (pathlib.Path(app.srcdir) / _FOLDER).glob("*.ipynb"):
            shutil.copy(path, pathlib.Path(app.outdir) / _FOLDER)


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.connect("config-inited", _make)
    app.connect("doctree-read", _offer)
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
