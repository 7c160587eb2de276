"""Batches that lie on the towers' devices before their step begins.

For devices with memory of their own: a loop can have the next batches copied during a step, as
`runs.loop` does in a thread. Towers wait for copies within a step. The results are the same.
"""

from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from towers import devices
from towers.support import structures

# (inputs [tower_batch, ...], labels [tower_batch, ...]) for each tower, on its device.
Parts = tuple[tuple[tf.Tensor, tf.Tensor], ...]


def to_towers(
    batches: Iterable[tuple],
    tower_devices: Sequence[str],
    sizes: Sequence[int],
    inputs_type: tf.DType | None = None,
) -> Iterator[tuple]:
    """Each batch with its parts, each on its tower's device.

    Args:
      batches: (inputs [n, ...], labels [n, ...]), and sample_weight [n] where there is one.
      tower_devices: one device per tower.
      sizes: of each tower's part, `Trainer.shares.tower_batch_sizes`.
      inputs_type: type in which float32 inputs are copied (`first_layers.inputs_type`), if any.
    """
    for batch in batches:
        with tf.device(devices.HOST):
            inputs, labels = map(tf.convert_to_tensor, batch[:2])
            if inputs_type is not None and inputs.dtype == tf.float32:
                inputs = tf.cast(inputs, inputs_type)
            cut = [structures.split(whole, sizes) for whole in (inputs, labels)]
        parts = []
        for device, *part in zip(tower_devices, *cut, strict=True):
            with tf.device(device):
                parts.append(tuple(map(tf.identity, part)))
        yield *batch, tuple(parts)
