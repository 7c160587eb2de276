"""One program for one process or several: the front door for programs."""

import contextlib
import os
import sys
from collections.abc import Iterator

from towers import worker, worker_errors
from towers.multi_worker import cluster, collectives


@contextlib.contextmanager
def meet(members: cluster.Cluster | None, wait_seconds: float = 300.0) -> Iterator[worker.Workers]:
    """The workers of a program, while it is within `with`.

    Where another worker is gone or does not fit, the program ends with one line and the exit code
    that tells a cluster manager whether to start all of them again (docs/workers.md).

    Args:
      members: such as `from_environment()`; None for one worker.
      wait_seconds: how long to wait for the others.

    Raises:
      SystemExit: in place of a WorkerError that was not caught.
    """
    if members is None or len(members.addresses) == 1:
        yield worker.SingleWorker()
        return
    try:
        with collectives.MultiWorker(members, wait_seconds) as workers:
            yield workers
    except worker_errors.WorkerError as error:
        print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
