"""Where two runs begin to differ: a setting, a step, a number.

    towers-compare runs/one_tower runs/four_towers

Settings are compared first, then the hashes of the whole state that
--verify_every_steps writes, the logged steps and evaluations of metrics.jsonl,
and the values in checkpoints of the same step. Exits with 0 if all that both
runs have is the same to the last bit, with 1 if they differ, and with 2 if
they cannot be compared.
"""

import signal
import sys
from collections.abc import Sequence

from towers_cli import system

_USAGE = "usage: towers-compare RUN_A RUN_B"


def command() -> None:
    """Runs the command to its end."""
    # Python would turn Ctrl-C into a page of text and an exit code of 1, which has a meaning here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    if len(arguments) != 2 or any(argument.startswith("-") for argument in arguments):
        asked = set(arguments) & {"-h", "--help"}
        if asked:
            print(__doc__ or _USAGE)  # python -OO leaves docstrings out
            return 0
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        return compare(arguments)
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        print(f"towers-compare: error: {error}", file=sys.stderr)
        return 2


def compare(arguments: Sequence[str]) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    # After the usage, because it imports TensorFlow.
    with system.without_notices():
        from towers import noise
        from towers.runs import checkpoints, console, run_folder
        from towers_cli import comparison

    noise.quiet_loggers()
    folders = [run_folder.RunFolder(argument) for argument in arguments]
    compared = []
    try:
        for difference in comparison.settings_that_differ(*folders) or ["the same"]:
            print(console.printable(f"settings: {difference}"))
        for which, folder in zip(("first", "second"), folders, strict=True):
            for change in comparison.changes_on_the_way(folder):
                print(console.printable(f"the {which} run: {change}"))
        for parting in comparison.partings(*folders):
            print(parting, flush=True)
            compared.append(parting)
    except (run_folder.RunFolderError, checkpoints.CheckpointError, OSError) as error:
        text = str(error).removeprefix("--train_dir=")  # not a flag of this command
        console.say_error("towers-compare", text)
        return 2
    if not any(parting.steps for parting in compared):
        print("towers-compare: error: the runs have no step in common", file=sys.stderr)
        return 2
    parted = [parting.first for parting in compared if parting.first is not None]
    if parted:
        print(f"they differ from step {min(parted)}")
        return 1
    last = max(parting.steps[-1] for parting in compared if parting.steps)
    ends = {comparison.last_step(folder) for folder in folders}
    until = "" if ends == {last} else f", as far as both go: to step {last}"
    print(f"the same, to the last bit{until}")
    return 0


if __name__ == "__main__":
    command()
