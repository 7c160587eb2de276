"""Pictures for light and for dark pages follow the site's own switch.

On GitHub a `<picture>` takes the dark file where the reader's system is dark. The site has a switch
of its own, for which its theme shows images of the class `only-light` or `only-dark`.
"""

import re

from sphinx.application import Sphinx

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]+)">\s*</picture>'
)


def _both(match: re.Match) -> str:
    return "\n".join(
        f"![{match['alt']}]({match[when]}){{.only-{when}}}" for when in ("light", "dark")
    )


def _replace(content: list[str]) -> None:
    content[0] = _PICTURE.sub(_both, content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """As Sphinx calls it."""
    app.connect("source-read", lambda app, page, content: _replace(content))
    app.connect("include-read", lambda app, path, page, content: _replace(content))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
