"""Decodes every picture of a folder, and names those that a training could not use.

    towers-check-pictures DIR

DIR is laid out as for train.py --dataset=folder. Exits with 0 if all pictures can be
used, with 1 if some cannot, and with 2 after a wrong argument.
"""

import signal
import sys
from collections.abc import Sequence

from towers_cli import system

_PROGRAM = "towers-check-pictures"


def command() -> None:
    """Runs the command to its end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each picture that cannot be used; returns the exit code."""
    if set(arguments) & {"-h", "--help"}:
        print(__doc__ or _PROGRAM)  # python -OO leaves docstrings out
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(f"usage: {_PROGRAM} DIR", file=sys.stderr)
        return 2
    # After the usage, because it imports TensorFlow.
    with system.without_notices():
        from input_pipeline import datasets
        from towers import noise
        from towers.runs import console

    noise.quiet_loggers()
    try:
        splits = datasets.folder_splits(arguments[0])
    except datasets.DataError as error:
        console.say_error(_PROGRAM, error)
        return 1
    count = broken = 0
    for name, split in splits.items():
        count += split.num_examples
        for number, reason in split.broken():
            broken += 1
            path = f"{name}/{split.name(number)}" if name else split.name(number)
            print(console.printable(f"{path} {reason}"), flush=True)
    print(f"{count:,} pictures, {f'{broken:,} cannot' if broken else 'all of them can'} be used")
    return 1 if broken else 0


if __name__ == "__main__":
    command()
