"""What computes."""

import pytest

from towers.support import machine


@pytest.mark.parametrize(
    "tower_devices, expected",
    [(["/CPU:0", "/CPU:1"], True), (["/GPU:0"], False), (["/CPU:0", "/GPU:0"], False)],
)
def test_cpus_are_told_from_gpus(tower_devices, expected):
    assert machine.are_cpus(tower_devices) == expected


@pytest.mark.parametrize(
    "cpuinfo, expected",
    [
        ("model name\t: A\nflags\t\t: fpu avx2 fma\n", True),
        ("flags\t\t: fpu avx2 avx512f\nflags\t\t: fpu avx2\n", False),
        ("flags\t\t: avx2 avx_ne_convert\n", False),
        ("Features\t: fp asimd bf16\n", False),  # of an ARM processor
        (None, False),
    ],
)
def test_half_precision_needs_instructions_of_its_own(tmp_path, monkeypatch, cpuinfo, expected):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        machine.CPUINFO.write_text(cpuinfo)
    assert machine.emulates_half_precision() == expected


def test_the_processor_s_name_is_the_first_one_s(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    machine.CPUINFO.write_text("processor\t: 0\nmodel name\t: One: two\nmodel name\t: Three\n")
    assert machine.processor() == "One: two"
