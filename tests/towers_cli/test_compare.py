"""`towers-compare`: where two runs part, in words and by exit code."""

import json
import shutil

import pytest
import scripts

from towers_cli import compare

FLAGS = ("--microbatch_size=6", "--verify_every_steps=1", "--momentum=0.5")


@pytest.fixture
def one(run_of):
    """A run of four steps on one tower."""
    return run_of(*FLAGS, "--num_towers=1")


@pytest.fixture
def copy(one, tmp_path):
    """The same run in another folder, to be changed."""
    return shutil.copytree(one, tmp_path / "copy")


def compared(capsys, *folders) -> tuple[int, list[str]]:
    code = compare.main([str(folder) for folder in folders])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out.splitlines()


def test_one_and_four_towers_are_the_same(one, copy, capsys):
    config = json.loads((copy / "config.json").read_text())
    config["resolved"]["tower_devices"] = [f"/CPU:{tower}" for tower in range(4)]
    (copy / "config.json").write_text(json.dumps(config))
    code, lines = compared(capsys, one, copy)
    assert code == 0
    assert "/CPU:0,/CPU:1,/CPU:2,/CPU:3" in lines[0]
    assert ["0 to 4" in lines[1], "1 to 4" in lines[2], "4 to 4" in lines[4]] == [True] * 3


def test_a_rate_that_differs_later_parts_later(one, tmp_path, capsys):
    # Step 3 is the first of the second decay: 2 * 24 of 5000 examples.
    decay = ("--learning_rate_schedule=piecewise", "--decay_epochs=0.0096", "--decay_factor=0.5")
    scripts.train(tmp_path, *FLAGS, *decay)
    code, lines = compared(capsys, one, tmp_path)
    assert code == 1
    assert "learning_rate_schedule piecewise" in lines[0]
    assert "from step 3 (weights, optimizer, moving_averages)" in lines[-5]
    assert "from step 3 (learning_rate 0.1" in lines[-4] and lines[-4].endswith(": 2")
    assert "from step 4 (state" in lines[-2] and lines[-2].endswith(": none")
    assert "from step 3" in lines[-1]


def test_a_program_has_no_flags_and_a_run_may_go_on_on_something_else(copy, one, capsys):
    config = json.loads((copy / "config.json").read_text())
    config["settings"] = {}
    config["defining"]["optimizer"] = "Lion"
    config["changes"].append("from step 2 on, keras 99")
    (copy / "config.json").write_text(json.dumps(config))
    _, lines = compared(capsys, one, copy)
    assert "settings: optimizer Lion (the first run has sgd)" in lines
    assert "the second run: from step 2 on, keras 99" in lines


def test_what_only_one_run_has_is_not_compared(copy, one, capsys):
    lines = scripts.lines_of(copy / "metrics.jsonl")
    kept = [json.dumps(line) for line in lines if "state_sha256" not in line and line["step"] < 3]
    (copy / "metrics.jsonl").write_text("\n".join(kept) + '\n{"step": 3, "lo')
    (copy / "final_model.json").unlink()
    code, lines = compared(capsys, one, copy)
    assert (code, len(lines)) == (0, 6)
    assert "1 to 2" in lines[2] and "to step 2" in lines[-1]


def test_runs_without_a_step_in_common_cannot_be_compared(copy, one, capsys):
    (copy / "final_model.json").unlink()
    (copy / "metrics.jsonl").unlink()
    for other in (copy, copy / "none"):
        assert compare.main([str(one), str(other)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("towers-compare: error: ") and err.count("\n") == 1
    assert f"{copy / 'none'}: " in err
