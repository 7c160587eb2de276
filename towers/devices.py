"""Where the work is done: one device per tower, and one, the CPU as a rule, for the variables."""

import contextlib
import os
import pathlib
import re
from collections.abc import Sequence

import tensorflow as tf

from towers import machine

HOST = "/CPU:0"
_FLAGS_OF_CHOICES = {  # name of a folder to XLA's flag for it
    "autotuner": "xla_gpu_experimental_autotuner_cache_dir",
    "fusions": "xla_gpu_per_fusion_autotune_cache_dir",
}


def choose(towers: int | Sequence[str] | None = None) -> tuple[str, ...]:
    """Chooses one device per tower.

    With GPUs: the first ones. Without: logical CPU devices, into which TensorFlow splits the CPU
    only before its runtime starts, with the first tensor or variable; after that, towers share the
    devices there are. The results are the same, and so are the threads.

    Args:
      towers: how many, at least 1; or the names of their devices; None means one per visible GPU,
        else 1.

    Returns:
      Device names such as `("/GPU:0", "/GPU:1")` or `("/CPU:0", "/CPU:1")`, index = tower.

    Raises:
      TypeError: `towers` is neither.
      ValueError: it is below 1, or more than the GPUs of a machine that has some; or there is no
        device of a name, for which TensorFlow would take another one.
    """
    num_gpus = machine.num_devices("GPU")
    if isinstance(towers, (list, tuple)) and towers and {*map(type, towers)} == {str}:
        return _named(towers)
    towers = max(1, num_gpus) if towers is None else towers
    if type(towers) is not int:
        raise TypeError(f"towers={towers!r}: must be their number, or a list of their devices")
    if towers < 1:
        raise ValueError(f"num_towers={towers}: must be at least 1")
    machine.tell_about_gpus()
    return _gpus(towers, num_gpus) if num_gpus else _logical_cpus(towers)


def _named(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        spec = tf.DeviceSpec.from_string(name)
        kind = spec.device_type or "CPU"
        number = machine.num_devices(kind)
        if (spec.device_index or 0) >= number:
            raise ValueError(f"towers has {name!r}: no such device; {kind} devices: {number}")
    return tuple(names)


def _gpus(num_towers: int, num_gpus: int) -> tuple[str, ...]:
    for gpu in tf.config.get_visible_devices("GPU"):
        # Not where the runtime has started, or the GPU is split into devices of a size.
        with contextlib.suppress(RuntimeError, ValueError):
            tf.config.experimental.set_memory_growth(gpu, True)
    if num_towers > num_gpus:
        raise ValueError(
            f"num_towers={num_towers}: this machine has {num_gpus} GPU(s), and each tower needs "
            "one; hide the GPUs with CUDA_VISIBLE_DEVICES=-1 to run the towers on the CPU"
        )
    return tuple(f"/GPU:{tower}" for tower in range(num_towers))


def _logical_cpus(num_towers: int) -> tuple[str, ...]:
    if machine.num_devices("CPU") < num_towers:
        parts = [tf.config.LogicalDeviceConfiguration()] * num_towers
        with contextlib.suppress(RuntimeError):  # the runtime has started
            cpu = tf.config.get_visible_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, parts)
    num_devices = machine.num_devices("CPU")
    return tuple(f"/CPU:{tower % num_devices}" for tower in range(num_towers))


def use_intra_op_threads(intra_op_threads: int) -> None:
    """Sets how many threads work on one operation. Call it before any other use of the runtime.

    On a CPU that is part of the arithmetic: the gradients of convolution kernels and biases and the
    statistics of batch norm are summed in one share per thread.

    Raises:
      RuntimeError: from TensorFlow, whose runtime has started with another number.
    """
    if tf.config.threading.get_intra_op_parallelism_threads() != intra_op_threads:
        tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)


def run_deterministically() -> None:
    """Turns on what gives the same bits on GPUs: deterministic operations, no TF32, and cuBLAS's
    own workspace. Call it before any other use of the runtime.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()


def keep_kernel_choices() -> pathlib.Path:
    """Keeps the kernels that XLA chooses by their time, so that later processes choose the same.

    Processes that read the same choices have the same bits (docs/gpus.md), without the cost of
    `run_deterministically`. Call it before XLA compiles anything.

    Returns:
      The folder of the choices, in the user's cache: one for the GPUs and the libraries there are.

    Raises:
      ValueError: TensorFlow is not 2.21, whose flags these are: others would end the process.
    """
    if not tf.__version__.startswith("2.21."):
        raise ValueError(f"gpu_defaults with TensorFlow {tf.__version__}: must be 2.21")
    for_what = [*machine.gpu_names(), tf.__version__, *machine.gpu_software().values()]
    name = re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(for_what))
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "towers" / "kernels" / name
    flags = [os.environ.get("XLA_FLAGS", "")]
    for part, flag in _FLAGS_OF_CHOICES.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        flags.append(f"--{flag}='{folder / part}'")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))
    os.environ.setdefault("TF_CUDNN_DETERMINISTIC", "1")
    return folder


def run_graphs_as_written() -> None:
    """Turns off grappler's rewriting of graphs for the process.

    Some of its rewrites change the order of additions, which then depends on what else is on a
    device, and so on the number of towers. docs/same_bits.md says which, with measurements.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
