"""Keras's fit in several processes: what one process with as many towers comes to."""

import contextlib
import json
import os
import socket
import sys

import fit_workers
import forked
import pytest


def started(num_towers, environment=None):
    pipes = {"stdout": forked.subprocess.PIPE, "stderr": forked.subprocess.PIPE, "text": True}
    command = [sys.executable, fit_workers.__file__, str(num_towers)]
    return forked.Popen(command, env=environment or os.environ, **pipes)


def ended(process) -> dict:
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1])


def cluster(towers_of_workers, **environment) -> list:
    """The processes of a cluster on this machine."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("localhost", 0))) for _ in towers_of_workers
        ]
        addresses = [f"localhost:{server.getsockname()[1]}" for server in servers]
    workers = []
    for index, num_towers in enumerate(towers_of_workers):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        workers.append(started(num_towers, os.environ | environment | {"TF_CONFIG": config}))
    return workers


@pytest.mark.parametrize(
    "towers_of_workers", [(2, 1), pytest.param((1, 1, 1), marks=pytest.mark.long)], ids=str
)
def test_workers_are_towers(towers_of_workers):
    alone = started(sum(towers_of_workers))
    workers = cluster(towers_of_workers)
    expected = ended(alone)
    for worker in workers:
        assert ended(worker) == expected


def test_workers_with_other_data_are_told():
    for worker in cluster((1, 1), OTHER_ORDER="yes"):
        _, error = worker.communicate(timeout=240)
        assert worker.returncode == 1 and "worker 1" in error.splitlines()[-1]
