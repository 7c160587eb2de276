"""What a process computes with, outside the settings of a run.

A run may continue under another TensorFlow or on another processor. Its settings do not show that,
but its last bits may. So `config.json` has what it runs on, and what changed at which step.
"""

import os
import platform

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
