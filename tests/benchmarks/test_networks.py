"""All kinds of networks beside their peers: the same networks, and what is made of their rates."""

import argparse
import sys
import types

import combinations
import pytest
import tensorflow as tf

import towers
from benchmarks import microbatches, networks, step_memory, turns
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
        "peer": [], "seconds": 1.0, "rounds": 1, "num_microbatches": 8, "jit_compile": False,
        "batch": None, "deterministic": False, "warm_up_together": False,
        "pytorch_python": sys.executable, "jax_python": sys.executable,
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


@pytest.mark.parametrize("name", WEIGHTS)
def test_jax_s_has_as_many_and_trains(name):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    optax = pytest.importorskip("optax", reason="Optax is not installed")
    pytest.importorskip("flax", reason="Flax is not installed")
    from benchmarks.peers import jax_tasks

    model = jax_tasks.NETWORKS[name]("float32")
    batch = jax_tasks.batch_of(name, 2)
    weights, statistics = jax_tasks.initial(model, batch[0])
    assert sum(weight.size for weight in jax.tree.leaves(weights)) == WEIGHTS[name]
    optimizer = optax.sgd(0.001)
    step, slots, losses = jax_tasks.step_of(model, optimizer), optimizer.init(weights), []
    for _ in range(3):
        weights, statistics, slots, loss = step(weights, statistics, slots, *batch)
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_jax_is_a_peer_where_it_is_asked_for(monkeypatch):
    def measured(sides, *_, **__):
        assert sides["jax"].arguments == ("benchmarks.peers.jax_tasks", "lstm", "float32")
        assert sides["jax"].python == "other"
        return {"towers": turns.Measured([3.0], None), "jax": turns.Measured([2.0], None)}

    monkeypatch.setattr(turns, "measure", measured)
    monkeypatch.setattr(networks, "version_of", lambda package, python: f"{package} of {python}")
    row = networks.measure("lstm", "float32", asked_for(peer=["jax"], jax_python="other"))
    assert (row["best_peer"], row["to_best_peer"], row["jax"]) == ("jax", 1.5, "jax of other")
    shown = networks.as_row(row, ("towers",), ("jax",))
    assert shown == "| lstm | float32 | 8 | 3.0 | 2.0 | 1.50 (1.50–1.50) |"
    assert (
        networks.head(("towers",), ("jax",))
        .splitlines()[0]
        .endswith("| towers, images/s | JAX | relative to the best of them |")
    )


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
        assert sides["towers"].arguments[-2:] == ("float32", "--num_microbatches=8")
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
    row = networks.measure("resnet", "float32", asked_for(peer=["none"], num_microbatches=2))
    assert row["images_per_second"] == {"towers": 1.0}
    assert networks.as_row(row) == "| resnet | float32 | 2 | 1.0 |  |  |  |  |  |  |  |"


def test_towers_are_compiled_where_that_is_asked_for(monkeypatch):
    rates = {"towers": [1.0], "towers-xla": [9.0], "keras-xla": [6.0]}

    def measured(sides, _, warm_up_together):
        assert not warm_up_together
        assert sides["towers-xla"].arguments[1] == "towers-xla"
        return {name: turns.Measured(rates[name], None) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    row = networks.measure("resnet", "bfloat16", asked_for(peer=["keras-xla"], jit_compile=True))
    assert (row["best_of_ours"], row["to_best_peer"]) == ("towers-xla", 1.5)
    assert networks.as_row(row) == (
        "| resnet | bfloat16 | 8 | 1.0 |  | 9.0 |  | 6.0 |  |  | 1.50 (1.50–1.50) |"
    )


def test_the_command_measures_what_it_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(networks, "measure", lambda *given: asked.append(given) or {})
    monkeypatch.setattr(networks.turns, "report", lambda _, rows, *__: list(rows))
    flags = ["--task=lstm", "--compute_dtype=bfloat16", "--peer=keras", "--rounds=2"]
    many = ["--jit_compile", "--num_microbatches=2", "--batch=7", "--deterministic"]
    for more in ([], [*many, "--pytorch_python=other"]):
        monkeypatch.setattr("sys.argv", ["networks", *flags, *more])
        networks.main()
    assert [given[:2] for given in asked] == [("lstm", "bfloat16")] * 2
    one, two = (vars(given[2]) for given in asked)
    common = {"peer": ["keras"], "seconds": 3.0, "rounds": 2}
    assert one.items() >= (common | {"num_microbatches": 8, "jit_compile": False}).items()
    assert two.items() >= (common | {"num_microbatches": 2, "jit_compile": True}).items()
    assert (two["batch"], two["deterministic"], two["pytorch_python"]) == (7, True, "other")


def test_on_a_gpu_towers_have_their_parameters_on_either_device(monkeypatch):
    """And PyTorch has the interpreter that is named for it."""
    rates = {"towers": 2.0, "on-gpu": 4.0, "on-gpu-xla": 6.0, "pytorch": 3.0}

    def measured(sides, _, warm_up_together):
        assert not warm_up_together
        assert {name: side.arguments[1] for name, side in sides.items()} == {
            "towers": "towers", "on-gpu": "on-gpu", "on-gpu-xla": "on-gpu-xla", "pytorch": "resnet",
        }  # fmt: skip
        assert all("--batch=64" in side.arguments for side in sides.values())
        deterministic = {name for name in sides if "--deterministic" in sides[name].arguments}
        assert deterministic == {"towers", "on-gpu", "on-gpu-xla"}
        assert {name for name in sides if sides[name].python == "other"} == {"pytorch"}
        return {name: turns.Measured([rates[name]], None) for name in sides}

    monkeypatch.setattr(turns, "measure", measured)
    monkeypatch.setattr(networks, "version_of", lambda package, python: f"{package} of {python}")
    options = asked_for(
        peer=["pytorch"], batch=64, deterministic=True, jit_compile=True, pytorch_python="other"
    )
    row = networks.measure("resnet", "float32", options, networks.ON_GPU)
    assert (row["best_of_ours"], row["to_best_peer"], row["batch"]) == ("on-gpu-xla", 2.0, 64)
    assert row["torch"] == "torch of other"
    shown = networks.as_row(row, networks.ON_GPU)
    assert shown == (
        "| resnet, `--deterministic` | float32 | 8 | 2.0 | 4.0 | 6.0 |  |  | 3.0 |  | "
        "2.00 (2.00–2.00) |"
    )
    assert networks.head(networks.ON_GPU).splitlines()[0].count("|") == shown.count("|")


def test_numbers_of_microbatches_are_compared_to_the_default(monkeypatch):
    def measured(sides, rounds):
        assert [side.arguments[-1] for side in sides.values()] == [
            f"--num_microbatches={n}" for n in (2, 4, 8, 16)
        ]
        return {n: turns.Measured([16.0 / n, 64.0 / n, 32.0 / n], 90.4) for n in sides}

    monkeypatch.setattr(turns, "measure", measured)
    rows = microbatches.measure("lstm", "float32", 1.0, 3)
    assert [row["to_the_default"] for row in rows] == [4.0, 2.0, 1.0, 0.5]
    assert microbatches.as_row(rows[0]) == "| lstm | float32 | 2 | 16 | 4.00 | 90 |"


def test_an_image_s_memory_is_the_difference_over_that_of_the_batches(monkeypatch):
    """A network's 400 MB, and 2 MB per image on towers, which is less than with `fused`."""
    per_image = {"towers": 2.0, "fused": 2.5, "keras": 3.0, "pytorch": 1.6}

    def commands(task, compute_dtype, peers, number, batch):
        return {name: (task, compute_dtype, str(number), batch) for name in per_image}

    def measured(sides, rounds, peak_of_turns):
        ((name, side),) = sides.items()
        assert side.arguments[:3] == ("transformer", "float32", "8") and peak_of_turns
        batch = int(side.arguments[3].removeprefix("--batch="))
        return {name: turns.Measured([1.0], 400.0 + per_image[name] * batch)}

    monkeypatch.setattr(networks, "commands", commands)
    monkeypatch.setattr(turns, "measure", measured)
    row = step_memory.measure("transformer", rounds=2)
    assert row["megabytes_per_image"] == per_image
    assert (row["batches"], row["to_least_peer"]) == ([64, 256], 1.25)
    assert step_memory.as_row(row) == (
        "| transformer | 64, 256 | 2.00 (912) | 2.50 (1,040) | 3.00 (1,168) | 1.60 (810) | 1.25 |"
    )


@pytest.mark.parametrize("side", ["towers", "towers-xla", "fit"])
def test_a_side_trains_the_batch_that_it_is_given(side, monkeypatch):
    """As many images as asked for, on towers in as many microbatches."""
    given = []

    def trainer(model, optimizer, **options):
        given.extend([options["num_microbatches"], options["jit_compile"]])
        return types.SimpleNamespace(train_step=lambda inputs, labels: train(inputs, labels))

    def train(inputs, labels, **_):
        given.extend([len(inputs), len(labels)])
        raise KeyboardInterrupt

    def fit(model, batches, **_):
        train(*next(iter(batches)))

    monkeypatch.setattr(keras_tasks.counter, "Counter", lambda: None)
    monkeypatch.setattr(keras_tasks.devices, "use_intra_op_threads", given.append)
    monkeypatch.setattr(keras_tasks.towers, "Trainer", trainer)
    monkeypatch.setattr(keras_tasks.keras.Model, "fit", fit)
    command = ["keras_tasks", side, "lstm", "float32", "--num_microbatches=2", "--batch=4"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(KeyboardInterrupt):
        keras_tasks.main()
    # Threads, microbatches, and whether XLA compiles them.
    on_towers = {"towers": [1, 2, False], "towers-xla": [8, 2, True]}
    assert given == on_towers.get(side, []) + [4, 4]


@pytest.mark.parametrize("side", ["on-gpu", "towers"])
def test_parameters_are_where_a_side_says(side, monkeypatch):
    """On a GPU, whose place another CPU takes; and it trains on batches that were copied there."""
    there, made = "/CPU:1", []

    class Trainer(towers.Trainer):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            made.append(self)

        def train_step(self, inputs, labels, *, parts):
            ((own_inputs, _),) = parts
            assert own_inputs.device.endswith("CPU:1") and own_inputs.dtype == tf.bfloat16
            super().train_step(inputs, labels, parts=parts)
            raise KeyboardInterrupt

    monkeypatch.setattr(keras_tasks.counter, "Counter", lambda: None)
    monkeypatch.setattr(keras_tasks.devices, "use_intra_op_threads", lambda threads: None)
    monkeypatch.setattr(keras_tasks.devices, "choose", lambda number: (there,))
    monkeypatch.setattr(keras_tasks.machine, "are_cpus", lambda names: False)
    monkeypatch.setattr(keras_tasks.towers, "Trainer", Trainer)
    more = ["--batch=2", "--num_microbatches=1"]
    monkeypatch.setattr("sys.argv", ["keras_tasks", side, "resnet", "bfloat16", *more])
    with pytest.raises(KeyboardInterrupt):
        keras_tasks.main()
    places = {name: {v.device[-5:] for v in part} for name, part in made[0].state.parts().items()}
    place = "CPU:1" if side == "on-gpu" else "CPU:0"
    for part in ("weights", "model_state", "optimizer"):
        assert places[part] == {place}, part
