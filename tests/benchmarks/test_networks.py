"""All kinds of networks beside their peers: the same networks, and what is made of their rates."""

import argparse
import sys

import combinations
import pytest

from benchmarks import networks, turns
from benchmarks.peers import task_sizes, tasks

# Trained weights. Keras's LSTM has one bias for each gate and PyTorch two, 4 * UNITS of them more;
# fastnet has a whitening, and PyTorch's one bias of it.
WEIGHTS = {
    "cifarnet": 1_068_298,
    "resnet": 272_474,
    "resnet50": 23_528_522,
    "mobilenet": 408_938,
    "transformer": 1_446_666,
    "lstm": 1_181_450,
}


LARGE = ("resnet50", "mobilenet")


def asked_for(**given):
    """The options of a row."""
    defaults = {
        "peer": [], "seconds": 1.0, "rounds": 1, "microbatch_size": 0, "jit_compile": False,
        "pytorch_python": sys.executable,
    }  # fmt: skip
    return argparse.Namespace(**defaults | given)


@pytest.mark.parametrize(
    ("name",), combinations.crossed(WEIGHTS, often=[(n,) for n in WEIGHTS if n not in LARGE])
)
def test_each_network_has_its_weights(name):
    model = tasks.build(name, "float32")
    assert sum(weight.shape.num_elements() for weight in model.trainable_weights) == WEIGHTS[name]
    assert model.output_shape == (None, task_sizes.CLASSES)
    assert tasks.inputs(name).shape == (len(tasks.labels(name)), *task_sizes.SHAPES[name])


def test_the_ratio_is_to_the_best_peer_within_each_round(monkeypatch):
    rates = {
        "towers": [10.0, 20.0, 30.0],
        "fused": [12.0, 44.0, 36.0],
        "keras": [4.0, 4.0, 4.0],
        "keras-xla": [10.0, 20.0, 40.0],
    }
    asked = []

    def measured(sides, rounds, **_):
        asked.append((set(sides), rounds))
        assert sides["towers"].arguments[-2:] == ("--batch=128", "--microbatch_size=16")
        return {name: turns.Measured(rates[name], 100.0) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    row = networks.measure("mobilenet", "float32", asked_for(peer=["keras", "keras-xla"], rounds=3))
    assert asked == [(set(rates), 3)]
    assert (row["best_peer"], row["to_best_peer"]) == ("keras-xla", 1.2)
    assert row["least_and_largest"] == [0.9, 2.2]
    assert networks.as_row(row) == (
        "| mobilenet | float32 | 8 | 20 | 36 |  | 4.0 | 20 |  |  | 1.20 (0.90–2.20) |"
    )
