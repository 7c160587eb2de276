"""Where towers run, what computes there, and what a container allows of it."""

import ast
import functools
import os
import subprocess
import sys

import forked
import pretend_gpu
import pytest
import scripts
import tensorflow as tf
import toys

import towers
from towers import conditions, devices, machine, shares


@pytest.fixture
def with_gpus(monkeypatch):
    """Makes TensorFlow list so many visible GPUs, each cut into logical ones or not."""
    return functools.partial(pretend_gpu.pretend, monkeypatch.setattr)


def test_towers_share_the_one_device_of_a_started_runtime():
    program = """
import towers, tensorflow as tf
tf.constant(1.0)
print(towers.devices.choose(), towers.devices.choose(1), towers.devices.choose(2))
"""
    done = forked.run([sys.executable, "-c", program], timeout=60)
    assert done.stdout == "('/CPU:0',) ('/CPU:0',) ('/CPU:0', '/CPU:0')\n"


def test_one_tower_for_each_gpu_is_the_default_and_the_most(with_gpus):
    with_gpus(2)
    assert devices.choose() == ("/GPU:0", "/GPU:1")
    assert devices.choose(1) == ("/GPU:0",)
    for number in (3, 0, -1):
        with pytest.raises(ValueError, match=f"num_towers={number}: "):
            devices.choose(number)


def test_the_command_keeps_kernel_choices_in_a_folder_for_each_kind_of_gpu(tmp_path):
    """By flags that XLA knows: it ends a process for others."""
    program = """
import pretend_gpu, scripts, tensorflow as tf
from towers import conditions
from towers_cli import build, resolve
pretend_gpu.pretend(device_name="H100 (80 GB)")
build.start_runtime(resolve.resolved(scripts.settings_of("--gpu_defaults"), 1, 4))
print({name: conditions.environment()[name] for name in ("XLA_FLAGS", "TF_CUDNN_DETERMINISTIC")})
with tf.device("/CPU:0"):
    print(float(tf.function(lambda x: 2 * x, jit_compile=True)(tf.constant(1.5))))
"""
    cache, fast = tmp_path / "of a user", "--xla_cpu_enable_fast_math=false"
    done = forked.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        timeout=60, env=os.environ | {"XDG_CACHE_HOME": str(cache), "XLA_FLAGS": fast},
    )  # fmt: skip
    recorded, product = done.stdout.splitlines()
    (folder,) = (cache / "towers" / "kernels").iterdir()
    assert folder.name.startswith(f"H100-80-GB-{tf.__version__}-") and product == "3.0"
    flags = ast.literal_eval(recorded)
    assert flags["TF_CUDNN_DETERMINISTIC"] == "1" and flags["XLA_FLAGS"].startswith(f"{fast} --xla")
    for part in ("autotuner", "fusions"):
        assert (folder / part).is_dir()
        assert f"_cache_dir='{folder}/{part}'" in flags["XLA_FLAGS"]


def test_graphs_run_as_they_are_written():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    towers.distribute(toys.linear(1.0), 1)
    assert tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"] is True


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_gpus_split_into_logical_devices_keep_their_memory_settings(with_gpus, monkeypatch, error):
    # ValueError is TensorFlow's answer where logical devices have a size of their own.
    with_gpus(1, ["half of it"] * 2)

    def refuse(gpu, on):
        raise error("Cannot set memory growth on device when virtual devices configured")

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    assert devices.choose(2) == ("/GPU:0", "/GPU:1")


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


def test_cores_and_threads_are_those_of_the_process(monkeypatch):
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert machine.intra_op_threads() == len(allowed)  # as TensorFlow counts them
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


VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
HOST = """
import logging, absl.logging, towers
levels = {name: logging.getLogger(name).level for name in ("", "absl", "tensorflow")}
assert levels == {"": logging.WARNING, "absl": logging.NOTSET, "tensorflow": logging.NOTSET}, levels
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
absl.logging.info("a word of the program's")
"""


def run(*command, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=scripts.ROOT, capture_output=True, text=True,
        env=kept | {"CUDA_VISIBLE_DEVICES": "-1"} | environment, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["program", "command"])
def test_another_backend_is_refused(kind, tmp_path):
    program, command = ["-c", "import towers"], ["eval.py", f"--train_dir={tmp_path / 'run'}"]
    done = run(*(program if kind == "program" else command), KERAS_BACKEND="jax")
    assert (done.returncode, done.stdout) == (1, "")
    *before, last = done.stderr.splitlines()
    assert "'jax'" in last
    assert last.startswith("ImportError: " if kind == "program" else "eval.py: error: ")
    assert not before or kind == "program"


@pytest.mark.parametrize(
    ("before", "imported", "after"),
    [(None, False, "1"), ("0", False, "0"), ("1", False, "1"), (None, True, None)],
)
def test_a_variable_is_set_unless_it_was_or_it_is_too_late(monkeypatch, before, imported, after):
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    if not imported:
        monkeypatch.delitem(sys.modules, "tensorflow")
    towers.setup()
    assert os.environ.get(VARIABLE) == after


@pytest.mark.long
def test_an_import_leaves_every_logger_as_it_is():
    done = run("-c", HOST, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.stderr.splitlines()[-1] == "absl: a word of the program's"
