"""Batches that lie on the towers' devices before their step begins.

For devices that have memory of their own. Within a step, a tower would wait while its part of the
batch is copied; a loop can have it copied during the step before, as `towers.Run` does in a thread.
The results are the same.
"""

from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from towers import devices
from towers.support import structures

# (inputs [tower_batch, ...], labels [tower_batch, ...]) for each tower, on its device.
Parts = tuple[tuple[structures.Structure, structures.Structure], ...]


def to_towers(
    batches: Iterable[tuple], tower_devices: Sequence[str], sizes: Sequence[int]
) -> Iterator[tuple]:
    """Each batch with its parts, each on its tower's device.

    Args:
      batches: (inputs [n, ...], labels [n, ...]), and sample_weight [n] where there is one.
      tower_devices: one device per tower.
      sizes: of each tower's part, `Trainer.shares.tower_batch_sizes`.
    """
    for batch in batches:
        with tf.device(devices.PARAMETER_DEVICE):
            cut = [structures.split(whole, sizes) for whole in batch[:2]]
        parts = []
        for device, *part in zip(tower_devices, *cut, strict=True):
            with tf.device(device):
                parts.append(tf.nest.map_structure(tf.identity, tuple(part)))
        yield *batch, tuple(parts)
