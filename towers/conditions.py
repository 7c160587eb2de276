"""What a process computes with, outside the settings of a run."""

import os
import platform
import subprocess
from pathlib import Path

import keras
import numpy as np
import PIL
import tensorflow as tf

from towers import machine, version

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


def environment() -> dict[str, str | None]:
    """Name to value of what may show in the last bits of a run.

    It must be the same on all workers, and a run's `config.json` says where it changed.
    """
    # Pillow decodes, scales and distorts pictures.
    versions = {module.__name__: module.__version__ for module in (tf, keras, np, PIL)}
    kernels = {
        "oneDNN": "on" if _pywrap_util_port.IsMklEnabled() else "off"
    } | machine.gpu_software()
    variables = {name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ}
    others = {
        "python": platform.python_version(),
        "processor": machine.processor(),
        "intra-op threads": str(machine.intra_op_threads()),
        "git revision": _git_revision(),
    }
    return {"towers": version.__version__} | versions | kernels | variables | others


def _git_revision() -> str | None:
    """The revision of this code, with `-dirty` where it was changed; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parents[1]
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
