"""The version of both packages; pyproject.toml and `--version` read it from here."""

__version__ = "0.1.0"
