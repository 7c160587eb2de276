"""Batches that lie on the towers' devices before their step begins.

For devices that have a memory of their own. Within a step a tower would wait for the copy of its
part of the batch; here it is under way while the step before is at work. The numbers are the same.
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
    """Each batch with its parts; before one is handed over, the next one's copies are begun.

    Args:
      batches: (inputs [n, ...], labels [n, ...]), and sample_weight [n] where there is one.
      tower_devices: one device per tower.
      sizes: of each tower's part, `Trainer.shares.tower_batch_sizes`.
    """

    def placed(inputs: structures.Structure, labels: structures.Structure) -> Parts:
        with tf.device(devices.PARAMETER_DEVICE):
            cut = [structures.split(whole, sizes) for whole in (inputs, labels)]
        parts = []
        for device, *part in zip(tower_devices, *cut, strict=True):
            with tf.device(device):
                parts.append(tf.nest.map_structure(tf.identity, tuple(part)))
        return tuple(parts)

    ahead = None
    for inputs, labels, *weight in batches:
        batch = inputs, labels, *weight, placed(inputs, labels)
        if ahead is not None:
            yield ahead
        ahead = batch
    if ahead is not None:
        yield ahead
