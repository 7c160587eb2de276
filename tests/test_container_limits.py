"""Limits of containers, read from control groups that these tests write."""

import os
from pathlib import Path

import pytest

from towers import container_limits

GB = 10**9
UNLIMITED_IN_VERSION_1 = "9223372036854771712"


def system(root: Path, files: dict[str, object], own: str) -> Path:
    """A file system whose control groups hold `files`, by path below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def version_2(root: Path, files: dict[str, object], own: str = "/") -> Path:
    """One tree for all controllers."""
    return system(root, files, f"0::{own}\n")


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        *(("250000 100000", 2), ("50000 100000", 1), ("30000 10000", 3)),
        *(("max 100000", None), ("", None), ("200000 0", None), ("two three", None)),
    ],
)
def test_cores_of_version_2(tmp_path, cpu_max, expected):
    assert container_limits.cores(version_2(tmp_path, {"cpu.max": cpu_max})) == expected


@pytest.mark.parametrize(("outer", "inner", "expected"), [("3", "8", 3), ("8", "2", 2)])
def test_the_tightest_group_around_the_process_counts(tmp_path, outer, inner, expected):
    files = {
        "slice/cpu.max": f"{outer}00000 100000",
        "slice/pod/cpu.max": f"{inner}00000 100000",
        "slice/other/cpu.max": "100000 100000",
        "slice/memory.max": 8 * GB,
        "slice/memory.current": 7 * GB,
        "slice/pod/memory.max": 4 * GB,
        "slice/pod/memory.current": GB,
    }
    root = version_2(tmp_path, files, "/slice/pod")
    assert container_limits.cores(root) == expected
    assert container_limits.available_memory(root) == GB  # the least left


def test_memory_of_version_2_counts_what_files_hold_as_available(tmp_path):
    stat = f"anon {GB}\nactive_file {GB // 2}\ninactive_file {GB}\nfile {2 * GB}"
    files = {"memory.max": 4 * GB, "memory.current": 3 * GB, "memory.stat": stat}
    root = version_2(tmp_path, files)
    assert container_limits.available_memory(root) == 4 * GB - (3 * GB - 3 * GB // 2)


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("20000", 1), ("-1", None)])
def test_version_1(tmp_path, quota, cores):
    files = {
        "cpu/pod/cpu.cfs_quota_us": quota,
        "cpu/pod/cpu.cfs_period_us": "100000",
        "memory/pod/memory.limit_in_bytes": 4 * GB,
        "memory/pod/memory.usage_in_bytes": 3 * GB,
        "memory/pod/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}",
        "memory/memory.limit_in_bytes": UNLIMITED_IN_VERSION_1,
        "memory/memory.usage_in_bytes": 20 * GB,
    }
    own = "9:name=systemd:/\n4:cpu,cpuacct:/pod\n3:memory:/pod\n0::/\n"  # a tree for each
    root = system(tmp_path, files, own)
    assert container_limits.cores(root) == cores
    assert container_limits.available_memory(root) == 2 * GB


@pytest.mark.parametrize("limit", ["max", "", "lots", "-1"])
def test_without_a_limit(tmp_path, limit):
    root = version_2(tmp_path / "root", {"memory.max": limit, "memory.current": "5"})
    for place in (root, tmp_path):  # or without control groups
        assert container_limits.available_memory(place) is None


def test_available_cores_are_those_of_the_process():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert container_limits.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert container_limits.available_cores() == len(allowed)
