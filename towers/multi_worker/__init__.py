"""Several processes, each with its own towers, make one step."""

from towers.multi_worker.cluster import Cluster, from_tf_config
from towers.multi_worker.collectives import MultiWorker, meet

__all__ = ["Cluster", "MultiWorker", "from_tf_config", "meet"]
