"""The cores that a process may use."""

import os

import container_limits
from towers.support import machine


def test_available_cores_are_those_of_the_process():
    if not hasattr(os, "sched_getaffinity"):
        assert machine.available_cores() == os.cpu_count()
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.available_cores() == len(allowed)


def test_the_smaller_of_quota_and_affinity(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(8), raising=False)
    for quota, expected in ((None, 8), (3, 3), (64, 8)):
        monkeypatch.setattr(container_limits, "cores", lambda quota=quota: quota)
        assert machine.available_cores() == expected
