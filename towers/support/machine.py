"""What computes, as far as it shows in a run's last bits."""

import platform
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf


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
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
