"""What a run ran on, stretch by stretch.

A run may continue under another TensorFlow, on another processor, with another revision of this
code. Its settings do not show that, but its last bits may. So `config.json` keeps a list: one entry
for the start, and one for each continuation on something else.
"""

from collections.abc import Mapping, Sequence

from towers import errors, machine


def on_devices(tower_devices: Sequence[str], parameter_device: str) -> dict[str, str]:
    """The kinds of devices on which towers compute and weights are updated."""
    return {
        "devices": machine.kinds(tower_devices),
        "parameters on": machine.kinds([parameter_device]),
    }


def extended(
    stretches: Sequence[Mapping], first_step: int, runs_on: Mapping[str, str | None]
) -> list[dict]:
    """The stretches of a run that continues.

    Args:
      stretches: so far; empty where a run begins.
      first_step: the step it continues from. Stretches that began there or later left nothing.
      runs_on: `conditions.environment()` and the like, now.

    Returns:
      `stretches`, with one more where `runs_on` is not what the last one ran on; each has
      `first_step` and `runs_on`.
    """
    kept = [dict(stretch) for stretch in stretches if stretch["first_step"] < first_step]
    if kept and kept[-1]["runs_on"] == runs_on:
        return kept
    return [*kept, {"first_step": first_step, "runs_on": dict(runs_on)}]


def changes(stretches: Sequence[Mapping]) -> list[str]:
    """What changed at the start of each stretch but the first, in words."""
    return [
        f"from step {after['first_step']} on, {difference}"
        for before, after in zip(stretches, stretches[1:], strict=False)
        for difference in errors.differences(before["runs_on"], after["runs_on"], "the part before")
    ]
