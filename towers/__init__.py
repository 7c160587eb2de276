"""Synchronous data-parallel training on towers.

The files beside this one are the idea: one step, cut into towers, whose gradients become one. The
rooms around them are `networks`, `multi_worker` (several processes) and `runs` (a run in its
folder).

Importing this package imports TensorFlow, for which it sets some environment variables first
(`towers.setup`), and registers its layers with Keras. It raises an ImportError if Keras's backend
is not TensorFlow.
"""

from towers.environment import setup

setup()

from towers import (  # noqa: E402
    devices,
    gradients,
    metrics,
    multi_worker,
    networks,
    schedules,
)
from towers.distribution import distribute  # noqa: E402
from towers.errors import UserError, WorkerError  # noqa: E402
from towers.runs import callbacks  # noqa: E402
from towers.runs.run import Finished, Run, Stopped  # noqa: E402
from towers.version import __version__  # noqa: E402

__all__ = [
    "Finished", "Run", "Stopped", "UserError", "WorkerError", "__version__", "callbacks",
    "devices", "distribute", "gradients", "metrics", "multi_worker", "networks", "schedules",
    "setup",
]  # fmt: skip
