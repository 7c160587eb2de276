"""The package `input_pipeline` by a name that no module of a program's own has.

    from towers.data import arrays

A program with a module `input_pipeline` finds its own under that name, and the package's here.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "input_pipeline")]
