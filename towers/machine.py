"""What computes: cores and their processor, GPUs, and what a container allows of them."""

import functools
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

CONTROL_GROUP = Path("/sys/fs/cgroup")  # the container's, on Linux
CPUINFO = Path("/proc/cpuinfo")
DEVICE_FILES = Path("/dev")


def available_cores() -> int:
    """The cores this process may use, at least 1.

    A container that has 2.5 cores' time may use 2: of three threads one would always be waited for.
    """
    quota = _limits("cpu.max") or _limits("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    if not quota:
        return _cores_of_process()
    return max(1, min(_cores_of_process(), quota[0] // quota[1]))


def memory_limit() -> int | None:
    """Bytes that the container may have; None where there is no limit."""
    limit = _limits("memory.max") or _limits("memory/memory.limit_in_bytes")
    return limit[0] if limit else None


def _limits(*files: str) -> list[int]:
    """The numbers in files of a control group of version 2 or 1; empty where there is no limit."""
    try:
        words = [(CONTROL_GROUP / name).read_text().split() for name in files]
        numbers = [int(word) for line in words for word in line]
    except (OSError, ValueError):  # not there; `max` in the place of a number
        return []
    return numbers if numbers and min(numbers) > 0 else []


def _cores_of_process() -> int:
    """The cores it may be scheduled on, for however much of their time; TensorFlow counts these."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux


def intra_op_threads() -> int:
    """How many threads share the work of one operation on the CPU."""
    setting = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return (
        tf.config.threading.get_intra_op_parallelism_threads()
        or (int(setting) if setting.isdecimal() else 0)
        or _cores_of_process()
    )


def processor() -> str:
    """The processor's name, where the system tells; its kind shows in a run's last bits."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def are_cpus(tower_devices: Sequence[str]) -> bool:
    """Whether all towers are on the CPU."""
    return all(device.startswith("/CPU") for device in tower_devices)


def kinds(tower_devices: Sequence[str]) -> str:
    """What kind of device the towers are on: `CPU`, or the names of the GPUs."""
    return "CPU" if are_cpus(tower_devices) else ", ".join(gpu_names())


def num_devices(kind: str) -> int:
    """How many devices of a kind, `CPU` or `GPU`, towers can name.

    Asking does not start TensorFlow's runtime, as its list of logical devices would: several
    workers must be introduced to each other before that.
    """
    visible = tf.config.get_visible_devices(kind)
    return sum(len(tf.config.get_logical_device_configuration(one) or [one]) for one in visible)


def gpu_names() -> list[str]:
    """The kinds of GPUs that the process may use, each once."""
    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return sorted({detail.get("device_name", "GPU") for detail in details})


def gpu_software() -> dict[str, str]:
    """What TensorFlow was built for and how it multiplies on GPUs; empty without any."""
    if not tf.config.get_visible_devices("GPU"):
        return {}
    build = tf.sysconfig.get_build_info()
    return {
        "CUDA": build.get("cuda_version", "unknown"),
        "cuDNN": build.get("cudnn_version", "unknown"),
        "TF32": "on" if tf.config.experimental.tensor_float_32_execution_enabled() else "off",
    }


@functools.cache
def tell_about_gpus() -> None:
    """Logs a warning, once, where a GPU is not used: TF_CPP_MIN_LOG_LEVEL=3 hides TensorFlow's."""
    if tf.config.list_physical_devices("GPU") or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    if gpus := list(DEVICE_FILES.glob("nvidia[0-9]*")):
        logging.getLogger(__name__).warning(
            f"this machine has {len(gpus)} NVIDIA GPU(s), but TensorFlow can use none of them: "
            f"install tensorflow[and-cuda]=={tf.__version__} with pip, or set "
            "CUDA_VISIBLE_DEVICES=-1 to train on the CPU without this notice"
        )
