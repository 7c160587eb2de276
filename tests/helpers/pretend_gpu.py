"""A machine that seems to have a GPU: TensorFlow's configuration lists one."""

from collections.abc import Callable

import tensorflow as tf

GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")


def pretend(patch: Callable = setattr, **details) -> None:
    """Makes TensorFlow's configuration list a GPU.

    Args:
      patch: (object, name, value), such as that of pytest's `monkeypatch`.
      **details: of the GPU.
    """
    visible, cut = tf.config.get_visible_devices, tf.config.get_logical_device_configuration
    listed, told = tf.config.list_physical_devices, tf.config.experimental.get_device_details

    def instead(gpu, of_others):
        return lambda device=None: gpu if device in (GPU, "GPU") else of_others(device)

    patch(tf.config, "get_visible_devices", instead([GPU], visible))
    patch(tf.config, "list_physical_devices", instead([GPU], listed))
    patch(tf.config, "get_logical_device_configuration", instead(None, cut))
    details = {"device_name": "no GPU at all"} | details
    patch(tf.config.experimental, "get_device_details", instead(details, told))
    patch(tf.config.experimental, "set_memory_growth", lambda device, enable: None)
