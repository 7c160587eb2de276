"""The benchmark of gradients of convolution kernels."""

import pytest

from benchmarks import kernel_gradients
from towers.support import machine


@pytest.mark.parametrize("has_amx", [False, True])
def test_a_row(has_amx, monkeypatch):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: has_amx)
    row = kernel_gradients.measure(3, 4, 128, 256, n=2, rounds=1)
    assert row["is_of_products"] is has_amx
    assert min(row["milliseconds_of_tensorflow_s"], row["milliseconds_of_products"]) > 0.0
    text = kernel_gradients.as_row(row | {"ratio": 1.5})
    assert text.startswith("| 3 × 3 | 4 × 4 | 128, 256 | 2 | ")
    assert text.endswith(" 1.50 |" if has_amx else " 1.50 * |")
