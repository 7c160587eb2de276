"""What docs/laboratory.md plays is made of its data by the laboratory's own template."""

import json
import pathlib

from sphinx.application import Sphinx

from laboratory import timeline


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        text = timeline.page(json.loads(timeline.RACE.read_text("utf-8")))
        (pathlib.Path(app.outdir) / "_static" / "race.html").write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
