"""The operations of a call, from TensorFlow's profiler."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import towers  # noqa: F401  before TensorFlow: it sets it up

import tensorflow as tf  # isort: skip
from tensorflow.tsl.profiler.protobuf import xplane_pb2  # isort: skip

PICOSECONDS = 1e9  # in a millisecond


class Operation(NamedTuple):
    """One run of an operation; times in milliseconds, `begin` from a moment before all of them."""

    name: str
    kind: str
    begin: float
    milliseconds: float


def recorded(call: Callable) -> tuple[object, list[Operation]]:
    """What a call returns, and the operations that ran meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        result = call()
        tf.profiler.experimental.stop()
        return result, list(operations(Path(folder)))


def operations(folder: Path) -> Iterator[Operation]:
    """Those of the one profile below a folder."""
    (path,) = folder.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    lines = [(plane, line) for plane in space.planes for line in plane.lines]
    start = min((line.timestamp_ns for _, line in lines), default=0)
    for plane, line in lines:
        for event in line.events:
            # An operation's event is "its/name:Kind"; the runtime's own have "::" or no colon.
            name, _, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
            if name and ":" not in name and " " not in kind:
                begin = 1000 * (line.timestamp_ns - start) + event.offset_ps
                yield Operation(name, kind, begin / PICOSECONDS, event.duration_ps / PICOSECONDS)
