"""A machine that seems to have GPUs: TensorFlow's configuration lists them."""

import functools
from collections.abc import Callable

import tensorflow as tf


def _instead(gpus: list, value, of_others: Callable, device=None):
    return value if device == "GPU" or device in gpus else of_others(device)


def pretend(patch: Callable = setattr, count: int = 1, parts: list | None = None, **details):
    """Makes TensorFlow's configuration list GPUs.

    Args:
      patch: (object, name, value), such as that of pytest's `monkeypatch`.
      count: of them.
      parts: logical devices that each is cut into; None where it is whole.
      **details: of each.
    """
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(count)]
    details = {"device_name": "no GPU at all"} | details
    for owner, name, value in (
        (tf.config, "get_visible_devices", gpus),
        (tf.config, "list_physical_devices", gpus),
        (tf.config, "get_logical_device_configuration", parts),
        (tf.config.experimental, "get_device_details", details),
    ):
        patch(owner, name, functools.partial(_instead, gpus, value, getattr(owner, name)))
    patch(tf.config.experimental, "set_memory_growth", lambda device, enable: None)
