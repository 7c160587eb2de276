"""What computes, and what a container allows of it."""

import os

import pretend_gpu
import pytest
import tensorflow as tf

from towers import conditions, machine, shares


@pytest.mark.parametrize(
    "files, quota, memory",
    [
        ({"cpu.max": "250000 100000", "memory.max": "4000"}, 2, 4000),
        ({"cpu.max": "50000 100000", "memory.max": "max"}, 1, None),
        ({"cpu.max": "max 100000"}, None, None), ({"cpu.max": "", "memory.max": ""}, None, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({"memory/memory.limit_in_bytes": "4000"}, None, 4000), ({}, None, None),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_control_group(tmp_path, monkeypatch, files, quota, memory):
    monkeypatch.setattr(machine, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert machine.available_cores() == (quota or 8)
    assert machine.memory_limit() == memory


def test_available_cores_are_those_of_the_process():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_towers_on_cpus_share_the_cores_and_one_on_a_gpu_takes_all_at_once(monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 8)
    assert [shares.at_once([f"/{kind}:0"] * 3) for kind in ("CPU", "GPU")] == [3, None]


@pytest.mark.parametrize(
    "files, hides, expected",
    [
        (("null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), False, "has 2 NVIDIA GPU(s)"),
        (("nvidia0",), True, None),
        (None, False, None),
    ],
)
def test_a_gpu_that_tensorflow_cannot_use_is_told_of_once(
    tmp_path, monkeypatch, caplog, files, hides, expected
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    monkeypatch.setattr(machine, "DEVICE_FILES", tmp_path / "dev")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hides:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if files is not None:
        machine.DEVICE_FILES.mkdir()
        for name in files:
            (machine.DEVICE_FILES / name).touch()
    machine.tell_about_gpus.cache_clear()
    for _ in range(2):
        machine.tell_about_gpus()
    assert [expected in line for line in caplog.messages] == ([True] if expected else [])


@pytest.mark.parametrize(("tf32", "word"), [(True, "on"), (False, "off")])
def test_what_computes_on_gpus_is_part_of_what_a_run_ran_on(monkeypatch, tf32, word):
    assert machine.gpu_software() == {} and "CUDA" not in conditions.environment()
    pretend_gpu.pretend(monkeypatch.setattr)
    build = {"cuda_version": "12.5.1", "cudnn_version": "9"}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: build)
    name = "tensor_float_32_execution_enabled"
    monkeypatch.setattr(tf.config.experimental, name, lambda: tf32)
    assert machine.gpu_software() == {"CUDA": "12.5.1", "cuDNN": "9", "TF32": word}
    assert set(conditions.environment()) >= {"oneDNN", *machine.gpu_software()}
