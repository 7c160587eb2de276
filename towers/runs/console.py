"""What a run prints on the terminal."""

import contextlib
import errno
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import tqdm

_NARROWEST = 30  # of a column; on a narrower terminal lines are longer than it
_SPACE = "\0"  # that no line is broken at; no path has it


def table(rows: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """Two aligned columns; a value too long for its line continues below its beginning.

    Args:
      rows: names and values.
      width: of a line; None for the terminal's, or 80 where there is none. What has no space to
        break at, such as a path, stays whole and may be longer.
    """
    width = width or shutil.get_terminal_size().columns
    names = max(len(name) for name, _ in rows)
    lines = []
    for name, value in rows:
        head = f"  {name:<{names}}  "
        room = max(_NARROWEST, width - len(head))
        wrapped = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
        first, *others = wrapped or [""]
        lines += [head + first, *(" " * len(head) + line for line in others)]
    return "\n".join(printable(line.replace(_SPACE, " ")) for line in lines)


def unbroken(text: str) -> str:
    """Text for a table that is not to be broken at its spaces, such as a path."""
    return text.replace(" ", _SPACE)


def printable(text: object) -> str:
    """One line of text as a terminal may show it: a control character as `\\x1b`.

    A terminal obeys those that it is sent, and class names or anything else in a data set's files
    may hold some.
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


def say_error(command: str, error: object) -> None:
    """Says on stderr, in one line, why a command ends."""
    print(f"{command}: error: {printable(error)}", file=sys.stderr)


def duration(seconds: float) -> str:
    """`45s`, `3m05s` or `2h07m`."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


class _Progress:
    """What both ways to show progress share.

    Attributes:
      is_read: whether somebody still reads it.
    """

    is_read = True

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Notes when the reader is gone: that of `... | head`, or a terminal that was closed."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self.is_read = False


class Lines(_Progress):
    """Progress as plain lines, for logs and pipes."""

    def __init__(self, last_step: int):
        self._last_step = last_step

    def advance(self) -> None:
        """A step was made."""

    def metrics(self, metrics: Mapping, seconds_left: float) -> None:
        """Prints one logged step."""
        self.say(
            f"step {metrics['step']}/{self._last_step}  {_summary(metrics)}  "
            f"time left {duration(seconds_left)}"
        )

    def say(self, text: str) -> None:
        """Prints a line."""
        with self._shown():
            print(text, flush=True)

    def close(self) -> None:
        """The run has ended."""


class Silence(Lines):
    """No progress, for a worker whose chief shows it."""

    def say(self, text: str) -> None:
        """Says nothing."""


class Bar(_Progress):
    """Progress as a bar with one status line, for terminals.

    The bar itself prints nothing once its terminal is closed: tqdm takes care of that.
    """

    def __init__(self, first_step: int, last_step: int):
        self._bar = tqdm.tqdm(
            initial=first_step,
            total=last_step,
            unit="step",
            ncols=min(60, shutil.get_terminal_size().columns),
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
        )
        self._status = tqdm.tqdm(bar_format="{desc}", position=1)

    def advance(self) -> None:
        """A step was made."""
        self._bar.update()

    def metrics(self, metrics: Mapping, seconds_left: float) -> None:
        """Shows one logged step; the time left is in the bar."""
        self._status.set_description_str(_summary(metrics))

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        with self._shown():
            self._bar.write(text)

    def close(self) -> None:
        """The run has ended."""
        self._status.close()
        self._bar.close()


def progress(first_step: int, last_step: int, is_chief: bool = True) -> Lines | Bar:
    """A bar on a terminal, lines elsewhere; nothing where another worker shows it."""
    if not is_chief:
        return Silence(last_step)
    if sys.stderr.isatty() and sys.stdout.isatty():
        return Bar(first_step, last_step)
    return Lines(last_step)


def _summary(metrics: Mapping) -> str:
    shown = {
        "epoch": ".2f",
        "loss": ".4f",
        "accuracy": ".1%",
        "learning_rate": ".4g",
    }
    said = [
        f"{name.removeprefix('learning_')} {metrics[name]:{form}}"
        for name, form in shown.items()
        if name in metrics
    ]
    return "  ".join([*said, f"{metrics['examples_per_second']:,.0f} examples/s"])
