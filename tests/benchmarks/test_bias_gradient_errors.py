"""The benchmark of gradients of biases in bfloat16."""

import numpy as np
import pytest

from benchmarks import bias_gradients


@pytest.mark.parametrize(
    "layer", ["Dense", pytest.param("DepthwiseConv2D", marks=pytest.mark.long)]
)
def test_keras_s_are_wrong_and_towers_s_are_not(layer):
    row = bias_gradients.measure(layer, 1024, rounds=2)
    assert row["values"] == 1024
    assert row["error_of_keras"][1] > 0.2 and row["error_of_towers"][2] < 0.01


def test_the_update_by_hand():
    """Of mean squares over n positions and 16 channels: 2 / (16 n) * sum(1 - outputs)."""
    for side in ("keras", "towers"):
        update = bias_gradients.update_of_bias(side, "Dense", 256, "float32", seed=0)
        other = bias_gradients.update_of_bias(side, "Dense", 64, "float32", seed=0)
        assert update.shape == (16,)
        np.testing.assert_allclose(update, 2 / 16, atol=0.05)
        assert np.abs(update - other).max() > 0


def test_a_row_of_the_table():
    row = {"layer": "Dense", "values": 4096, "error_of_keras": [0.75, 0.7, 0.8],
           "error_of_towers": [0.001, 0.0005, 0.002]}  # fmt: skip
    assert bias_gradients.as_row(row) == ("| `Dense` | 4,096 | 75.0 (70.0–80.0) | 0.1 (0.1–0.2) |")
