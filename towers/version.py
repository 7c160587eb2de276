"""The version of both packages; setup.py and `--version` read it from here."""

__version__ = "0.1.0"
