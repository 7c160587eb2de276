"""The benchmarks run, count right and compare like with like; what they measure is no test's
business."""

import argparse
import subprocess
import sys

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf

from benchmarks import (
    fast,
    growth,
    memory,
    operations,
    start,
    step_time,
    throughput,
    time_to_accuracy,
    turns,
    where_time_goes,
    workers,
)
from benchmarks.peers import keras_fit, tutorial
from input_pipeline import cifar10_binary
from towers import losses, networks
from towers.networks import cifarnet
from towers.runs import run_folder
from towers.support import weight_filters

pytestmark = pytest.mark.usefixtures("cache")

WEIGHTS = 1_068_298  # of the tutorial's network

# A side whose "step" of 10 images takes 20 ms, and which talks.
COUNTING = """
import time
from benchmarks.peers import counter
turn = counter.Counter()
while True:
    print("step done")
    time.sleep(0.02)
    turn.step_done(10)
"""


@pytest.fixture
def side(tmp_path, monkeypatch):
    """Makes a side of a program's text."""

    def of(name, text, turn):
        (tmp_path / f"{name}.py").write_text(text)
        return turns.Side((name,), turn)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(scripts.ROOT))
    return of


def test_a_ratio_is_the_median_of_those_within_a_round():
    # The machine was twice as slow in the second round, and had a hiccup in the third.
    assert turns.median_ratio([1.2, 2.4, 9.0], [1.0, 2.0, 1.0]) == pytest.approx(1.2)


def test_sides_take_turns_and_count_their_own_images(side, capfd):
    measured = turns.measure(
        {
            "by_steps": side("by_steps", COUNTING, {"steps": 5}),
            "by_seconds": side("by_seconds", COUNTING, {"seconds": 0.1}),
        },
        rounds=2,
    )
    said = [
        line.split(" images/s")[0].rsplit(" ", 1)[0] for line in capfd.readouterr().err.split("\n")
    ]
    assert said[:4] == [
        "round 1 of 2: by_steps",
        "round 1 of 2: by_seconds",
        "round 2 of 2: by_steps",
        "round 2 of 2: by_seconds",
    ]
    for found in measured.values():
        assert len(found.rates) == 2
        assert all(0 < rate <= 500 for rate in found.rates)  # 10 images in 20 ms or more
        assert 10 < found.peak_megabytes < 5000


def test_sides_may_warm_up_together(side, tmp_path):
    """The first waits for the second, which would start after it otherwise."""
    waits = "import time, pathlib\nwhile not pathlib.Path('started').exists(): time.sleep(0.01)\n"
    starts = "import pathlib\npathlib.Path('started').touch()\n"
    sides = {
        name: side(name, text + COUNTING, {"steps": 1})
        for name, text in (("waits", waits), ("starts", starts))
    }
    measured = turns.measure(sides, rounds=1, warm_up_together=True)
    assert [len(found.rates) for found in measured.values()] == [1, 1]


@pytest.mark.parametrize("peak_of_turns", [False, True])
def test_the_peak_of_turns_leaves_the_start_out(side, peak_of_turns):
    text = COUNTING.replace("turn = ", "start = b'x' * 300_000_000\ndel start\nturn = ")
    sides = {"greedy": side("greedy", text, {"steps": 1})}
    (found,) = turns.measure(sides, rounds=1, peak_of_turns=peak_of_turns).values()
    assert (found.peak_megabytes < 200) == peak_of_turns


@pytest.mark.long
def test_warm_up_and_lead_in_are_not_counted(side):
    # The 12 steps of the warm-up and the 5 of the turn's lead-in take 0.2 s; the others nothing.
    text = COUNTING.replace("turn = ", "slow_steps = [0.2] * 17\nturn = ")
    text = text.replace("time.sleep(0.02)", "time.sleep(slow_steps.pop() if slow_steps else 0)")
    (found,) = turns.measure({"slow": side("slow", text, {"steps": 100})}, rounds=1).values()
    assert found.rates[0] > 100 * 10 / 0.2


@pytest.mark.parametrize("when", ["True", "turn._turn"], ids=["at its start", "in its turn"])
def test_a_side_that_ends_is_named_with_its_last_words(side, when):
    text = COUNTING.replace("print(", f"if {when}: raise OSError('no batch')\n    print(")
    broken = side("broken", text, {"steps": 1})
    with pytest.raises(SystemExit, match=r"(?s)broken has ended; .*OSError: no batch"):
        turns.measure({"broken": broken}, rounds=1)


@pytest.mark.parametrize("rounds", ["0", "-1", "x"])
def test_rounds_are_at_least_one(rounds, capsys):
    with pytest.raises(SystemExit):
        turns.parser("A benchmark.", rounds=3).parse_args([f"--rounds={rounds}"])
    assert f"{rounds}: must be a whole number, at least 1" in capsys.readouterr().err


@pytest.fixture
def ours():
    """The tutorial's network here: weights, images, labels, logits and the total loss."""
    model = networks.build("cifarnet", (24, 24, 3), 10)
    assert model.count_params() == WEIGHTS
    rng = np.random.default_rng(0)
    images = rng.normal(size=(tutorial.BATCH, 24, 24, 3)).astype(np.float32)
    labels = rng.integers(0, 10, size=tutorial.BATCH)
    logits = model(images)
    terms = [tf.reduce_mean(losses.cross_entropy(labels, logits))]
    decayed = {kernel.path: kernel.value for kernel in weight_filters.hidden_dense_kernels(model)}
    terms += losses.weight_decay_terms(decayed, 0.004).values()
    return model.get_weights(), images, labels, logits.numpy(), float(sum(terms))


class TestThePeersTrainTheSameNetwork:
    """With the same weights they have the same logits and the same loss, decay included."""

    def test_keras(self, ours):
        weights, images, labels, logits, loss = ours
        model = keras_fit.network()
        model.set_weights(weights)
        outputs = model(images)
        np.testing.assert_allclose(outputs, logits, rtol=1e-3, atol=1e-5)
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, outputs)
        assert float(entropy + sum(model.losses)) == pytest.approx(loss, rel=1e-5)

    def test_the_tutorial(self, ours):
        weights, images, labels, logits, loss = ours
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            outputs = tutorial.inference(tf.constant(images))
            total = tutorial.total_loss(outputs, tf.constant(labels, tf.int32))
            variables = v1.trainable_variables()
            session.run(v1.global_variables_initializer())
            # Both lists begin with conv1; within a layer the tutorial makes the bias second too.
            for variable, value in zip(variables, weights, strict=True):
                if value.ndim == 1:  # biases begin at constants, and at the same ones
                    np.testing.assert_array_equal(session.run(variable), value)
                variable.load(value, session)
            found, found_loss = session.run([outputs, total])
        np.testing.assert_allclose(found, logits, rtol=1e-3, atol=1e-5)
        assert found_loss == pytest.approx(loss, rel=1e-5)

    def test_pytorch(self, ours):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        from benchmarks.peers import pytorch

        weights, images, labels, logits, loss = ours
        model = pytorch.network()
        of_layers = [p for p in model.parameters()]
        # After the second pooling PyTorch flattens channels first.
        flat = weights[4].reshape(6, 6, 64, -1).transpose(2, 0, 1, 3).reshape(weights[4].shape)
        with torch.no_grad():
            for parameter, value in zip(of_layers, [*weights[:4], flat, *weights[5:]], strict=True):
                order = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
                parameter.copy_(torch.tensor(value.transpose(order)))
            outputs = model(torch.tensor(images.transpose(0, 3, 1, 2)))
            total = torch.nn.functional.cross_entropy(outputs, torch.tensor(labels))
            total += pytorch.decay(model)
        np.testing.assert_allclose(outputs, logits, rtol=1e-3, atol=1e-5)
        assert float(total) == pytest.approx(loss, rel=1e-5)

    def test_airbench(self):
        """The convolutions and the last layer that the fast recipe trains, each of its shape."""
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        from benchmarks.peers import airbench

        model = airbench.network()
        theirs = sorted(
            tuple(p.shape) for p in model.parameters() if p.ndim > 1 and p.requires_grad
        )
        ours = networks.build("fastnet", (32, 32, 3), 10).trainable_variables
        kernels = [v.shape for v in ours if v.name == "kernel"]
        assert theirs == sorted((shape[-1], shape[-2], *shape[:-2]) for shape in kernels)
        images = torch.zeros(2, 3, 32, 32)
        assert model(images).shape == (2, 10)
        assert model[0](images).shape == (2, 24, 31, 31)

    @pytest.mark.long
    def test_the_tutorial_reads_the_same_images(self, tmp_path):
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, size=(50_000, 32, 32, 3), dtype=np.uint8)
        labels = rng.integers(0, 10, size=50_000)
        throughput.write_binary_batches(tmp_path / "binary", images, labels)
        files = sorted((tmp_path / "binary").iterdir())
        assert [file.name for file in files] == [f"data_batch_{n}.bin" for n in range(1, 6)]
        records = np.concatenate([np.fromfile(file, np.uint8) for file in files])
        records = records.reshape(-1, cifar10_binary.RECORD_BYTES)
        np.testing.assert_array_equal(records[:, 0], labels)
        planes = records[49_999, 1:].reshape(3, 32, 32)
        np.testing.assert_array_equal(planes[1], images[49_999, :, :, 1])


def test_throughput_compares_with_each_peer_round_by_round():
    rates = {
        "towers-float32-1": [300.0, 150.0, 330.0],
        "tutorial": [100.0, 50.0, 100.0],
        "keras": [150.0, 75.0, 150.0],
        "pytorch": [10.0, 10.0, 10.0],
        "pytorch-bfloat16": [60.0, 30.0, 60.0],
    }
    chosen = {name: row for name, row in throughput.rows().items() if name in rates}
    measured = {name: turns.Measured(rates[name], 512.0) for name in chosen}
    options = argparse.Namespace(dataset="shapes", rounds=3)
    ours, *_, best = throughput.figures(chosen, measured, options)
    assert ours["images_per_second"] == 300
    assert (ours["to_tutorial"], ours["to_keras"], ours["to_pytorch"]) == (3.0, 2.0, 5.0)
    assert best["to_pytorch"] == 1.0
    assert throughput.as_row(ours) == "| `train.py`, float32, 1 tower | 300 | 3.00 | 2.00 | 5.00 |"


def test_figures_are_drawn_of_what_was_measured(tmp_path, monkeypatch):
    from benchmarks import plots

    (tmp_path / "figures").mkdir()
    (tmp_path / "measurements").symlink_to(plots.DOCS / "measurements")
    monkeypatch.setattr(plots, "DOCS", tmp_path)
    plots.main()
    drawn = {path.name: path.read_bytes()[:4] for path in (tmp_path / "figures").iterdir()}
    names = ("throughput", "growth", "time_to_accuracy")
    assert drawn == {f"{name}.png": b"\x89PNG" for name in names}


@pytest.mark.long
@pytest.mark.whole_program
def test_throughput_runs_train_and_the_tutorial(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.throughput", "--dataset=shapes", "--rounds=1",
         "--side=fixed-float32-2", "--side=tutorial", "--seconds=0.5",
         f"--output={tmp_path / 'figures.jsonl'}"],
        cwd=scripts.ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, peer = scripts.lines_of(tmp_path / "figures.jsonl")
    assert (ours["side"], peer["side"]) == ("fixed-float32-2", "tutorial")
    assert ours["to_tutorial"] > 0 and ours["to_keras"] is None
    assert throughput.as_row(ours) in done.stdout


@pytest.mark.long
@pytest.mark.whole_program
def test_step_time_prints_a_table_and_keeps_the_figures(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step_time", "--model=cifarnet",
         "--compute_dtype=float32", "--global_batch_size=8", "--rounds=3", "--seconds=0.1",
         f"--output={tmp_path / 'figures.jsonl'}"],
        cwd=scripts.ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = scripts.lines_of(tmp_path / "figures.jsonl")
    sides = [(row["num_towers"], row["num_microbatches"]) for row in rows]
    assert sides == list(step_time.SIDES) == [(1, 1), (1, 4), *((k, 8) for k in (1, 2, 3, 4, 8))]
    assert rows[0]["to_one_microbatch"] == rows[2]["to_one_tower"] == 1.0
    assert all(row["step_milliseconds"] > 0 and row["rounds"] == 3 for row in rows)
    assert done.stdout.count("\n| cifarnet | float32 |") == len(step_time.SIDES)


@pytest.mark.long
@pytest.mark.whole_program
def test_growth_measures_time_and_memory(monkeypatch):
    points = {"8": ("--global_batch_size=8", "--filters=4", "--evaluate")}
    monkeypatch.setitem(growth.SERIES, "batch, evaluation", points)
    monkeypatch.chdir(scripts.ROOT)
    options = argparse.Namespace(rounds=2, seconds=0.1)
    (row,) = growth.measure("batch, evaluation", options)  # one point has no exponent
    assert row["step_milliseconds"] == pytest.approx(8000 / row["images_per_second"], rel=0.01)
    assert 200 < row["peak_megabytes"] < 5000
    assert growth.as_row(row).startswith("| batch, evaluation | 8 | ")
    assert growth.batch_size("filters", "16") == 128


@pytest.mark.long
@pytest.mark.whole_program
def test_growth_gives_the_exponent_of_a_series(monkeypatch):
    """Batches made of a set of images, and another layer, with few steps."""
    few = "--global_batch_size=8", "--num_microbatches=2", "--filters=4", "--hidden_units=8"
    points = {str(n): (f"--images={n}", *few) for n in (100, 1000)}
    monkeypatch.setitem(growth.SERIES, "images in the set", points)
    monkeypatch.chdir(scripts.ROOT)
    options = argparse.Namespace(rounds=2, seconds=0.1)
    *_, row = growth.measure("images in the set", options)
    least, largest = row["least_and_largest"]
    assert least <= row["exponent"] <= largest and abs(row["exponent"]) < 1
    assert growth.as_row(row).startswith("| images in the set | time ~ x^")


def test_the_exponent_of_growth_is_the_slope_of_the_logarithms():
    """Exactly x ** 2 and 5 * x; and one of noise, of which NumPy knows the slope."""
    noisy = [1.0, 1.5, 7.0]
    seconds = {x: [float(x**2), 5.0 * x, value] for x, value in zip((2, 4, 16), noisy, strict=True)}
    slope = np.polyfit(np.log([2, 4, 16]), np.log(noisy), 1)[0]
    found = growth.exponents(seconds)
    assert found["least_and_largest"] == [round(slope, 3), 2.0]
    assert found["exponent"] == 1.0
    assert growth.size("300M") == 300_000_000


@pytest.mark.parametrize(("name", "units"), growth.PARAMETERS.items())
def test_a_series_of_growth_has_as_many_parameters_as_it_says(name, units):
    assert weights_of_cifarnet(units) == pytest.approx(growth.size(name), rel=1e-3)
    if name == "1M":
        policy = keras.DTypePolicy("float32")
        model = cifarnet.build((24, 24, 3), 10, policy, 0, hidden_units=(units, 192))
        assert weights_of_cifarnet(units) == model.count_params()


def weights_of_cifarnet(units: int) -> int:
    convolutions = (3 * 25 * 64 + 64) + (64 * 25 * 64 + 64)
    dense = (36 * 64 * units + units) + (units * 192 + 192) + (192 * 10 + 10)
    return convolutions + dense


@pytest.mark.long
@pytest.mark.whole_program
def test_memory_measures_whole_runs():
    rows = memory.measure(megabytes=3)
    assert [row["run"] for row in rows] == ["decodes", "from the cache"]
    assert all(row["peak_megabytes"] > row["images_megabytes"] == 3 for row in rows)
    assert memory.as_row(rows[0]).startswith("| decodes | 3 | ")


@pytest.mark.long
def test_start_measures_a_command_from_the_shell(monkeypatch):
    monkeypatch.chdir(scripts.ROOT)
    options = argparse.Namespace(dataset="shapes", data_dir=None, steps=2)
    figures = start.one_round(options)
    assert len(figures) == 9
    assert figures["input pipeline alone, images/s"] > 0
    in_order = ("`train.py --help`", "`import towers`", "first step from the shell, float32")
    seconds = [figures[f"{name}, s"] for name in in_order]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    assert 200 < figures["peak memory of a run, bfloat16, MB"] < 5000


def test_an_epoch_of_the_fast_recipe_is_compared_with_the_best_of_pytorch():
    rates = {
        "towers-1": [900.0, 1000.0, 950.0],
        "towers-2": [880.0, 800.0, 800.0],
        "airbench": [450.0, 500.0, 500.0],
        "airbench-compiled": [600.0, 400.0, 400.0],
    }
    measured = {name: turns.Measured(found, 100.0) for name, found in rates.items()}
    one, two, eager, compiled = fast.figures(measured)
    assert (one["label"], two["label"]) == (
        "`train.py --recipe=fast`, 1 tower",
        "`train.py --recipe=fast`, 2 towers",
    )
    assert (one["epoch_seconds"], one["to_pytorch"]) == (52.6, 2.0)
    assert (two["to_pytorch"], eager["to_pytorch"], compiled["to_pytorch"]) == (1.6, 1.0, 0.8)
    assert fast.as_row(eager) == "| airbench94 in PyTorch, fixed batch | 500 | 100.0 | 1.00 |"
    alone = fast.figures({"towers-1": measured["towers-1"]})
    assert fast.as_row(alone[0]).endswith("| 52.6 |  |")


def test_time_to_accuracy_adds_up_the_steps_before_an_evaluation(tmp_path):
    folder = run_folder.RunFolder(str(tmp_path))
    settings = dict(recipe="fast", compute_dtype="bfloat16", train_epochs=2, seed=3, num_towers=1)
    stretches = [{"first_step": 0, "runs_on": {"processor": "Zen", "tensorflow": "2.21.0"}}]
    config = {"settings": settings, "resolved": {}, "stretches": stretches}
    run_folder.write_json(tmp_path / "config.json", config)
    evaluation = {"split": "test", "count": 1000}
    for line in (
        {"step": 1, "step_seconds": 4.0},
        {"step": 3, "step_seconds": 2.0},  # steps 2 and 3
        {"step": 4, "epoch": 1.0, "accuracy": 0.5} | evaluation,
        {"step": 6, "step_seconds": 1.0},  # steps 4 to 6
        {"step": 6, "epoch": 1.5, "accuracy": 0.75} | evaluation,
    ):
        run_folder.append_line(folder.metrics, line)
    flipped = {"step": 6, "epoch": 1.5, "accuracy": 0.8, "test_time_flip": True} | evaluation
    run_folder.append_line(folder.evaluations, {"step": 6, "accuracy": 0.1} | evaluation)
    run_folder.append_line(folder.evaluations, flipped)
    first, second = time_to_accuracy.figures(folder)
    # 4 + 2 * 2 seconds for three steps, and the fourth at their mean pace; then 3 more for three.
    assert first["training_seconds"] == pytest.approx(8 + 8 / 3, abs=0.05)
    assert second["training_seconds"] == 11.0
    assert (first["processor"], first["tensorflow"]) == ("Zen", "2.21.0")
    assert (first["accuracy_with_flip"], second["accuracy_with_flip"]) == (None, 0.8)
    assert time_to_accuracy.as_row(second) == "| fast | 3 | 1.5 | 0.2 | 75.00% | 80.00% |"
    with pytest.raises(SystemExit, match="there is no run here"):
        time_to_accuracy.figures(run_folder.RunFolder(str(tmp_path / "nothing")))


@pytest.mark.long
def test_operations_times_every_form():
    rows = operations.measure(tf.float32, rounds=1)
    assert [(row["what"], row["form"]) for row in rows] == [
        (operations.NORMALIZATION, "`tf.nn.lrn`"),
        (operations.NORMALIZATION, "band, `tf.pow`"),
        (operations.NORMALIZATION, "band, square roots"),
        (operations.FIRST_LAYERS, "textbook"),
        (operations.FIRST_LAYERS, "pool first"),
        (operations.BATCH_NORM, "Keras's layer"),
        (operations.BATCH_NORM, "one fused operation"),
        (operations.ACTIVATION, "gelu"),
        (operations.ACTIVATION, "elu"),
        (operations.ACTIVATION, "relu"),
    ]
    assert all(row["milliseconds"] > 0 for row in rows)
    assert len(operations.measure(tf.bfloat16, rounds=1)) == 9  # no tf.nn.lrn on a CPU


def test_the_forms_compared_are_the_same_function():
    x = tf.random.stateless_normal([2, 12, 12, 64], [0, 0])
    expected = tf.nn.lrn(x, **operations.LRN)
    for form in (operations.normalized, operations.band_and_pow):
        np.testing.assert_allclose(form(x), expected, rtol=1e-5)
    shapes = ([2, 24, 24, 3], [5, 5, 3, 8], [8])
    arguments = [tf.random.stateless_normal(shape, [1, len(shape)]) for shape in shapes]
    np.testing.assert_allclose(
        operations.pool_then_relu(*arguments), operations.relu_then_pool(*arguments), rtol=1e-6
    )


@pytest.mark.long
def test_where_time_goes_adds_up():
    totals, counts = where_time_goes.profiled("cifarnet", "float32", 2)
    options = argparse.Namespace(model="cifarnet", compute_dtype="float32")
    *rows, whole = where_time_goes.rows(totals, counts, options)
    assert sum(row["milliseconds"] for row in rows) == pytest.approx(whole["milliseconds"], abs=0.2)
    assert rows[-1]["operation"] == "all others" and whole["share"] == 1.0
    # Two convolutions in each of four microbatches, whatever oneDNN calls them.
    backward = [row for row in rows if "Conv2DBackpropFilter" in row["operation"]]
    assert sum(row["count"] for row in backward) == 8


class TestWorkers:
    def test_an_all_reduce_by_hand(self):
        link = workers.Link("", bytes_per_second=100.0, latency=0.5)
        # 2 * 3 / 4 * 1000 / 100 + 2 * 3 * 0.5
        assert workers.all_reduce_seconds(1000, 4, link) == 18.0
        assert workers.all_reduce_seconds(1000, 1, link) == 0.0

    def test_examples_to_hide_by_hand(self):
        link = workers.Link("", bytes_per_second=4.0, latency=0.0)
        network = workers.Network("", weights=10, multiply_adds=5)
        # 2 * 1 / 2 * 40 / 4 = 10 s; an example takes 2 * 2 * 5 / 2 = 10 s
        assert workers.examples_to_hide(network, 2, link, flops=2.0) == 1.0

    @pytest.mark.parametrize(("name", "size"), [("cifarnet", 24), ("resnet", 32)])
    def test_networks_on_paper_are_ours(self, name, size):
        model = networks.build(name, (size, size, 3), 10)
        said = next(network for network in workers.NETWORKS if network.name == name)
        assert said.weights == pytest.approx(sum(w.shape.num_elements() for w in map(
            lambda v: v.value, model.trainable_variables)), rel=0.02)  # fmt: skip
        assert said.multiply_adds == pytest.approx(multiply_adds(model), rel=0.02)

    @pytest.mark.long
    @pytest.mark.whole_program
    def test_a_step_sends_one_all_reduce_of_the_gradients(self, monkeypatch):
        monkeypatch.chdir(scripts.ROOT)
        arguments = ("benchmarks.peers.step", "--num_workers=2", "--global_batch_size=8")
        sent = workers.bytes_of_a_step(turns.Side(arguments, {})) / 2
        gradients = 4 * WEIGHTS  # 2 (W - 1) / W = 1 of them
        assert gradients < sent < 1.05 * gradients

    def test_one_worker_is_compared_with_several(self, monkeypatch):
        def measure(sides, rounds):
            assert [side.arguments[-2:] for side in sides.values()] == [
                ("--num_workers=1", "--num_towers=2"),
                ("--num_workers=2", "--num_towers=1"),
            ]
            rates = ([100.0, 200.0], [50.0, 50.0])
            return {name: turns.Measured(own, None) for name, own in zip(sides, rates, strict=True)}

        monkeypatch.setattr(turns, "measure", measure)
        monkeypatch.setattr(workers, "bytes_of_a_step", lambda side: 3e6)
        options = argparse.Namespace(rounds=2, seconds=0.1, global_batch_size=8)
        alone, two = workers.measure("cifarnet", 2, options)
        # Of times, in each round: 2 and 4.
        assert [row["to_one_worker"] for row in (alone, two)] == [1.0, 3.0]
        assert workers.as_row(two) == "| cifarnet | 2 x 1 | 160.0 | 3.00 | 1.50 |"


def multiply_adds(model) -> int:
    """Of a forward pass for one image: products of convolutions and dense layers."""
    count = 0
    for layer in model.layers:
        if hasattr(layer, "kernel"):
            positions = np.prod(layer.output.shape[1:-1], dtype=int)
            count += int(positions) * int(np.prod(layer.kernel.shape))
    return count


def test_the_first_batch_of_a_store_that_is_made_for_it(tmp_path):
    from benchmarks import first_batch

    first_batch.make(tmp_path / "store", 200)
    assert first_batch.first_batch(tmp_path / "store", step=1000) > 0
