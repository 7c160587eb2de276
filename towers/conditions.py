"""What a process computes with, outside the settings of a run, and where that changes in a run.

A run may continue under another TensorFlow or on another processor. Its settings do not show that,
but its last bits may. So `config.json` has a list of stretches: one for the start, and one for each
continuation on something else.
"""

import os
import platform
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import PIL
import tensorflow as tf

from towers import errors, machine, version

from tensorflow.python.util import _pywrap_util_port  # isort: skip

# Read by TensorFlow and oneDNN as they start; each changes which kernels compute.
_KERNEL_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "TF_CUDNN_DETERMINISTIC",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def environment() -> dict[str, str]:
    """Name to value of what may show in the last bits of a run; the same on all workers."""
    # Pillow decodes, scales and distorts pictures.
    versions = {module.__name__: module.__version__ for module in (tf, keras, np, PIL)}
    variables = {name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ}
    others = {
        "towers": version.__version__,
        "python": platform.python_version(),
        "processor": machine.processor(),
        "oneDNN": "on" if _pywrap_util_port.IsMklEnabled() else "off",
        "intra-op threads": str(machine.intra_op_threads()),
    }
    return others | versions | machine.gpu_software() | variables


def extended(stretches: Sequence[dict], first_step: int, runs_on: Mapping[str, str]) -> list[dict]:
    """The stretches of a run that continues.

    Args:
      stretches: so far; empty where a run begins.
      first_step: the step it continues from. Stretches that began there or later left nothing.
      runs_on: `environment()` and the like, now.

    Returns:
      `stretches`, with one more where `runs_on` is not what the last one ran on; each has
      `first_step` and `runs_on`.
    """
    kept = [stretch for stretch in stretches if stretch["first_step"] < first_step]
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
