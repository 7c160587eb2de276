"""The first place of a page where it uses a word of the glossary leads there, and explains itself.

The glossary is a page of items `- **term** (or another form): what it is.` Nothing in the other
pages has to be marked, so they read on GitHub as they did. The explanation appears where the mouse
or the keyboard is on the word, without JavaScript.
"""

import html
import pathlib
import re
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

PAGE = "glossary"

_ITEM = re.compile(
    r"^- \*\*(?P<term>[^*]+)\*\*(?: \((?P<others>[^)]+)\))?: (?P<text>.+(?:\n  .+)*)", re.M
)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_NOT_IN = (
    addnodes.desc_signature,
    nodes.field_name,
    nodes.literal,
    nodes.literal_block,
    nodes.raw,
    nodes.reference,
    nodes.rubric,
    nodes.title,
)


class Term(NamedTuple):
    """A word of the glossary: its anchor there, and what it is as plain text."""

    anchor: str
    text: str


class Word(nodes.General, nodes.Inline, nodes.TextElement):
    """A word of a page that is explained; attributes `href`, `tip` and `number`."""


def read(path: pathlib.Path) -> dict[str, Term]:
    """The terms of a glossary, and their other forms, in lower case."""
    found = {}
    for item in _ITEM.finditer(path.read_text("utf-8")):
        text = _LINK.sub(r"\1", " ".join(item["text"].split())).replace("`", "")
        term = Term(anchor(item["term"]), text)
        for form in [item["term"], *(item["others"] or "").split(", ")]:
            if form:
                found[form.lower()] = term
    return found


def anchor(term: str) -> str:
    """The id of a term in the page."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def pattern(forms: list[str]) -> re.Pattern:
    """Finds any of these words, the longest first, whole."""
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(?![\w-])", re.I)


def _begin(app: Sphinx) -> None:
    app.env.glossary = read(pathlib.Path(app.srcdir) / f"{PAGE}.md")


def _link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    if page == PAGE:
        _anchors(doctree)
        return
    terms, seen = app.env.glossary, set()
    words = pattern(list(terms))
    for text in list(doctree.findall(nodes.Text)):
        if any(isinstance(above, _NOT_IN) for above in _above(text)):
            continue
        pieces, end = [], 0
        for match in words.finditer(text):
            term = terms[match[1].lower()]
            if term in seen:
                continue
            seen.add(term)
            pieces.append(nodes.Text(text[end : match.start()]))
            href = f"{app.builder.get_relative_uri(page, PAGE)}#{term.anchor}"
            pieces.append(Word("", match[1], href=href, tip=term.text, number=len(seen)))
            end = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(text[end:])])


def _above(node: nodes.Node):
    while node.parent is not None:
        node = node.parent
        yield node


def _anchors(doctree: nodes.document) -> None:
    for item in doctree.findall(nodes.list_item):
        strong = next(item.findall(nodes.strong), None)
        if strong is not None:
            item["ids"].append(anchor(strong.astext()))


def _visit(translator, node: Word) -> None:
    translator.body.append(
        f'<span class="explained"><a href="{html.escape(node["href"])}" '
        f'aria-describedby="tip-{node["number"]}">'
    )


def _depart(translator, node: Word) -> None:
    translator.body.append(
        f'</a><span class="tip" role="tooltip" id="tip-{node["number"]}">'
        f"{html.escape(node['tip'])}</span></span>"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    nothing = (lambda translator, node: None, lambda translator, node: None)
    app.add_node(Word, html=(_visit, _depart), text=nothing, latex=nothing)
    app.connect("builder-inited", _begin)
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
