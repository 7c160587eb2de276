"""Batches that lie on the towers' devices before their step begins.

For devices that have a memory of their own. Within a step a tower would wait for the copy of its
part of the batch; here it is under way while the step before is at work. The numbers are the same.
"""

from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from towers import devices

# (images [per_tower_batch, ...], labels [per_tower_batch]) for each tower, on its device.
Parts = tuple[tuple[tf.Tensor, tf.Tensor], ...]


def to_towers(
    batches: Iterable[tuple[tf.Tensor, tf.Tensor]], tower_devices: Sequence[str]
) -> Iterator[tuple[tf.Tensor, tf.Tensor, Parts]]:
    """Each batch with its parts; before one is handed over, the next one's copies are begun.

    Args:
      batches: (images [global_batch_size, ...], labels [global_batch_size]).
      tower_devices: one device per tower; their number divides the batch.
    """
    ahead = None
    for images, labels in batches:
        placed = images, labels, _placed(images, labels, tower_devices)
        if ahead is not None:
            yield ahead
        ahead = placed
    if ahead is not None:
        yield ahead


def _placed(images: tf.Tensor, labels: tf.Tensor, tower_devices: Sequence[str]) -> Parts:
    with tf.device(devices.PARAMETER_DEVICE):
        cut = [tf.split(whole, len(tower_devices)) for whole in (images, labels)]
    parts = []
    for device, *part in zip(tower_devices, *cut, strict=True):
        with tf.device(device):
            parts.append(tuple(tf.identity(values) for values in part))
    return tuple(parts)
