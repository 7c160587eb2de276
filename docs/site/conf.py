"""How Sphinx builds the site from the pages in docs: `make docs`."""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "drawings"), str(ROOT)]

import towers  # noqa: E402, F401  before what imports TensorFlow: it sets TensorFlow up

_version = (ROOT / "towers/version.py").read_text()

project = "towers"
author = "The towers authors"
copyright = "The towers authors. Apache-2.0"
version = release = re.search(r'^__version__ = "(.+)"$', _version, re.M).group(1)

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "source_pages",
    "glossary_links",
    "notebooks",
    "race",
    "stations",
    "two_pictures",
]
exclude_patterns = ["_build", "drawings", "site", "measurements"]
nb_execution_mode = os.environ.get("TOWERS_NOTEBOOKS", "off")  # hosted CI has "cache"
nb_execution_cache_path = str(ROOT / "build/notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_code_prompt_show = "Show a solution"  # nothing else is folded by its tag
nb_code_prompt_hide = "Hide it"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.header"]  # pages may begin with a comment

default_role = "py:obj"  # docstrings write `name`: a link where it is one, and code where not
autoclass_content = "both"  # the class's docstring, and the arguments of __init__
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_title = "towers"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["site.css"]
html_use_index = False  # the search finds names
html_domain_indices = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search field is in the sidebar
    "use_download_button": False,
    "use_fullscreen_button": False,
}
html_context = {"default_mode": "auto"}
pygments_style = "a11y-high-contrast-light"


def setup(app):
    """As Sphinx calls it."""
    app.connect("autodoc-skip-member", _is_field)


def _is_field(app, what, name, member, skip, options):
    """Fields of a NamedTuple are in its docstring, which says more of them than their numbers."""
    return True if str(member.__doc__).startswith("Alias for field number") else None
