"""What computes, as far as it shows in a run's last bits."""

import ctypes
import functools
import logging
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from towers import container_limits

CPUINFO = Path("/proc/cpuinfo")
DEVICE_FILES = Path("/dev")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def are_cpus(tower_devices: Sequence[str]) -> bool:
    """Whether all towers are on the CPU."""
    return all(device.startswith("/CPU") for device in tower_devices)


def num_devices(kind: str) -> int:
    """How many devices of a kind, `CPU` or `GPU`, towers can name.

    Asking does not start TensorFlow's runtime, as its list of logical devices would: several
    workers must be introduced to each other before that.
    """
    visible = tf.config.get_visible_devices(kind)
    return sum(len(tf.config.get_logical_device_configuration(one) or [one]) for one in visible)


def kinds(tower_devices: Sequence[str]) -> str:
    """What kind of device the towers are on: `CPU`, or the names of the GPUs."""
    if are_cpus(tower_devices):
        return "CPU"
    return ", ".join(gpu_names())


def gpu_names() -> list[str]:
    """The kinds of GPUs that the process may use, each once."""
    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return sorted({detail.get("device_name", "GPU") for detail in details})


def gpu_software() -> dict[str, str]:
    """What computes on the GPUs that the process may use, name to version; empty without any."""
    if not tf.config.get_visible_devices("GPU"):
        return {}
    build = tf.sysconfig.get_build_info()
    driver = NVIDIA_DRIVER.read_text() if NVIDIA_DRIVER.exists() else ""
    found = re.search(r"\b\d+(\.\d+)+\b", driver)
    cuda, cudnn = (build.get(f"{name}_version", "unknown") for name in ("cuda", "cudnn"))
    cublas = _loaded(f"libcublasLt.so.{cuda.split('.')[0]}", "cublasLtGetVersion")
    return {
        "CUDA": cuda,
        "cuBLAS": cublas or "unknown",
        "cuDNN": _loaded(f"libcudnn.so.{cudnn.split('.')[0]}", "cudnnGetVersion") or cudnn,
        "NVIDIA driver": found[0] if found else "unknown",
        "TF32": "on" if tf.config.experimental.tensor_float_32_execution_enabled() else "off",
    }


def _loaded(library: str, function: str) -> str | None:
    """The version of a library that this process has loaded; None where it has not.

    TensorFlow loads cuBLAS and cuDNN when it lists GPUs, and tells only for which it was built.
    """
    try:
        version = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW), function)
    except (OSError, AttributeError):
        return None
    version.restype = ctypes.c_size_t
    number = version()  # such as 91900
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


@functools.cache
def tell_about_gpus() -> None:
    """Logs a warning, once, where a GPU is not used: TF_CPP_MIN_LOG_LEVEL=3 hides TensorFlow's."""
    if notice := _unused_gpus():
        logging.getLogger(__name__).warning(notice)


def _unused_gpus() -> str | None:
    if tf.config.list_physical_devices("GPU") or "CUDA_VISIBLE_DEVICES" in os.environ:
        return None
    files = os.listdir(DEVICE_FILES) if DEVICE_FILES.exists() else []
    there = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in files)
    if not there:
        return None
    return (
        f"this machine has {there} NVIDIA GPU(s), but TensorFlow can use none of them: install "
        f"tensorflow[and-cuda]=={tf.__version__} with pip, or set CUDA_VISIBLE_DEVICES=-1 to train "
        "on the CPU without this notice"
    )


def processor() -> str:
    """The processor's name, where the system tells; its kind shows in a run's last bits."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def intra_op_threads() -> int:
    """How many threads share the work of one operation on the CPU."""
    given = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return (
        tf.config.threading.get_intra_op_parallelism_threads()
        or (int(given) if given.isdecimal() else 0)
        or container_limits.cores_of_process()
    )
