"""Limits of containers, read from control groups that these tests write."""

import os

import pytest

from towers import container_limits

GB = 10**9


# What a process belongs to, the files of its groups below /sys/fs/cgroup, and the cores and bytes
# that they leave to it.
OF_ONE_TREE = "0::/\n"
OF_VERSION_1 = "9:name=systemd:/\n4:cpu,cpuacct:/pod\n3:memory:/pod\n0::/\n"  # a tree for each


def nested(outer: int, inner: int) -> dict[str, object]:
    """Of several groups the tightest one around the process counts."""
    return {
        "slice/cpu.max": f"{outer}00000 100000",
        "slice/pod/cpu.max": f"{inner}00000 100000",
        "slice/other/cpu.max": "100000 100000",
        "slice/memory.max": 8 * GB,
        "slice/memory.current": 7 * GB,
        "slice/pod/memory.max": 4 * GB,
        "slice/pod/memory.current": GB,
    }


def version_1(quota: int) -> dict[str, object]:
    return {
        "cpu/pod/cpu.cfs_quota_us": quota,
        "cpu/pod/cpu.cfs_period_us": "100000",
        "memory/pod/memory.limit_in_bytes": 4 * GB,
        "memory/pod/memory.usage_in_bytes": 3 * GB,
        "memory/pod/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}",
        "memory/memory.limit_in_bytes": "9223372036854771712",  # none
        "memory/memory.usage_in_bytes": 20 * GB,
    }


OF_FILES = {  # what files hold counts as available
    "memory.max": 4 * GB,
    "memory.current": 3 * GB,
    "memory.stat": f"anon {GB}\nactive_file {GB // 2}\ninactive_file {GB}\nfile {2 * GB}",
}
CASES = [
    *((OF_ONE_TREE, {"cpu.max": f"{share}0000 100000"}, n, None) for share, n in ((25, 2), (5, 1))),
    (OF_ONE_TREE, {"cpu.max": "30000 10000"}, 3, None),
    *((OF_ONE_TREE, {"cpu.max": no}, None, None) for no in ("max 100000", "", "200000 0", "a b")),
    *(("0::/slice/pod\n", nested(*cores), min(cores), GB) for cores in ((3, 8), (8, 2))),
    (OF_ONE_TREE, OF_FILES, None, 4 * GB - (3 * GB - 3 * GB // 2)),
    *((OF_VERSION_1, version_1(quota), n, 2 * GB) for quota, n in ((400000, 4), (20000, 1))),
    (OF_VERSION_1, version_1(-1), None, 2 * GB),
    *((OF_ONE_TREE, {"memory.max": no, "memory.current": "5"}, None, None) for no in ("max", "-1")),
    *((OF_ONE_TREE, {"memory.max": no, "memory.current": "5"}, None, None) for no in ("", "lots")),
    (OF_ONE_TREE, {}, None, None),
]


@pytest.mark.parametrize(("own", "files", "cores", "memory"), CASES)
def test_limits_are_those_of_the_groups(tmp_path, own, files, cores, memory):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    assert container_limits.cores(tmp_path) == cores
    assert container_limits.available_memory(tmp_path) == memory


def test_available_cores_are_those_of_the_process():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert container_limits.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert container_limits.available_cores() == len(allowed)
