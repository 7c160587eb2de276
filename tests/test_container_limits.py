"""Limits of containers, read from control groups that these tests write."""

import os
from pathlib import Path

import psutil
import pytest
import scripts

from input_pipeline import decoded
from towers import container_limits

GB = 10**9
UNLIMITED_IN_VERSION_1 = "9223372036854771712"


def system(root: Path, files: dict[str, str], own: str) -> Path:
    """A file system whose control groups hold `files`, by path below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def version_2(root: Path, files: dict[str, str], own: str = "/") -> Path:
    """One tree for all controllers."""
    return system(root, files, f"0::{own}\n")


def version_1(root: Path, files: dict[str, str], own: str = "/") -> Path:
    """The cpu and the memory controller, each mounted in its own folder."""
    return system(root, files, f"9:name=systemd:/\n4:cpu,cpuacct:{own}\n3:memory:{own}\n0::/\n")


class TestCores:
    @pytest.mark.parametrize(
        ("cpu_max", "expected"),
        [
            ("200000 100000", 2),
            ("250000 100000", 2),
            ("50000 100000", 1),
            ("1000 100000", 1),
            ("30000 10000", 3),
            ("max 100000", None),
            ("", None),
            ("200000", None),
            ("-1 100000", None),
            ("two three", None),
            ("200000 100000 5", None),
        ],
    )
    def test_of_version_2(self, tmp_path, cpu_max, expected):
        assert container_limits.cores(version_2(tmp_path, {"cpu.max": cpu_max})) == expected

    @pytest.mark.parametrize(
        ("quota", "expected"),
        [("400000", 4), ("150000", 1), ("20000", 1), ("-1", None), ("", None)],
    )
    def test_of_version_1(self, tmp_path, quota, expected):
        pod = "cpu/pod"
        files = {f"{pod}/cpu.cfs_quota_us": quota, f"{pod}/cpu.cfs_period_us": "100000"}
        assert container_limits.cores(version_1(tmp_path, files, "/pod")) == expected

    @pytest.mark.parametrize(("outer", "inner", "expected"), [("3", "8", 3), ("8", "2", 2)])
    def test_the_tightest_group_around_the_process_counts(self, tmp_path, outer, inner, expected):
        files = {
            "slice/cpu.max": f"{outer}00000 100000",
            "slice/pod/cpu.max": f"{inner}00000 100000",
            "slice/other/cpu.max": "100000 100000",
        }
        assert container_limits.cores(version_2(tmp_path, files, "/slice/pod")) == expected

    def test_without_control_groups_there_is_no_limit(self, tmp_path):
        assert container_limits.cores(tmp_path) is None
        assert container_limits.available_memory(tmp_path) is None

    def test_what_cannot_be_understood_is_no_limit(self, tmp_path):
        root = version_2(tmp_path, {"pod/cpu.max": "200000 100000"}, "/pod")
        (root / "proc/self/cgroup").write_bytes(b"\xff\n0:\n")
        assert container_limits.cores(root) is None


class TestMemory:
    def test_of_version_2_counts_what_files_hold_as_available(self, tmp_path):
        files = {
            "memory.max": str(4 * GB),
            "memory.current": str(3 * GB),
            "memory.stat": f"anon {GB}\nactive_file {GB // 2}\ninactive_file {GB}\nfile {2 * GB}",
        }
        root = version_2(tmp_path, files)
        assert container_limits.available_memory(root) == 4 * GB - (3 * GB - 3 * GB // 2)

    def test_of_version_1(self, tmp_path):
        files = {
            "memory/pod/memory.limit_in_bytes": str(4 * GB),
            "memory/pod/memory.usage_in_bytes": str(3 * GB),
            "memory/pod/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB}",
            "memory/memory.limit_in_bytes": UNLIMITED_IN_VERSION_1,
            "memory/memory.usage_in_bytes": str(20 * GB),
        }
        assert container_limits.available_memory(version_1(tmp_path, files, "/pod")) == 2 * GB

    def test_of_version_1_in_a_container_without_a_name_space(self, tmp_path):
        """The process's path is the host's, and the container's own group is what is mounted."""
        files = {
            "memory/memory.limit_in_bytes": str(4 * GB),
            "memory/memory.usage_in_bytes": str(GB),
        }
        root = version_1(tmp_path, files, "/docker/abc")
        assert container_limits.available_memory(root) == 3 * GB

    def test_of_a_group_outside_the_name_space(self, tmp_path):
        root = version_2(tmp_path, {"memory.max": str(2 * GB), "memory.current": "0"}, "/../other")
        assert container_limits.available_memory(root) == 2 * GB

    def test_the_group_with_the_least_left_counts(self, tmp_path):
        files = {
            "slice/memory.max": str(8 * GB),
            "slice/memory.current": str(7 * GB),
            "slice/pod/memory.max": str(4 * GB),
            "slice/pod/memory.current": str(GB),
        }
        root = version_2(tmp_path, files, "/slice/pod")
        assert container_limits.available_memory(root) == GB

    @pytest.mark.parametrize("limit", ["max", "", "lots", "-1"])
    def test_without_a_limit(self, tmp_path, limit):
        root = version_2(tmp_path, {"memory.max": limit, "memory.current": "5"})
        assert container_limits.available_memory(root) is None

    def test_over_the_limit_there_is_nothing_left(self, tmp_path):
        root = version_2(tmp_path, {"memory.max": "5", "memory.current": "7"})
        assert container_limits.available_memory(root) == 0

    def test_images_that_the_machine_could_hold_and_the_container_cannot_are_refused(
        self, monkeypatch
    ):
        memory = psutil.virtual_memory()._replace(available=64 * GB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(container_limits, "available_memory", lambda: None)
        decoded.check_memory("the set is too large: its images", 9 * GB)
        monkeypatch.setattr(container_limits, "available_memory", lambda: 4 * GB)
        with pytest.raises(
            decoded.DataError, match="its images take 9.0 GB .* 4.0 GB of memory is available"
        ):
            decoded.check_memory("the set is too large: its images", 9 * GB)

    @pytest.mark.long
    def test_a_run_says_so_in_one_line(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert scripts.train(tmp_path / "run", "--max_steps=1").returncode == 0
        monkeypatch.setattr(container_limits, "available_memory", lambda: 5_000_000)
        done = scripts.train(tmp_path / "run", "--max_steps=2")
        assert (done.returncode, done.stdout) == (1, "")
        assert "the data set is too large: its images take 0.0 GB" in done.stderr
        assert done.stderr.count("\n") == 1


def test_available_cores_are_those_of_the_process():
    if not hasattr(os, "sched_getaffinity"):
        assert container_limits.available_cores() == os.cpu_count()
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert container_limits.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert container_limits.available_cores() == len(allowed)


def test_the_smaller_of_quota_and_affinity(monkeypatch):
    monkeypatch.setattr(container_limits.os, "sched_getaffinity", lambda _: range(8), raising=False)
    for quota, expected in ((None, 8), (3, 3), (64, 8)):
        monkeypatch.setattr(container_limits, "cores", lambda quota=quota: quota)
        assert container_limits.available_cores() == expected
