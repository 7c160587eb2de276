"""Decodes every picture of a folder, and names those that a training could not use.

    towers-check-pictures DIR

DIR is laid out as for train.py --dataset=folder. Exits with 0 if all pictures can be
used, with 1 if some cannot, and with 2 after a wrong argument.
"""

from collections.abc import Sequence

from towers_cli import command_line

_NAME = "towers-check-pictures"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command_line.Parser(_NAME, __doc__)
    parser.add_argument("dir", help="the folder of the pictures")
    folder = parser.parse_args(arguments).dir
    return command_line.exit_code(_NAME, lambda: check(folder))


def check(folder: str) -> int:
    """Prints a line for each picture that cannot be used; returns the exit code."""
    from input_pipeline import datasets

    count = broken = 0
    for name, split in datasets.folder_splits(folder).items():
        count += split.num_examples
        for number, reason in split.broken():
            broken += 1
            path = f"{name}/{split.name(number)}" if name else split.name(number)
            print(command_line.printable(f"{path} {reason}"), flush=True)
    print(f"{count:,} pictures, {f'{broken:,} cannot' if broken else 'all of them can'} be used")
    return 1 if broken else 0
