"""What computes, as far as it shows in a run's last bits."""

import platform
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

CPUINFO = Path("/proc/cpuinfo")


def are_cpus(tower_devices: Sequence[str]) -> bool:
    """Whether all towers are on the CPU."""
    return all(device.startswith("/CPU") for device in tower_devices)


def kinds(tower_devices: Sequence[str]) -> str:
    """What kind of device the towers are on: `CPU`, or the names of the GPUs."""
    if are_cpus(tower_devices):
        return "CPU"
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return ", ".join(sorted({detail.get("device_name", "GPU") for detail in details}))


def processor() -> str:
    """The processor's name, where the system tells; its kind shows in a run's last bits."""
    return _of_cpuinfo("model name") or platform.processor()


def emulates_half_precision() -> bool:
    """Whether TensorFlow computes in bfloat16 and float16 without kernels for this processor.

    It has them on x86 where there is AVX-512 or AVX-NE-CONVERT, as its `mkl_util.h` asks.
    docs/speed.md has the times without. False where the system does not list instructions.
    """
    flags = (_of_cpuinfo("flags") or "").split()
    return bool(flags) and not {"avx512f", "avx_ne_convert"} & set(flags)


def _of_cpuinfo(name: str) -> str | None:
    """The value of a field of the first processor; None where there is none."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    values = [line.partition(":")[2].strip() for line in lines if line.startswith(name)]
    return values[0] if values else None
