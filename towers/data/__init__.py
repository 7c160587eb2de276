"""The package `input_pipeline` by a name that no module of a program's own has.

    from towers.data import arrays

Both names are of the same modules. Only a program with a module `input_pipeline` finds its own
under that name, and the package's here alone.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / "input_pipeline"
__path__ = [str(_FOLDER)]


def _is_ours() -> bool:
    """Whether the name `input_pipeline` leads to the package that belongs to this one."""
    try:
        spec = importlib.util.find_spec("input_pipeline")
    except ValueError:  # a module that a program has made itself
        return False
    if spec is None or spec.origin is None:
        return False
    return Path(spec.origin).resolve().parent == _FOLDER


if _is_ours():
    for _name in (file.stem for file in _FOLDER.glob("*.py") if file.stem != "__init__"):
        globals()[_name] = importlib.import_module(f"input_pipeline.{_name}")
        sys.modules[f"{__name__}.{_name}"] = globals()[_name]
