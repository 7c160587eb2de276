"""Which processes make up a run on several machines, and which of them this one is.

A worker is one process with its peers towers. Worker 0 is the chief: it has the run's folder.
"""

import dataclasses
import os
import re

import tensorflow as tf

_ADDRESS = re.compile("([A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a run.

    Attributes:
      addresses: `host:port` of each worker, which the others reach it at; index = worker.
      index: of this process.

    Raises:
      ValueError: an address is none, or is listed twice, or `index` is that of no worker.
        TensorFlow's servers listen on IPv4 alone.
    """

    addresses: tuple[str, ...]
    index: int

    def __post_init__(self):
        for place, address in enumerate(self.addresses):
            parts = _ADDRESS.fullmatch(address)
            if parts is None or not 0 < int(parts[2]) < 2**16:
                raise ValueError(
                    f"{address!r} is not host:port: must be a name or IPv4, and a port below 65536"
                )
            if address in self.addresses[:place]:
                raise ValueError(f"{address} is listed twice; give each worker its peers address")
        if not 0 <= self.index < len(self.addresses):
            raise ValueError(f"index={self.index}: must be from 0 to {len(self.addresses) - 1}")

    def name(self, index: int) -> str:
        """A worker as messages name it."""
        return f"worker {index} ({self.addresses[index]})"


def from_tf_config() -> Cluster | None:
    """The cluster that the environment variable TF_CONFIG describes; None for only one process.

    Its form is that of TensorFlow's `TFConfigClusterResolver`, such as `{"cluster": {"worker":
    ["a:1234", "b:1234"]}, "task": {"type": "worker", "index": 1}}`. A `chief`, where there is one,
    is worker 0, and those of type `worker` come after it.

    Raises:
      ValueError: it is not of that form, or this process is neither chief nor worker.
    """
    if not os.environ.get("TF_CONFIG"):
        return None
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        kind, index = resolver.task_type, resolver.task_id
        chief, others = jobs.get("chief", []), jobs.get("worker", [])
        if len(chief) + len(others) < 2:
            return None
        peers = {"chief": chief, "worker": others}.get(kind, [])
        if index not in range(len(peers)):
            raise ValueError(f"task {kind} {index}: must be one of {len(peers)} of its type")
        return Cluster((*chief, *others), index + (len(chief) if kind == "worker" else 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"TF_CONFIG: {error}") from error
