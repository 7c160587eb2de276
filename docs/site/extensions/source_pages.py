"""Links from a page to a file of the repository lead to a page that shows it.

On GitHub `[step.py](../towers/step.py)` opens the file. In the site it opens
`code/towers/step.py.html`, which has the file's text with colours and an anchor for each line, so
that nothing has to be fetched from elsewhere. A link to a folder opens a list of its files.

A link that shows the name of another page (`[same_bits.md](same_bits.md)`) shows its title.
"""

import os
import pathlib
import posixpath
from collections.abc import Iterator

import pygments
import pygments.formatters
import pygments.lexers
import pygments.util
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = pathlib.Path(__file__).resolve().parents[3]

_SHOWN = {".py", ".toml", ".txt", ".md", ".yml", ".yaml", ".jsonl", ".c", ".sh"}


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.download_reference) or (
        isinstance(node, addnodes.pending_xref) and node.get("reftype") == "myst"
    )


class ToSourcePages(SphinxPostTransform):
    """Makes links to pages out of MyST's downloads of files of the repository."""

    default_priority = 5  # before MyST's and Sphinx's own look at them

    def run(self, **kwargs):
        """Replaces them in one page."""
        if self.app.builder.format != "html":
            return
        page = pathlib.Path(self.env.doc2path(self.env.docname)).parent
        for node in [*self.document.findall(_is_link)]:
            path = pathlib.Path(os.path.normpath(page / node["reftarget"]))
            is_page = isinstance(node, addnodes.pending_xref)  # another of this site, or a folder
            is_file = path.is_file() and path.suffix in _SHOWN and not is_page
            if not path.is_relative_to(ROOT) or not (path.is_dir() or is_file):
                continue
            name = path.relative_to(ROOT).as_posix()
            self.env.source_pages.add(name)
            here = posixpath.dirname(self.env.docname) or "."
            target = posixpath.relpath(f"code/{name}.html", here)
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=target))


class Titles(SphinxPostTransform):
    """Shows the title of a page where a link shows the name of its file."""

    default_priority = 5  # before MyST resolves the links, and their texts are gone

    def run(self, **kwargs):
        """Replaces the texts of one page."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            page = pathlib.PurePosixPath(node["reftarget"])
            text = node.astext()
            if not text.endswith(".md") or text.split("/")[-1] != f"{page.name}.md":
                continue
            target = posixpath.normpath(
                posixpath.join(posixpath.dirname(self.env.docname), node["reftarget"])
            )
            for name in (target, node["reftarget"]):
                if name in self.env.titles:
                    node.children = []
                    node += nodes.inline("", self.env.titles[name].astext())
                    break


def _begin(app: Sphinx) -> None:
    app.env.source_pages = set()


def _pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    names = set(app.env.source_pages)
    for folder in [name for name in names if (ROOT / name).is_dir()]:
        names.update(name for name, _ in _files(folder))
    for name in sorted(names):
        shown = _listing(name) if (ROOT / name).is_dir() else _code(name)
        body = f"<h1><code>{name}</code></h1>\n{shown}"
        yield f"code/{name}", {"title": name, "body": body, "parents": []}, "page.html"


def _files(folder: str) -> list[tuple[str, str]]:
    """(from the root, from the folder) of the files of a folder that have a page."""
    paths = sorted(path for path in (ROOT / folder).iterdir() if path.suffix in _SHOWN)
    return [(path.relative_to(ROOT).as_posix(), path.name) for path in paths]


def _listing(folder: str) -> str:
    rows = (
        f'<li><a href="{posixpath.basename(folder)}/{name}.html"><code>{name}</code></a></li>'
        for _, name in _files(folder)
    )
    return f"<ul>{''.join(rows)}</ul>"


def _code(name: str) -> str:
    try:
        lexer = pygments.lexers.get_lexer_for_filename(name)
    except pygments.util.ClassNotFound:
        lexer = pygments.lexers.TextLexer()
    formatter = pygments.formatters.HtmlFormatter(linenos="inline", lineanchors="L")
    return pygments.highlight((ROOT / name).read_text("utf-8"), lexer, formatter)


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.connect("builder-inited", _begin)
    app.connect("html-collect-pages", _pages)
    app.add_post_transform(ToSourcePages)
    app.add_post_transform(Titles)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
