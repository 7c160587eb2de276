"""The machine: its cores, and what computes on it as far as it shows in a run's last bits."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

import container_limits


def kinds(tower_devices: Sequence[str]) -> str:
    """What kind of device the towers are on: `CPU`, or the names of the GPUs."""
    if all(device.startswith("/CPU") for device in tower_devices):
        return "CPU"
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return ", ".join(sorted({detail.get("device_name", "GPU") for detail in details}))


def available_cores() -> int:
    """The cores this process may use, at least 1.

    A container that has 2.5 cores' time may use 2: of three threads one would always be waited for.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1  # not Linux
    return min(cores, container_limits.cores() or cores)


def processor() -> str:
    """The processor's name, where the system tells; its kind shows in a run's last bits."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
