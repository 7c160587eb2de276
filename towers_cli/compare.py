"""Where two runs begin to differ: a setting, a step, a part of the state.

    towers-compare runs/one_tower runs/four_towers

Settings are compared first, then the hashes of the whole state that
--verify_every_steps writes, the logged steps and evaluations of metrics.jsonl,
and the states in which the runs ended. Exits with 0 if all that both
runs have is the same to the last bit, with 1 if they differ, and with 2 if
they cannot be compared.
"""

import json
from collections.abc import Mapping, Sequence

from towers_cli import command_line

_NAME = "towers-compare"

# Fields of metrics.jsonl that are not about what was computed.
TIMINGS = ("examples_per_second", "step_seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command_line.Parser(_NAME, __doc__)
    parser.add_argument("run", nargs=2, help="the folder of a run")
    folders = parser.parse_args(arguments).run
    return command_line.exit_code(_NAME, lambda: compare(*folders), 2)


def compare(first: str, second: str) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    from towers import errors
    from towers.runs import run_folder

    folders = [run_folder.RunFolder(path) for path in (first, second)]
    configs = [folder.read_config() for folder in folders]
    if None in configs:
        folder = folders[configs.index(None)]
        raise run_folder.RunFolderError(f"{folder.path}: there is no run here")
    first_run, second_run = (
        {**one["defining"], **one["runs_on"], "tower devices": one["resolved"]["tower_devices"]}
        for one in configs
    )
    differences = errors.differences(first_run, second_run, "the first run")
    for difference in differences or ["the same"]:
        print(command_line.printable(f"settings: {difference}"))
    for which, config in zip(("first", "second"), configs, strict=True):
        for change in config["changes"]:
            print(command_line.printable(f"the {which} run: {change}"))

    a, b = map(_records, folders)
    shared, parted = [], []
    for what in a:
        steps = sorted(a[what].keys() & b[what].keys())
        shared += steps
        compared = ((step, _difference(a[what][step], b[what][step])) for step in steps)
        step, how = next(((step, how) for step, how in compared if how), (None, ""))
        if not steps:
            print(f"{what}: none that both runs have")
        elif step is None:
            print(f"{what}: the same at all {len(steps)} steps, {steps[0]} to {steps[-1]}")
        else:
            parted.append(step)
            before = max((one for one in steps if one < step), default="none")
            print(f"{what}: differ from step {step} ({how}); the last that agrees: {before}")
    if not shared:
        return command_line.say_error(_NAME, "the runs have no step in common", 2)
    if parted:
        print(f"they differ from step {min(parted)}")
        return 1
    ends = {max(step for steps in records.values() for step in steps) for records in (a, b)}
    until = "" if ends == {max(shared)} else f", as far as both go: to step {max(shared)}"
    print(f"the same, to the last bit{until}")
    return 0


def _records(folder) -> dict[str, dict[int, Mapping]]:
    """What a run has written, kind by kind: step → values by name."""
    from towers.runs import run_folder

    lines = run_folder.read_lines(folder.metrics) if folder.metrics.exists() else []
    ends = [folder.read_final_summary() or {}]
    return {
        "hashes of the state": {
            line["step"]: line["parts_sha256"] for line in lines if "parts_sha256" in line
        },
        "logged steps": {line["step"]: line for line in lines if "step_seconds" in line},
        "evaluations": {line["step"]: line for line in lines if "val_loss" in line},
        "final states": {end["step"]: {"state": end["state_sha256"]} for end in ends if end},
    }


def _difference(a: Mapping, b: Mapping) -> str:
    """What differs between what two runs have of a step, in words; "" for nothing."""
    different = []
    for name in {**a, **b}:
        here, there = a.get(name), b.get(name)
        if json.dumps(here) != json.dumps(there) and name not in TIMINGS:  # as text, NaN is NaN
            different.append(name if isinstance(here, str) else f"{name} {here} and {there}")
    return ", ".join(different)
