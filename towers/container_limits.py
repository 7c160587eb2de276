"""What the container around this process lets it use: cores and memory, of Linux's control groups.

What is limited is said in small files, of which version 2 of control groups and version 1 have
different ones. A limit of a group holds for all groups inside it, so the process's own group is
asked and every one around it. Where there is no Linux, no limit, or a file that cannot be
understood, there is nothing to say.
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
    return min((max(1, int(quota)) for quota in _quotas(root)), default=None)


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


def _quotas(root: Path) -> Iterator[float]:
    for group in _groups("cpu", root):
        of_version_2 = _text(group / "cpu.max").split()
        of_version_1 = [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        for found in (of_version_2, of_version_1):
            if len(found) == 2 and all(map(str.isdecimal, found)) and int(found[1]):
                yield int(found[0]) / int(found[1])


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that the process may still take in its container; None where there is no limit.

    What the kernel holds of files counts as available: it lets go of that first.

    Args:
      root: as for `cores`.
    """
    return min(_left(root), default=None)


def _left(root: Path) -> Iterator[int]:
    for group in _groups("memory", root):
        held = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.M))
        for limit_file, used_file, prefix in (
            ("memory.max", "memory.current", ""),  # version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
        ):
            limit, used = _text(group / limit_file), _text(group / used_file)
            if limit.isdecimal() and used.isdecimal():
                of_files = [f"{prefix}{kind}_file" for kind in ("active", "inactive")]
                reclaimable = sum(int(held.get(name, 0)) for name in of_files)
                yield max(0, int(limit) - max(0, int(used) - reclaimable))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the process's control group and of those around it, in both versions."""
    own = _own_paths(root)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version_1 = kind[0] == "cgroup"
        if version_1 and controller not in kind[-1].split(","):
            continue
        top, mounted = fields[3:5]
        mount = root / mounted.lstrip("/")
        # Without a name space of its own a container's path is that of the host, as is `top`.
        inside = Path(own.get(controller if version_1 else "", top))
        inside = inside.relative_to(top) if inside.is_relative_to(top) else Path()
        folder = mount if ".." in inside.parts else mount / inside
        yield folder
        while folder != mount:
            folder = folder.parent
            yield folder


def _own_paths(root: Path) -> dict[str, str]:
    """Controller to the path of the process's group; that of version 2 has no controller's name."""
    groups = re.findall(r"^\d+:([^:]*):(.*)$", _text(root / "proc/self/cgroup"), re.M)
    return {name: path for controllers, path in groups for name in controllers.split(",")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
