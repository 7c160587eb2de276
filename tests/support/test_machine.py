"""What computes."""

import pytest

from towers.support import machine


@pytest.mark.parametrize(
    "tower_devices, expected",
    [(["/CPU:0", "/CPU:1"], True), (["/GPU:0"], False), (["/CPU:0", "/GPU:0"], False)],
)
def test_cpus_are_told_from_gpus(tower_devices, expected):
    assert machine.are_cpus(tower_devices) == expected
