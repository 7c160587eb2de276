"""What the container around this process lets it use: cores and memory, of Linux's control groups.

Their two versions have different files. A limit of a group holds for all groups inside it, so the
process's group is asked and every one around it. Without a limit there is nothing to say.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def cores(root: Path = _ROOT) -> int | None:
    """The whole cores whose time the container may use, at least 1; None where it may use all.

    Args:
      root: of the file system that has /proc and the control groups.
    """
    quotas = []
    for group in _groups("cpu", root):
        version_2 = _text(group / "cpu.max").split()
        version_1 = [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for texts in (version_2, version_1):
            if len(texts) == 2 and all(map(str.isdecimal, texts)) and int(texts[1]):
                quotas.append(int(texts[0]) / int(texts[1]))
    return min((max(1, int(quota)) for quota in quotas), default=None)


def available_cores() -> int:
    """The cores this process may use, at least 1.

    A container that has 2.5 cores' time may use 2: of three threads one would always be waited for.
    """
    of_process = cores_of_process()
    return min(of_process, cores() or of_process)


def cores_of_process() -> int:
    """The cores it may be scheduled on, for however much of their time; TensorFlow counts these."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that the process may still take in its container; None where there is no limit.

    What the kernel holds of files counts as available: it lets go of that first.

    Args:
      root: as for `cores`.
    """
    left = []
    for group in _groups("memory", root):
        held = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.M))
        for limit_file, used_file, prefix in (
            ("memory.max", "memory.current", ""),  # version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
        ):
            limit, used = _text(group / limit_file), _text(group / used_file)
            if limit.isdecimal() and used.isdecimal():
                files = [
                    int(held.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive")
                ]
                left.append(max(0, int(limit) - max(0, int(used) - sum(files))))
    return min(left, default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the process's control group and of those around it, in both versions."""
    lines = re.findall(r"^\d+:([^:]*):/?(.*)$", _text(root / "proc/self/cgroup"), re.M)
    paths = {name: path for names, path in lines for name in names.split(",")}
    for name in (controller, ""):  # version 2 has one tree for all controllers
        mount = root / "sys/fs/cgroup" / name
        folder = mount / paths.get(name, "")
        # Without a name space of its own a container's path is that of the host.
        folder = folder if folder.is_dir() and ".." not in folder.parts else mount
        yield folder
        while folder != mount:
            folder = folder.parent
            yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
