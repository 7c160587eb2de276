"""Where two runs begin to differ: a setting, a step, a number."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from towers import conditions, errors
from towers.runs import checkpoints, run_folder
from towers_cli import run_config, settings

# Fields of metrics.jsonl that are not about what was computed.
OF_CLOCK = ("examples_per_second", "step_seconds")


@dataclasses.dataclass(frozen=True)
class Parting:
    """What two runs both have, and the first step at which they differ.

    Attributes:
      what: such as "hashes of the state".
      steps: those that both runs have, in order.
      first: the first of `steps` that differs; None if none does.
      how: what differs at `first`, in words.
    """

    what: str
    steps: tuple[int, ...]
    first: int | None = None
    how: str = ""

    def __str__(self) -> str:
        if not self.steps:
            return f"{self.what}: none that both runs have"
        if self.first is None:
            span = f"{self.steps[0]} to {self.steps[-1]}"
            return f"{self.what}: the same at all {len(self.steps)} steps that both have, {span}"
        before = [step for step in self.steps if step < self.first]
        agreed = f"the last that agrees is {before[-1]}" if before else "none before it agrees"
        return f"{self.what}: differ from step {self.first} ({self.how}); {agreed}"


def settings_that_differ(a: run_folder.RunFolder, b: run_folder.RunFolder) -> list[str]:
    """What differs in what defines a run, then in where and with what it ran, in words.

    Raises:
      RunFolderError: a folder holds no run, or a damaged one.
    """
    first, second = _config(a), _config(b)
    are_of_command = run_config.is_of_command(first) and run_config.is_of_command(second)
    label = settings.label if are_of_command else "{} ".format
    return [
        difference
        for side in (lambda config: config["defining"], _place)
        for difference in errors.differences(side(first), side(second), "the first run", label)
    ]


def _config(folder: run_folder.RunFolder) -> dict:
    config = folder.read_config()
    if config is None:
        raise run_folder.RunFolderError(f"{folder.path}: there is no run here")
    if run_config.is_of_command(config):
        run_config.check(config, folder.path)
    return config


def _place(config: Mapping) -> dict:
    derived, began_on = config["resolved"], config["stretches"][0]["runs_on"]
    place = {
        "num_towers": config["settings"].get("num_towers"),
        "number of workers": len(derived.get("workers", ())) or None,
        "tower devices": derived.get("tower_devices"),
    }
    return place | {f"began with {name}": value for name, value in began_on.items()}


def changes_on_the_way(folder: run_folder.RunFolder) -> list[str]:
    """What changed when a run was continued: to another TensorFlow, to another processor."""
    return conditions.changes(folder.read_config()["stretches"])


def partings(a: run_folder.RunFolder, b: run_folder.RunFolder) -> Iterator[Parting]:
    """Compares what two runs have written, cheapest first.

    Raises:
      RunFolderError: `metrics.jsonl` is damaged.
      CheckpointError: a checkpoint is.
    """
    lines_a, lines_b = _lines(a), _lines(b)
    splits = {folder.read_config()["settings"].get("eval_split") for folder in (a, b)}
    for what, select, describe in (
        ("hashes of the state", _hashes, _parts_that_differ),
        ("logged steps", _logged, _values_that_differ),
        ("evaluations", _evaluations, _values_that_differ),
    ):
        if what != "evaluations" or len(splits) == 1:
            yield _first_parting(what, select(lines_a), select(lines_b), describe)
    yield _first_parting(
        "checkpoints",
        checkpoints.by_step(a.checkpoints),
        checkpoints.by_step(b.checkpoints),
        lambda path_a, path_b: _largest_difference(*map(checkpoints.read, (path_a, path_b))),
    )


def last_step(folder: run_folder.RunFolder) -> int:
    """The last step that a run has written something of; -1 where there is none."""
    steps = [line["step"] for line in _lines(folder)]
    return max([*steps, *checkpoints.by_step(folder.checkpoints)], default=-1)


def _lines(folder: run_folder.RunFolder) -> list[dict]:
    """The lines of `metrics.jsonl`; a torn last one is left out, as a running training's may be."""
    if not folder.metrics.exists():
        return []
    lines = run_folder.read_lines(folder.metrics)
    for number, line in enumerate(lines, start=1):
        if "state_sha256" in line and not isinstance(line.get("parts_sha256"), dict):
            raise run_folder.RunFolderError(f"{folder.metrics}: line {number} has no parts_sha256")
    return lines


def _hashes(lines: Sequence[Mapping]) -> dict[int, Mapping]:
    return {line["step"]: line for line in lines if "state_sha256" in line}


def _logged(lines: Sequence[Mapping]) -> dict[int, Mapping]:
    return {line["step"]: _computed(line) for line in lines if "step_seconds" in line}


def _evaluations(lines: Sequence[Mapping]) -> dict[int, Mapping]:
    return {line["step"]: _computed(line) for line in lines if "val_loss" in line}


def _computed(line: Mapping) -> dict:
    return {name: value for name, value in line.items() if name not in OF_CLOCK}


def _first_parting(
    what: str,
    a: Mapping[int, object],
    b: Mapping[int, object],
    describe: Callable[[Any, Any], str],
) -> Parting:
    """The first step that both have with different content, as `describe` says; "" for none."""
    steps = tuple(sorted(a.keys() & b.keys()))
    for step in steps:
        how = describe(a[step], b[step])
        if how:
            return Parting(what, steps, step, how)
    return Parting(what, steps)


def _parts_that_differ(a: Mapping, b: Mapping) -> str:
    if a["state_sha256"] == b["state_sha256"]:
        return ""
    return ", ".join(_names_that_differ(a["parts_sha256"], b["parts_sha256"]))


def _values_that_differ(a: Mapping, b: Mapping) -> str:
    different = _names_that_differ(a, b)
    return ", ".join(f"{name} {a.get(name)!r} and {b.get(name)!r}" for name in different)


def _names_that_differ(a: Mapping, b: Mapping) -> list[str]:
    # As text: NaN is the same as NaN.
    return [name for name in {**a, **b} if json.dumps(a.get(name)) != json.dumps(b.get(name))]


def _largest_difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> str:
    shapes = [{name: value.shape for name, value in values.items()} for values in (a, b)]
    if shapes[0] != shapes[1]:
        return "they hold different variables"
    differences = {
        name: _distance(value, b[name])
        for name, value in a.items()
        # Callbacks' notes are no arithmetic: some are times.
        if not name.startswith("notes/") and value.tobytes() != b[name].tobytes()
    }
    if not differences:
        return ""
    name = max(differences, key=differences.get)
    return f"largest difference {differences[name]:.3g}, in {name}"


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())
