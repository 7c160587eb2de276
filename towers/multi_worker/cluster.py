"""Which processes make up a run on several machines, and which of them this one is.

A worker is one process with its own towers. Worker 0 is the chief: it has the run's folder.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping

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
                    f"{address!r} is not host:port: must be a name or IPv4 address, and a port "
                    "from 1 to 65535"
                )
            if address in self.addresses[:place]:
                raise ValueError(f"{address} is listed twice; give each worker its own address")
        if not 0 <= self.index < len(self.addresses):
            raise ValueError(
                f"index={self.index}: must be at least 0 and below the number of workers, "
                f"{len(self.addresses)}"
            )

    def name(self, index: int) -> str:
        """A worker as messages name it."""
        return f"worker {index} ({self.addresses[index]})"


def from_tf_config(text: str | None = None) -> Cluster | None:
    """The cluster that the environment variable TF_CONFIG describes; None for only one process.

    A `chief`, where there is one, is worker 0, and those of type `worker` come after it.

    Args:
      text: such as `{"cluster": {"worker": ["a:1234", "b:1234"]}, "task": {"type": "worker",
        "index": 1}}`; None for what the environment has.

    Raises:
      ValueError: it is not of that form, or this process is neither chief nor worker.
    """
    if text is None:
        text = os.environ.get("TF_CONFIG", "")
    try:
        return _cluster(json.loads(text or "{}"))
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG: is not JSON: {error}") from error
    except ValueError as error:
        raise ValueError(f"TF_CONFIG: {error}") from error


def _cluster(config: object) -> Cluster | None:
    if not (isinstance(config, dict) and isinstance(config.get("cluster", {}), dict)):
        raise ValueError('must have the form {"cluster": {...}, "task": {...}}')
    jobs, task = config.get("cluster", {}), config.get("task", {})
    chief, others = (_addresses(jobs, job) for job in ("chief", "worker"))
    if len(chief) + len(others) < 2:
        return None
    if not isinstance(task, dict) or task.get("type") not in ("chief", "worker"):
        raise ValueError(f'task {task!r}: its type must be "chief" or "worker"')
    index = task.get("index")
    own = chief if task["type"] == "chief" else others
    if type(index) is not int or not 0 <= index < len(own):
        raise ValueError(
            f"task {task!r}: its index must be below {len(own)}, the number of its type"
        )
    index += len(chief) if task["type"] == "worker" else 0
    return Cluster((*chief, *others), index)


def _addresses(jobs: Mapping, job: str) -> list[str]:
    addresses = jobs.get(job, [])
    if not (isinstance(addresses, list) and all(isinstance(one, str) for one in addresses)):
        raise ValueError(f'cluster {job!r}: must be a list of "host:port"')
    return addresses
