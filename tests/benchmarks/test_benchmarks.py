"""The benchmarks run, count right and compare like with like; what they measure is no test's
business."""

import argparse

import numpy as np
import pytest
import scripts

from benchmarks import bias_gradients, start, time_to_accuracy, turns, workers
from towers.runs import run_folder

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


@pytest.mark.long
def test_start_measures_a_command_from_the_shell(monkeypatch):
    monkeypatch.chdir(scripts.ROOT)
    options = argparse.Namespace(dataset="shapes", data_dir=None, steps=2)
    figures = start.one_round(options)
    assert len(figures) == 7
    in_order = ("`train.py --help`", "`import towers`", "first step from the shell, float32")
    seconds = [figures[f"{name}, s"] for name in in_order]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    assert 200 < figures["peak memory of a run, bfloat16, MB"] < 5000


def test_time_to_accuracy_adds_up_the_steps_before_an_evaluation(tmp_path):
    folder = run_folder.RunFolder(str(tmp_path))
    settings = dict(
        recipe="fast", compute_dtype="bfloat16", train_epochs=2, seed=3, num_towers=1,
        eval_split="test",
    )  # fmt: skip
    stretches = [{"first_step": 0, "runs_on": {"processor": "Zen", "tensorflow": "2.21.0"}}]
    config = {"settings": settings, "resolved": {}, "stretches": stretches}
    run_folder.write_json(tmp_path / "config.json", config)
    for line in (
        {"step": 1, "step_seconds": 4.0},
        {"step": 3, "step_seconds": 2.0},  # steps 2 and 3
        {"step": 4, "epoch": 1.0, "accuracy": 0.1, "val_accuracy": 0.5},
        {"step": 6, "step_seconds": 1.0},  # steps 4 to 6
        {"step": 6, "epoch": 1.5, "accuracy": 0.2, "val_accuracy": 0.75},
        {"step": 6, "state_sha256": "0"},
    ):
        run_folder.append_line(folder.metrics, line)
    evaluation = {"step": 6, "split": "test"}
    run_folder.append_line(folder.evaluations, evaluation | {"accuracy": 0.1})
    flipped = {"accuracy": 0.8, "test_time_flip": True}
    run_folder.append_line(folder.evaluations, evaluation | flipped)
    first, second = time_to_accuracy.figures(folder)
    # 4 + 2 * 2 seconds for three steps, and the fourth at their mean pace; then 3 more for three.
    assert first["training_seconds"] == pytest.approx(8 + 8 / 3, abs=0.05)
    assert second["training_seconds"] == 11.0
    assert (first["processor"], first["tensorflow"]) == ("Zen", "2.21.0")
    assert (first["accuracy_with_flip"], second["accuracy_with_flip"]) == (None, 0.8)
    assert time_to_accuracy.as_row(second) == "| fast | 3 | 1.5 | 0.2 | 75.00% | 80.00% |"
    with pytest.raises(SystemExit, match="there is no run here"):
        time_to_accuracy.figures(run_folder.RunFolder(str(tmp_path / "nothing")))


def test_the_figure_is_drawn_of_what_was_measured(tmp_path):
    rows = [
        row
        for name in time_to_accuracy.MEASURED
        for row in scripts.lines_of(time_to_accuracy.DOCS / f"measurements/{name}.jsonl")
    ]
    time_to_accuracy.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


class TestGradientsOfBiases:
    @pytest.mark.parametrize(
        "layer", ["Dense", pytest.param("DepthwiseConv2D", marks=pytest.mark.long)]
    )
    def test_keras_s_are_wrong_and_towers_s_are_not(self, layer):
        row = bias_gradients.measure(layer, 1024, rounds=2)
        assert row["values"] == 1024
        assert row["error_of_keras"][1] > 0.2 and row["error_of_towers"][2] < 0.01

    def test_the_update_by_hand(self):
        """Of mean squares over n positions and 16 channels: 2 / (16 n) * sum(1 - outputs)."""
        for side in ("keras", "towers"):
            update = bias_gradients.update_of_bias(side, "Dense", 256, "float32", seed=0)
            other = bias_gradients.update_of_bias(side, "Dense", 64, "float32", seed=0)
            assert update.shape == (16,)
            np.testing.assert_allclose(update, 2 / 16, atol=0.05)
            assert np.abs(update - other).max() > 0


class TestWorkers:
    @pytest.mark.long
    @pytest.mark.whole_program
    def test_a_step_sends_one_all_reduce_of_the_gradients(self, monkeypatch):
        monkeypatch.chdir(scripts.ROOT)
        side = ("benchmarks.peers.keras_tasks", "towers", "cifarnet", "float32")
        arguments = (*side, "--num_workers=2", "--batch=8", "--microbatch_size=4")
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
        options = argparse.Namespace(rounds=2, seconds=0.1, batch=8)
        alone, two = workers.measure("cifarnet", 2, options)
        # Of times, in each round: 2 and 4.
        assert [row["to_one_worker"] for row in (alone, two)] == [1.0, 3.0]
        assert workers.as_row(two) == "| cifarnet | 2 x 1 | 160.0 | 3.00 | 1.50 |"
