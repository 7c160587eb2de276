"""Where two runs begin to differ: a setting, a step, a number.

    towers-compare runs/one_tower runs/four_towers

Settings are compared first, then the hashes of the whole state that
--verify_every_steps writes, the logged steps and evaluations of metrics.jsonl,
and the values in checkpoints of the same step. Exits with 0 if all that both
runs have is the same to the last bit, with 1 if they differ, and with 2 if
they cannot be compared.
"""

import sys
from collections.abc import Sequence

from towers_cli import system

_NAME = "towers-compare"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    parser = system.parser(_NAME, __doc__)
    parser.add_argument("run", nargs=2, help="the folder of a run")
    folders = parser.parse_args(arguments).run
    return system.exit_code(_NAME, lambda: compare(*folders), error_code=2)


def compare(first: str, second: str) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    from towers.runs import run_folder
    from towers_cli import comparison

    folders = [run_folder.RunFolder(path) for path in (first, second)]
    for difference in comparison.settings_that_differ(*folders) or ["the same"]:
        print(system.printable(f"settings: {difference}"))
    for which, folder in zip(("first", "second"), folders, strict=True):
        for change in comparison.changes_on_the_way(folder):
            print(system.printable(f"the {which} run: {change}"))
    compared = []
    for parting in comparison.partings(*folders):
        print(parting, flush=True)
        compared.append(parting)
    if not any(parting.steps for parting in compared):
        return system.say_error(_NAME, "the runs have no step in common", 2)
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
    sys.exit(main())
