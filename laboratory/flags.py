"""Flags of the laboratory's commands: a wrong flag gives one line on stderr and exit code 2."""

import argparse
import math
import sys
from collections.abc import Callable, Collection, Sequence

from towers_cli import system

DATA_DIR = "folder of CIFAR-10, as train.py takes it; default: TFDS's; without it, shapes are drawn"


class Parser(argparse.ArgumentParser):
    """argparse, with numbers that have a range."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)
        self._numbers = {}

    def error(self, message: str):
        """Says what is wrong, and ends the process with 2."""
        print(f"{self.prog}: error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)

    def add_number(
        self, name: str, default, of_type: type, least: float, most: float, text: str
    ) -> None:
        """A flag `--name` for a number from `least` to `most`; a default of None stays None."""
        shown = "" if default is None else f" (default: {default:g})"
        self.add_argument(f"--{name}", help=text + shown, metavar=of_type.__name__)
        self._numbers[name] = (default, of_type, least, most)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags, with numbers converted and checked."""
        options = self.parse_args(arguments)
        for name, (default, *_) in self._numbers.items():
            text = getattr(options, name)
            setattr(options, name, default if text is None else self.number(name, text))
        return options

    def number(self, name: str, text: str, flag: str | None = None) -> int | float:
        """A number in the range of `--name`.

        Args:
          name: a flag that `add_number` has added.
          text: as it was typed.
          flag: the flag it was typed for; None for `name`.
        """
        _, of_type, least, most = self._numbers[name]
        try:
            value = of_type(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            kind = "a whole number, " if of_type is int else ""
            bounds = [f"{bound:,d}" if of_type is int else f"{bound:,g}" for bound in (least, most)]
            self.error(
                f"--{flag or name}={text}: must be {kind}at least {bounds[0]} and at most "
                f"{bounds[1]}"
            )
        return value

    def choice(self, name: str, text: str, allowed: Collection[str]) -> str:
        """The value of a flag that allows only certain values."""
        if text not in allowed:
            self.error(f"--{name}={text}: must be one of {', '.join(allowed)}")
        return text


def run(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """A command's exit code; if it is interrupted or its reader is gone, there is no traceback."""
    try:
        code = command(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return system.output_is_gone()
