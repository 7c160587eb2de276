"""The benchmarks run and count right; what they measure is no test's business."""

import json
import subprocess
import sys

import pytest
import scripts

from benchmarks import step_time, turns


def test_a_ratio_is_the_median_of_those_within_a_round():
    # The machine was twice as slow in the second round, and had a hiccup in the third.
    assert turns.median_ratio([1.2, 2.4, 9.0], [1.0, 2.0, 1.0]) == pytest.approx(1.2)


@pytest.mark.whole_program
def test_step_time_prints_a_table_and_keeps_the_figures(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step_time", "--model=cifarnet",
         "--compute_dtype=float32", "--global_batch_size=8", "--rounds=3", "--turn_seconds=0.1",
         f"--output={tmp_path / 'figures.jsonl'}"],
        cwd=scripts.ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    sides = [(row["num_towers"], row["num_microbatches"]) for row in rows]
    assert sides == list(step_time.SIDES) == [(1, 1), (1, 4), (2, 4), (4, 4)]
    assert rows[0]["to_one_microbatch"] == rows[1]["to_one_tower"] == 1.0
    assert all(row["step_milliseconds"] > 0 and row["rounds"] == 3 for row in rows)
    assert done.stdout.count("\n| cifarnet | float32 |") == 4
