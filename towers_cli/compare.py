"""Where two runs begin to differ: a setting, a step, a part of the state.

    towers-compare runs/one_tower runs/four_towers

Settings are compared first, then the hashes of the whole state that
--verify_every_steps writes, the logged steps and evaluations of metrics.jsonl,
and the values in checkpoints of the same step. Exits with 0 if all that both
runs have is the same to the last bit, with 1 if they differ, and with 2 if
they cannot be compared.
"""

import json
import sys
from collections.abc import Mapping, Sequence

from towers_cli import settings, system

_NAME = "towers-compare"

# Fields of metrics.jsonl that are not about what was computed.
OF_CLOCK = ("examples_per_second", "step_seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    parser = system.parser(_NAME, __doc__)
    parser.add_argument("run", nargs=2, help="the folder of a run")
    folders = parser.parse_args(arguments).run
    return system.exit_code(_NAME, lambda: compare(*folders), error_code=2)


def compare(first: str, second: str) -> int:
    """Prints where the runs in two folders begin to differ; returns the exit code."""
    from towers import conditions, errors
    from towers.runs import run_folder
    from towers_cli import run_config

    folders = [run_folder.RunFolder(path) for path in (first, second)]
    configs = [folder.read_config() for folder in folders]
    if None in configs:
        folder = folders[configs.index(None)]
        raise run_folder.RunFolderError(f"{folder.path}: there is no run here")
    first_run, second_run = (config["defining"] | _place(config) for config in configs)
    label = settings.label if all(map(run_config.is_of_command, configs)) else "{} ".format
    differences = errors.differences(first_run, second_run, "the first run", label)
    for difference in differences or ["the same"]:
        print(system.printable(f"settings: {difference}"))
    for which, config in zip(("first", "second"), configs, strict=True):
        for change in conditions.changes(config["stretches"]):
            print(system.printable(f"the {which} run: {change}"))

    a, b = (_records(*run) for run in zip(folders, configs, strict=True))
    shared, parted = [], []
    for what in [what for what in a if what in b]:
        steps = sorted(a[what].keys() & b[what].keys())
        compared = ((step, _difference(a[what][step], b[what][step])) for step in steps)
        step, how = next(((step, how) for step, how in compared if how), (None, ""))
        shared += steps
        if not steps:
            print(f"{what}: none that both runs have")
        elif step is None:
            print(f"{what}: the same at all {len(steps)} steps, {steps[0]} to {steps[-1]}")
        else:
            parted.append(step)
            before = [s for s in steps if s < step][-1:] or ["none"]
            print(f"{what}: differ from step {step} ({how}); the last that agrees: {before[0]}")
    if not shared:
        return system.say_error(_NAME, "the runs have no step in common", 2)
    if parted:
        print(f"they differ from step {min(parted)}")
        return 1
    ends = {max(step for steps in records.values() for step in steps) for records in (a, b)}
    until = "" if ends == {max(shared)} else f", as far as both go: to step {max(shared)}"
    print(f"the same, to the last bit{until}")
    return 0


def _place(config: Mapping) -> dict:
    """Where and with what a run began."""
    derived, began_on = config["resolved"], config["stretches"][0]["runs_on"]
    place = {
        "num_towers": config["settings"].get("num_towers"),
        "number of workers": len(derived.get("workers", ())) or None,
        "tower devices": derived.get("tower_devices"),
    }
    return place | {f"began with {name}": value for name, value in began_on.items()}


def _records(folder, config: Mapping) -> dict[str, dict]:
    """What a run has written, kind by kind: step → values by name, or a checkpoint's path."""
    from towers.runs import checkpoints, run_folder

    lines = run_folder.read_lines(folder.metrics) if folder.metrics.exists() else []
    split = config["settings"].get("eval_split", "the validation data")
    return {
        "hashes of the state": {
            line["step"]: line["parts_sha256"] for line in lines if "parts_sha256" in line
        },
        "logged steps": {line["step"]: line for line in lines if "step_seconds" in line},
        f"evaluations of {split}": {line["step"]: line for line in lines if "val_loss" in line},
        "checkpoints": checkpoints.by_step(folder.checkpoints),
    }


def _difference(*of_step: Mapping | str) -> str:
    """What differs between what two runs have of a step, in words; "" for nothing."""
    a, b = (_parts(one) if isinstance(one, str) else one for one in of_step)
    different = []
    for name in {**a, **b}:
        here, there = a.get(name), b.get(name)
        if json.dumps(here) != json.dumps(there) and name not in OF_CLOCK:  # as text, NaN is NaN
            different.append(name if isinstance(here, str) else f"{name} {here} and {there}")
    return ", ".join(different)


def _parts(path: str) -> dict[str, str]:
    """A hash of each part of a checkpoint but the notes of callbacks: some are times."""
    from towers import hashes
    from towers.runs import checkpoints

    parts: dict[str, list] = {}
    for name, value in checkpoints.read(path).items():
        parts.setdefault(name.partition("/")[0], []).append(value)
    return {part: hashes.sha256(values) for part, values in parts.items() if part != "notes"}


if __name__ == "__main__":
    sys.exit(main())
