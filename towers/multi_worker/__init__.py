"""Several processes, each with its own towers, make one step."""

from towers.multi_worker.cluster import Cluster, from_environment, from_tf_config
from towers.multi_worker.collectives import MultiWorker
from towers.multi_worker.door import secret_of
from towers.multi_worker.meeting import meet

__all__ = ["Cluster", "MultiWorker", "from_environment", "from_tf_config", "meet", "secret_of"]
