"""Installs the packages and the commands; pyproject.toml says what they are."""

from setuptools import setup

setup()
