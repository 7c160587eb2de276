"""What computes."""

import pretend_gpu
import pytest
import tensorflow as tf

from towers import conditions, machine


@pytest.fixture
def told(caplog):
    """What `tell_about_gpus` logs."""
    machine.tell_about_gpus.cache_clear()

    def tell() -> list[str]:
        machine.tell_about_gpus()
        return [record.getMessage() for record in caplog.records]

    yield tell
    machine.tell_about_gpus.cache_clear()


@pytest.mark.parametrize(
    "files, hides, expected",
    [
        (("null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), False, "has 2 NVIDIA GPU(s)"),
        (("nvidia0",), True, None),
        (None, False, None),
    ],
)
def test_a_gpu_that_tensorflow_cannot_use_is_told_of_once(
    tmp_path, monkeypatch, told, files, hides, expected
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
    said = told()
    assert told() == said  # once
    assert [expected in line for line in said] == ([True] if expected else [])


@pytest.mark.parametrize("tf32", [True, False])
def test_what_computes_on_gpus_is_part_of_what_a_run_ran_on(tmp_path, monkeypatch, tf32):
    assert machine.gpu_software() == {} and "CUDA" not in conditions.environment()
    pretend_gpu.pretend(monkeypatch.setattr)
    driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 2023\n"
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "version")
    machine.NVIDIA_DRIVER.write_text(driver + "GCC version:  gcc version 12.2.0\n")
    build = {"cuda_version": "12.5.1", "cudnn_version": "9"}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: build)
    name = "tensor_float_32_execution_enabled"
    monkeypatch.setattr(tf.config.experimental, name, lambda: tf32)
    assert machine.gpu_software() == {
        "CUDA": "12.5.1",
        "cuBLAS": "unknown",
        "cuDNN": "9",
        "NVIDIA driver": "535.154.05",
        "TF32": "on" if tf32 else "off",
    }
    assert set(conditions.environment()) >= {"oneDNN", *machine.gpu_software()}
