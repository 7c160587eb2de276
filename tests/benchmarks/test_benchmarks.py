"""The benchmarks run, count right and compare like with like; what they measure is no test's
business."""

import json
import os
import subprocess
import sys

import pytest
import scripts

from benchmarks import turns
from benchmarks.peers import tasks

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


def test_sides_count_their_own_images(side):
    length = {"by_steps": {"steps": 5}, "by_seconds": {"seconds": 0.1}}
    sides = {name: side(name, COUNTING, turn) for name, turn in length.items()}
    for result in turns.measure(sides, rounds=2).values():
        assert len(result.rates) == 2
        assert all(0 < rate <= 500 for rate in result.rates)  # 10 images in 20 ms or more
        assert 10 < result.peak_megabytes < 5000


@pytest.mark.parametrize("when", ["True", "turn._turn"], ids=["at its start", "in its turn"])
def test_a_side_that_ends_is_named_with_its_last_words(side, when):
    text = COUNTING.replace("print(", f"if {when}: raise OSError('no batch')\n    print(")
    broken = side("broken", text, {"steps": 1})
    with pytest.raises(SystemExit, match=r"(?s)broken has ended; .*OSError: no batch"):
        turns.measure({"broken": broken}, rounds=1)


@pytest.mark.long
@pytest.mark.whole_program
def test_the_script_for_a_day_with_a_gpu_runs_on_a_cpu(tmp_path):
    output = tmp_path / "rehearsal.jsonl"
    call = [sys.executable, "-m", "benchmarks.gpu_day", "--rehearse", f"--output={output}"]
    environment = os.environ | {"PYTHONPATH": str(scripts.ROOT)}
    subprocess.run(call, cwd=scripts.ROOT, env=environment, check=True, capture_output=True)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line for line in lines if "error" in line or "lost" in str(line)] == []
    ended = [line["section"] for line in lines if line.keys() == {"section", "at", "seconds"}]
    parts = "names", "hashes", "cifarnet", "resnet50", "microbatches", "variants", "profile"
    assert tuple(ended) == parts
    runs = "cold 1 first", "warm 1", "warm 2"
    hashes = [line["sha256"] for line in lines if line.get("run") in runs]
    assert len(hashes) == 3 and len(set(hashes)) == 1


# Keras's LSTM has one bias for each gate and PyTorch two, 4 * UNITS of them more.
WEIGHTS = {"mobilenet": 408_938, "transformer": 1_446_666, "lstm": 1_181_450}


@pytest.mark.parametrize("name", WEIGHTS)
def test_each_network_of_the_peers_has_its_weights(name):
    model = tasks.build(name, "float32")
    assert sum(weight.shape.num_elements() for weight in model.trainable_weights) == WEIGHTS[name]
