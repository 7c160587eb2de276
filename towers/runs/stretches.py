"""What a run ran on, stretch by stretch.

A run may continue under another TensorFlow, on another processor, with another revision of this
code. Its settings do not show that, but its last bits may. So `config.json` keeps a list: one entry
for the start, and one for each continuation on something else.
"""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towers import machine, version

from tensorflow.python.util import _pywrap_util_port  # isort: skip

# Read by TensorFlow and oneDNN as they start; each changes which kernels compute.
_KERNEL_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def versions() -> dict[str, str]:
    """Package to version, of those that must be the same on all workers of a run."""
    others = {module.__name__: module.__version__ for module in (tf, keras, np)}
    return {"towers": version.__version__} | others


def kernels() -> dict[str, str]:
    """Whose kernels compute, which must be the same on all workers, too."""
    onednn = {"oneDNN": "on" if _pywrap_util_port.IsMklEnabled() else "off"}
    return onednn | machine.gpu_software()


def environment() -> dict[str, str | None]:
    """Name to value of what this process runs on, outside the settings."""
    given = {name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ}
    return (
        versions()
        | kernels()
        | given
        | {
            "python": platform.python_version(),
            "processor": machine.processor(),
            "intra-op threads": str(machine.intra_op_threads()),
            "git revision": _git_revision(),
        }
    )


def on_devices(tower_devices: Sequence[str], parameter_device: str) -> dict[str, str]:
    """The kinds of devices on which towers compute and weights are updated."""
    return {
        "devices": machine.kinds(tower_devices),
        "parameters on": machine.kinds([parameter_device]),
    }


def _git_revision() -> str | None:
    """The revision of this code, with `-dirty` where it was changed; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def extended(
    stretches: Sequence[Mapping], first_step: int, runs_on: Mapping[str, str | None]
) -> list[dict]:
    """The stretches of a run that continues.

    Args:
      stretches: so far; empty where a run begins.
      first_step: the step it continues from. Stretches that began there or later left nothing.
      runs_on: `environment()` and the like, now.

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
        for difference in differences(before["runs_on"], after["runs_on"])
    ]


def differences(before: Mapping, after: Mapping) -> list[str]:
    """`name after (before: value)` for each entry of `runs_on` that differs."""
    return [
        f"{name} {after.get(name, 'not set')} (before: {before.get(name, 'not set')})"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def are_valid(stretches: object) -> bool:
    """Whether what was read from a `config.json` is a list of stretches."""
    return (
        isinstance(stretches, list)
        and bool(stretches)
        and all(
            isinstance(stretch, dict)
            and isinstance(stretch.get("first_step"), int)
            and isinstance(stretch.get("runs_on"), dict)
            for stretch in stretches
        )
    )
