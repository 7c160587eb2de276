"""What a run ran on, stretch by stretch: by hand, and as train.py writes it down."""

import json

import pytest
import scripts

from towers.runs import stretches

pytestmark = pytest.mark.usefixtures("cache")

A, B = {"tensorflow": "2.21.0", "processor": "Zen"}, {"tensorflow": "2.22.0", "processor": "Zen"}


def test_one_more_where_a_run_goes_on_on_something_else():
    start = stretches.extended([], 0, A)
    assert start == [{"first_step": 0, "runs_on": A}]
    assert stretches.extended(start, 10, A) == start
    assert stretches.extended(start, 10, B) == [*start, {"first_step": 10, "runs_on": B}]


def test_a_stretch_that_left_nothing_is_forgotten():
    """A run goes on under B at step 10, is killed, and goes on under A from step 10 again."""
    both = stretches.extended(stretches.extended([], 0, A), 10, B)
    assert stretches.extended(both, 10, A) == [{"first_step": 0, "runs_on": A}]
    assert stretches.extended(both, 12, A) == [*both, {"first_step": 12, "runs_on": A}]


def test_changes_in_words():
    both = stretches.extended(stretches.extended([], 0, A), 10, B | {"XLA_FLAGS": "--x"})
    assert stretches.changes(both) == [
        "from step 10 on, tensorflow 2.22.0 (before: 2.21.0)",
        "from step 10 on, XLA_FLAGS --x (before: not set)",
    ]
    assert stretches.changes(both[:1]) == []


class TestARunThatGoesOn:
    """Six steps, the last four of them on something else."""

    FLAGS = ("--checkpoint_every_steps=2", "--summary_every_steps=0")

    def stretches_of(self, folder):
        return json.loads((folder / "config.json").read_text())["stretches"]

    @pytest.mark.long
    def test_on_something_else_says_and_keeps_both(self, tmp_path, monkeypatch):
        assert scripts.train(tmp_path, *self.FLAGS, "--max_steps=2").returncode == 0
        [began] = self.stretches_of(tmp_path)
        assert began["first_step"] == 0
        assert {"tensorflow", "keras", "numpy", "python", "processor", "towers"} <= set(
            began["runs_on"]
        )
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX")
        done = scripts.train(tmp_path, *self.FLAGS, "--max_steps=6")
        assert done.returncode == 0
        was = began["runs_on"].get("ONEDNN_MAX_CPU_ISA", "not set")
        assert (
            f"from step 2 on, ONEDNN_MAX_CPU_ISA AVX (before: {was}): the last bits may differ "
            "from those of a run without this\n"
        ) in done.stdout
        first, second = self.stretches_of(tmp_path)
        assert first == began
        assert second["first_step"] == 2
        assert second["runs_on"] == began["runs_on"] | {"ONEDNN_MAX_CPU_ISA": "AVX"}

    @pytest.mark.long
    def test_on_the_same_says_nothing(self, tmp_path):
        scripts.train(tmp_path, *self.FLAGS, "--max_steps=2")
        began = self.stretches_of(tmp_path)
        done = scripts.train(tmp_path, *self.FLAGS, "--max_steps=4")
        assert "the last bits may" not in done.stdout
        assert self.stretches_of(tmp_path) == began
