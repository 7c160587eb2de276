"""What an experiment is given, and what it finds: a table, a plot, and an answer."""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from towers import devices, errors, machine

import keras  # isort: skip

PACKAGES = ("TensorFlow", "Keras")
STYLE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "towers.mplstyle"

Draw = Callable[["matplotlib.figure.Figure"], None]  # noqa: F821  imported when a plot is drawn


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a lesson is given.

    Attributes:
      data_dir: folder that may hold CIFAR-10, as in `train.py`; None for the folder of TFDS.
      shapes: whether images are drawn in any case.
    """

    data_dir: str | None = None
    shapes: bool = False


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a lesson has found.

    Attributes:
      head: names of the table's columns.
      rows: the table, as text.
      numbers: what the answer is based on, for the lesson's test.
      draw: draws the plot on an empty figure.
      data: name of the images; empty if there were none.
      answer: to the lesson's question, in one sentence.
      claim: what the numbers say beside the table, in a sentence or two.
      more: further tables, each (head, rows).
      runs: how many runs each figure is based on.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, object]
    draw: Draw
    data: str = "shapes"
    answer: str = ""
    claim: str = ""
    more: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    runs: str = "one run"

    def table(self) -> str:
        """The tables in Markdown, which a terminal shows well enough."""
        return "\n\n".join(table(*one) for one in ((self.head, self.rows), *self.more))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown with columns of even width."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"{lines[0]} |", rule, *(f"{line} |" for line in lines[1:])])


def save(finding: Finding, path: Path, size: tuple[float, float] | None = None) -> None:
    """Draws the plot into a file; its size is in inches, by default that of the style.

    Raises:
      ImportError: matplotlib is not installed (`pip install matplotlib`).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.style.context(STYLE):
        figure = plt.figure(figsize=size)
        finding.draw(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def start_runtime() -> None:
    """Four logical CPU devices, and one thread per operation, as `train.py` has on a few cores.

    As in `train.py`, nothing is logged below an error; nor does Keras say what it does.

    Raises:
      ValueError: TensorFlow's runtime has started with less.
    """
    errors.quiet_loggers()
    keras.config.disable_interactive_logging()
    devices.use_intra_op_threads(1)
    devices.choose(4)


def conditions(finding: Finding, seconds: float) -> str:
    """The conditions under which a page's numbers were measured."""
    versions = [f"{package} {importlib.metadata.version(package.lower())}" for package in PACKAGES]
    parts = [
        f"{datetime.date.today():%B %Y}",
        finding.runs,
        *([finding.data] if finding.data else ["nothing is trained"]),
        *versions,
        f"{machine.available_cores()} cores of {machine.processor()}",
        f"{seconds:.0f} s",
    ]
    return f"({'; '.join(parts)})"
