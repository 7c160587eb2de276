"""All kinds of networks beside their peers: the same networks, and what is made of their rates."""

import argparse
import sys

import combinations
import pytest

from benchmarks import networks, step_memory, turns
from benchmarks.peers import keras_tasks, task_sizes, tasks

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


@pytest.mark.parametrize("name", WEIGHTS)
def test_pytorch_s_has_as_many(name):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from benchmarks.peers import pytorch_tasks

    found = sum(weight.numel() for weight in pytorch_tasks.NETWORKS[name]().parameters())
    assert found - (4 * task_sizes.UNITS if name == "lstm" else 0) == WEIGHTS[name]


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


def test_the_ratio_is_of_towers_without_fused_where_that_is_faster(monkeypatch):
    rates = {"towers": [9.0, 9.0], "fused": [6.0, 6.0], "keras": [6.0, 3.0]}
    monkeypatch.setattr(
        turns, "measure", lambda sides, _, **__: {n: turns.Measured(rates[n], 1.0) for n in sides}
    )
    row = networks.measure("lstm", "float32", asked_for(peer=["keras"], rounds=2))
    assert (row["best_of_ours"], row["least_and_largest"]) == ("towers", [1.5, 3.0])


def test_a_network_without_such_layers_is_not_fused(monkeypatch):
    monkeypatch.setattr(
        turns,
        "measure",
        lambda sides, _, **__: {name: turns.Measured([1.0], None) for name in sides},
    )
    row = networks.measure("resnet", "float32", asked_for(peer=["none"], microbatch_size=64))
    assert row["images_per_second"] == {"towers": 1.0}
    assert networks.as_row(row) == "| resnet | float32 | 2 | 1.0 |  |  |  |  |  |  |  |"


def test_towers_are_compiled_where_that_is_asked_for(monkeypatch):
    rates = {"towers": [1.0], "towers-xla": [9.0], "keras-xla": [6.0]}

    def measured(sides, _):
        assert sides["towers-xla"].arguments[1] == "towers-xla"
        return {name: turns.Measured(rates[name], None) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    row = networks.measure("resnet", "bfloat16", asked_for(peer=["keras-xla"], jit_compile=True))
    assert (row["best_of_ours"], row["to_best_peer"]) == ("towers-xla", 1.5)
    assert networks.as_row(row) == (
        "| resnet | bfloat16 | 8 | 1.0 |  | 9.0 |  | 6.0 |  |  | 1.50 (1.50–1.50) |"
    )


def test_pytorch_has_the_interpreter_that_is_named_for_it(monkeypatch):
    def measured(sides, _):
        assert sides["pytorch"].arguments == (
            "benchmarks.peers.pytorch_tasks", "lstm", "float32", "--batch=128",
        )  # fmt: skip
        assert {name for name in sides if sides[name].python == "other"} == {"pytorch"}
        return {name: turns.Measured([1.0], None) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    row = networks.measure("lstm", "float32", asked_for(peer=["pytorch"], pytorch_python="other"))
    assert row["best_peer"] == "pytorch"


def test_the_command_measures_what_it_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(networks, "measure", lambda *given: asked.append(given) or {})
    monkeypatch.setattr(networks.turns, "report", lambda _, rows, *__: list(rows))
    flags = ["--task=lstm", "--compute_dtype=bfloat16", "--peer=keras", "--rounds=2"]
    monkeypatch.setattr("sys.argv", ["networks", *flags, "--jit_compile", "--microbatch_size=64"])
    networks.main()
    ((task, compute_dtype, options),) = asked
    assert (task, compute_dtype) == ("lstm", "bfloat16")
    found = {"peer": ["keras"], "seconds": 3.0, "rounds": 2, "microbatch_size": 64}
    assert vars(options).items() >= found.items() and options.jit_compile


def test_an_image_s_memory_is_the_difference_over_that_of_the_batches(monkeypatch):
    """A network's 400 MB, and 2 MB per image on towers, which is less than with `fused`."""
    per_image = {"towers": 2.0, "fused": 2.5, "keras": 3.0, "pytorch": 1.6}

    def commands(task, compute_dtype, sides, microbatch_size, batch, with_pytorch):
        assert 8 * microbatch_size == batch
        return {name: (task, compute_dtype, str(batch)) for name in per_image}

    def measured(sides, rounds, peak_of_turns):
        ((name, side),) = sides.items()
        assert side.arguments[:2] == ("transformer", "float32") and peak_of_turns
        batch = int(side.arguments[2])
        return {name: turns.Measured([1.0], 400.0 + per_image[name] * batch)}

    monkeypatch.setattr(networks, "commands", commands)
    monkeypatch.setattr(turns, "measure", measured)
    row = step_memory.measure("transformer", rounds=2)
    assert row["megabytes_per_image"] == per_image
    assert (row["batches"], row["to_least_peer"]) == ([64, 256], 1.25)
    assert step_memory.as_row(row) == (
        "| transformer | 64, 256 | 2.00 (912) | 2.50 (1,040) | 3.00 (1,168) | 1.60 (810) | 1.25 |"
    )


@pytest.mark.parametrize("side", ["towers", "fused", "towers-xla", "fit"])
def test_a_side_trains_the_batch_that_it_is_given(side, monkeypatch):
    """As many images as asked for, on towers in microbatches of that size."""
    given = []

    def fit(model, batches, **_):
        inputs, labels = next(iter(batches))
        given.extend([len(inputs), len(labels)])
        if side != "fit":
            given.append((model._towers.microbatch_size, model.jit_compile))

    monkeypatch.setattr(keras_tasks.counter, "Counter", lambda: None)
    monkeypatch.setattr(keras_tasks.devices, "use_intra_op_threads", given.append)
    monkeypatch.setattr(keras_tasks.keras.Model, "fit", fit)
    command = ["keras_tasks", side, "lstm", "float32", "--microbatch_size=2", "--batch=4"]
    monkeypatch.setattr("sys.argv", command)
    keras_tasks.main()
    if side == "fit":
        assert given == [4, 4]
    else:
        threads = 8 if side == "towers-xla" else 1
        assert given == [threads, 4, 4, (2, side == "towers-xla")]
