"""Notebooks are made of the scripts in docs/notebooks, and can be downloaded from their pages."""

import pathlib
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


def _make(app: Sphinx, config: Config) -> None:
    for path in (pathlib.Path(app.srcdir) / _FOLDER).glob("*.py"):
        notebook = jupytext.read(path)
        notebook.metadata = nbformat.from_dict(_KERNEL)
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
    title.parent.insert(place, nodes.raw("", f"<p>As a notebook: {link}</p>", format="html"))


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
