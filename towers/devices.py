"""Where the work is done: one device per tower, and one, the CPU as a rule, for the variables."""

import os
from collections.abc import Sequence

import tensorflow as tf

from towers import machine

HOST = "/CPU:0"


def choose(num_towers: int | None = None) -> tuple[str, ...]:
    """Chooses one device per tower.

    With GPUs: the first `num_towers` of them. Without: logical CPU devices, which split one
    machine's CPU into several devices that TensorFlow treats as separate. It makes them only before
    its runtime starts, with the first tensor or variable; after that, towers share the devices
    there are. The results are the same either way, and all devices share the same threads.

    Args:
      num_towers: number of towers, at least 1; None means one per visible GPU, else 1.

    Returns:
      Device names such as `("/GPU:0", "/GPU:1")` or `("/CPU:0", "/CPU:1")`, index = tower.

    Raises:
      ValueError: `num_towers` is below 1, or more than the GPUs of a machine that has some.
    """
    num_gpus = machine.num_devices("GPU")
    num_towers = max(1, num_gpus) if num_towers is None else num_towers
    if num_towers < 1:
        raise ValueError(f"num_towers={num_towers}: must be at least 1")
    machine.tell_about_gpus()
    if num_gpus:
        return _gpu_devices(num_towers, num_gpus)
    return _logical_cpu_devices(num_towers)


def of_towers(towers: int | Sequence[str] | None) -> tuple[str, ...]:
    """The towers' devices, given their number, as for `choose`, or a list of names.

    Raises:
      TypeError, ValueError: it is neither, or as `choose`.
    """
    if towers is None or (isinstance(towers, int) and not isinstance(towers, bool)):
        return choose(towers)
    return _names(towers)


def _names(given) -> tuple[str, ...]:
    """The names of towers' devices, which must exist: TensorFlow would take another one."""
    is_list = isinstance(given, (list, tuple)) and len(given) > 0
    if not (is_list and all(isinstance(name, str) for name in given)):
        raise TypeError(
            f"towers={given!r}: must be their number, or a list of their devices' names"
        )
    for name in given:
        _check_device(name)
    return tuple(given)


def _check_device(name: str) -> None:
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(f"towers has {name!r}: must be the name of a device") from error
    kind = spec.device_type or "CPU"
    number = machine.num_devices(kind)
    if (spec.device_index or 0) >= number:
        raise ValueError(f"towers has {name!r}: no such device; {kind} devices: {number}")


def _gpu_devices(num_towers: int, num_gpus: int) -> tuple[str, ...]:
    for gpu in tf.config.get_visible_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError):
            # The runtime has started already, or the GPU is split into logical devices of a given
            # size: memory growth stays as it was.
            continue
    if num_towers > num_gpus:
        raise ValueError(
            f"num_towers={num_towers}: this machine has {num_gpus} GPU(s), and each tower needs "
            f"one; use at most {num_gpus}, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1 to run "
            "the towers on the CPU"
        )
    return tuple(f"/GPU:{tower}" for tower in range(num_towers))


def _logical_cpu_devices(num_towers: int) -> tuple[str, ...]:
    cpu, num_devices = tf.config.get_visible_devices("CPU")[0], machine.num_devices("CPU")
    if num_devices < num_towers:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * num_towers
            )
        except RuntimeError:  # the runtime has started
            return tuple(f"/CPU:{tower % num_devices}" for tower in range(num_towers))
    return tuple(f"/CPU:{tower}" for tower in range(num_towers))


def use_intra_op_threads(intra_op_threads: int) -> None:
    """Sets how many threads work on one operation. Call it before any other use of the runtime.

    On a CPU that is part of the arithmetic: the gradients of convolution kernels and biases and the
    statistics of batch norm are summed in one share per thread.

    Raises:
      ValueError: TensorFlow's runtime has started with another number.
    """
    if tf.config.threading.get_intra_op_parallelism_threads() == intra_op_threads:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
    except RuntimeError as error:
        raise ValueError(
            f"intra_op_threads={intra_op_threads}: TensorFlow has already started with another "
            f"number; call towers.devices.use_intra_op_threads({intra_op_threads}) before anything "
            "else that uses TensorFlow"
        ) from error


def run_deterministically() -> None:
    """Turns on what gives the same bits on GPUs: deterministic operations, no TF32, and cuBLAS's
    own workspace. Call it before any other use of the runtime.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()


def run_graphs_as_written() -> None:
    """Turns off grappler's rewriting of graphs for the process.

    Some of its rewrites change the order of additions, which then depends on what else is on a
    device, and so on the number of towers. docs/same_bits.md says which, with measurements.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
