"""Where towers run, and the errors of asking for too many."""

import ast
import functools
import os
import sys

import forked
import pretend_gpu
import pytest
import tensorflow as tf
import toys

import towers
from towers import devices


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
