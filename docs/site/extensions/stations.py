"""The stations of docs/architecture.md: a click leads from one to the next, or one is shown alone.

On GitHub the page shows its drawing as a picture. Here the drawing's boxes lead to their stations,
each station has a row of links to all others, and the tree of additions is there for each number of
towers. All of it is HTML and CSS, and works without JavaScript.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence

import additions
import batch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

_PAGE = "architecture"
_STATION = re.compile(r"(\d+)\. (.+)")


class Stations(SphinxPostTransform):
    """Adds the ways between the stations to the page that has them."""

    default_priority = 900  # after links are resolved

    def run(self, **kwargs):
        """Changes that page alone."""
        if self.app.builder.format != "html" or self.env.docname != _PAGE:
            return
        stations = [node for node in self.document.findall(nodes.section) if _name(node)]
        for place, station in enumerate(stations):
            station["classes"] += ["station", *(["first-station"] if not place else [])]
            station.insert(1, _raw(_row(stations, place)))
        for station in stations:
            if "stage" not in station.parent["classes"]:
                station.parent["classes"].append("stage")
        pictures = {node["uri"].split("/")[-1]: node for node in self.document.findall(nodes.image)}
        shown = {
            batch.DRAWING.name: lambda alt: _map(_places(stations), alt),
            additions.DRAWING.name: lambda alt: _tree(),
        }
        for name, made in shown.items():
            picture = pictures[name]
            picture.parent.replace_self(_raw(made(picture["alt"])))


def _name(section: nodes.section) -> re.Match | None:
    """The number and the name of a section that is a station."""
    return _STATION.fullmatch(section[0].astext())


def _link(section: nodes.section) -> str:
    return f"#{section['ids'][0]}"


def _raw(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def _row(stations: Sequence[nodes.section], place: int) -> str:
    """Links from a station to all others."""

    def link(number: int, text: str, look: str = "") -> str:
        return f'<a href="{_link(stations[number])}"{look}>{html.escape(text)}</a>'

    numbers = (
        link(n, str(n + 1), ' aria-current="true"' if n == place else "")
        for n in range(len(stations))
    )
    before = link(place - 1, f"← {_name(stations[place - 1])[2]}") if place else ""
    after = link(place + 1, f"{_name(stations[place + 1])[2]} →") if stations[place + 1 :] else ""
    return (
        f'<nav class="stations" aria-label="Stations, from {place + 1}">'
        f'<span>{before}</span><span class="numbers">{" ".join(numbers)}</span>'
        f"<span>{after}</span></nav>"
    )


def _places(stations: Sequence[nodes.section]) -> dict[str, str]:
    """Where the functions of the drawing's boxes are explained.

    That is the station whose table has a row for the function, or else the first that links to it.
    """
    found: dict[str, str] = {}
    for names in (_functions, _linked):
        for station in stations:
            for name in names(station):
                found.setdefault(name, _link(station))
    return {box.name: found[box.name] for box in batch.BOXES.values()}


def _functions(station: nodes.section) -> Iterator[str]:
    for row in station.findall(nodes.row):
        yield row[0].astext()


def _linked(station: nodes.section) -> Iterator[str]:
    for link in station.findall(nodes.reference):
        yield link.astext()


def _map(places: Mapping[str, str], alt: str) -> str:
    """The drawing, whose boxes are links, and the switch between all stations and one."""
    look = f'role="group" aria-label="{html.escape(alt)}"'
    return (
        f'<div class="wide-drawing">{batch.svg(places, look)}</div>\n'
        '<p><label><input type="checkbox" id="one-station"> Show one station at a time</label>. '
        "A click on a box leads to its station.</p>"
    )


def _tree() -> str:
    """The tree for each number of towers, of which the reader chooses one."""
    numbers = range(1, additions.MICROBATCHES + 1)
    choices = "".join(
        f'<label><input type="radio" name="towers" value="{n}"'
        f"{' checked' if n == additions.ON_THE_PAGE else ''}> {n}</label>"
        for n in numbers
    )
    drawings = "".join(
        f'<div class="wide-drawing on-{n}" tabindex="0">{additions.svg(n)}</div>' for n in numbers
    )
    return (
        '<fieldset class="additions"><legend>How many towers?</legend>'
        f'<div class="choices">{choices}</div>{drawings}</fieldset>'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.add_post_transform(Stations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
