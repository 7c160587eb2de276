"""What docs/race.md plays is made of its data by the laboratory's own template."""

import json
import pathlib

from sphinx.application import Sphinx

from laboratory import timeline
from lessons import lanes


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for data in (timeline.RACE, lanes.SITE):
            text = timeline.page(json.loads(data.read_text("utf-8")))
            page = pathlib.Path(app.outdir) / "_static" / f"{data.stem}.html"
            page.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
