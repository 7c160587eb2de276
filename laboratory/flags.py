"""Flags of the laboratory's commands: a wrong flag gives one line on stderr and exit code 2."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Collection, Sequence

DATA_DIR = "folder of CIFAR-10, as train.py takes it; default: TFDS's; without it, shapes are drawn"


def number(of_type: type, least: float, most: float) -> Callable[[str], int | float]:
    """A type of `add_argument`: a number from `least` to `most`."""

    def convert(text: str) -> int | float:
        try:
            value = of_type(text)
        except ValueError:
            value = math.nan
        if least <= value <= most:
            return value
        kind = "a whole number, " if of_type is int else ""
        bounds = [f"{bound:,d}" if of_type is int else f"{bound:,g}" for bound in (least, most)]
        raise argparse.ArgumentTypeError(
            f"{text}: must be {kind}at least {bounds[0]} and at most {bounds[1]}"
        )

    return convert


def one_of(allowed: Collection[str]) -> Callable[[str], str]:
    """A type of `add_argument`: one of some words."""

    def convert(text: str) -> str:
        if text in allowed:
            return text
        raise argparse.ArgumentTypeError(f"{text}: must be one of {', '.join(allowed)}")

    return convert


def each(convert: Callable[[str], object]) -> Callable[[str], list]:
    """A type of `add_argument`: several values, with commas between them."""
    return lambda text: [convert(part) for part in text.split(",")]


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
        os._exit(141)  # as a shell has it; Python would complain as it flushes the rest
