"""`python -m towers_cli.compare`: where two runs part, in words and by exit code."""

import json
import shutil
import signal
import subprocess
import sys
import time

import forked
import lighter
import numpy as np
import pytest
import scripts
import tensorflow as tf

from towers.runs import checkpoints, run_folder
from towers_cli import compare, comparison

STEPS = "--max_steps=4"
FLAGS = (
    STEPS,
    "--microbatch_size=6",
    "--verify_every_steps=1",
    "--checkpoint_every_steps=2",
    "--momentum=0.5",
    "--summary_every_steps=0",
)


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run, on one tower; the folder of others beside it."""
    folder = tmp_path_factory.mktemp("runs")
    assert scripts.train(folder / "one", *FLAGS, "--num_towers=1").returncode == 0
    return folder


@pytest.fixture
def copy(runs, tmp_path):
    """The same run in another folder, to be changed."""
    return shutil.copytree(runs / "one", tmp_path / "copy")


def compared(capsys, *folders) -> tuple[int, list[str]]:
    code = compare.main([str(folder) for folder in folders])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out.splitlines()


def test_one_and_four_towers_are_the_same(runs, capsys):
    scripts.train(runs / "four", *FLAGS, "--num_towers=4")
    code, lines = compared(capsys, runs / "one", runs / "four")
    assert code == 0
    assert lines == [
        "settings: --num_towers=4 (the first run has 1)",
        "settings: tower devices /CPU:0,/CPU:1,/CPU:2,/CPU:3 (the first run has /CPU:0)",
        "hashes of the state: the same at all 5 steps that both have, 0 to 4",
        "logged steps: the same at all 4 steps that both have, 1 to 4",
        "evaluations: the same at the one step that both have, 4",
        "checkpoints: the same at all 2 steps that both have, 2 to 4",
        "the same, to the last bit",
    ]


def test_another_seed_parts_at_the_start(runs, capsys):
    scripts.train(runs / "seed", *FLAGS, "--seed=1")
    code, lines = compared(capsys, runs / "one", runs / "seed")
    assert code == 1
    assert lines[0] == "settings: --seed=1 (the first run has 0)"
    assert lines[1] == (
        "hashes of the state: differ from step 0 (weights, moving_averages); none before it agrees"
    )
    assert lines[2].startswith("logged steps: differ from step 1 (loss ")
    assert lines[-1] == "they differ from step 0"


def test_a_rate_that_differs_later_parts_later(runs, capsys):
    # Step 3 is the first of the second decay: 2 * 24 of 5000 examples.
    decay = ("--learning_rate_schedule=piecewise", "--decay_epochs=0.0096", "--decay_factor=0.5")
    scripts.train(runs / "decay", *FLAGS, *decay)
    code, lines = compared(capsys, runs / "one", runs / "decay")
    assert code == 1
    assert lines[0].startswith("settings: --learning_rate_schedule=piecewise (the first run has ex")
    assert (
        "hashes of the state: differ from step 3 (weights, optimizer, moving_averages); the last "
        in (lines[-5])
    )
    assert lines[-5].endswith("that agrees is 2")
    assert lines[-4].startswith("logged steps: differ from step 3 (learning_rate 0.1")
    assert lines[-2].startswith("checkpoints: differ from step 4 (largest difference ")
    assert lines[-1] == "they differ from step 3"


def test_the_largest_difference_is_named(runs):
    folder = run_folder.RunFolder(str(runs / "one"))
    values = checkpoints.read(str(runs / "one" / "checkpoints" / "step-4"))
    changed = {name: value.copy() for name, value in values.items()}
    assert comparison._largest_difference(values, changed, folder) == ""
    changed["weights/2"][:] = values["weights/2"] + np.float32(2**-20)
    changed["optimizer/2"][:] = values["optimizer/2"] - 8
    changed["weights/3"][0] = values["weights/3"][0] + 16
    with lighter.runs():  # as the network was that was trained
        said = comparison._largest_difference(values, changed, folder)
    assert said == "largest difference 16, in weights/3 (relu2/bias)"
    del changed["weights/3"]
    assert (
        comparison._largest_difference(values, changed, folder) == "they hold different variables"
    )


def test_zeros_of_another_sign_are_not_the_same_bits(runs):
    zeros = {"optimizer/2": np.zeros(2, np.float32)}
    minus = {"optimizer/2": -zeros["optimizer/2"]}
    said = comparison._largest_difference(zeros, minus, run_folder.RunFolder(str(runs / "one")))
    assert said == "largest difference 0, in optimizer/2"


@pytest.mark.filterwarnings("error")
def test_infinite_values_differ_by_infinity_or_not_at_all(runs):
    a = {"optimizer/2": np.array([np.inf, np.nan, 1.0]), "optimizer/3": np.array([np.inf, 1.0])}
    b = {"optimizer/2": np.array([np.inf, 2.0, 1.0]), "optimizer/3": np.array([np.inf, 1.5])}
    folder = run_folder.RunFolder(str(runs / "one"))
    said = comparison._largest_difference(a, b, folder)
    assert said == "largest difference inf, in optimizer/2"
    assert comparison._largest_difference(a, a, folder) == ""
    only = {name: values["optimizer/3"] for name, values in (("a", a), ("b", b))}
    assert comparison._distance(only["a"], only["b"]) == 0.5


def test_what_is_not_a_number_is_the_same_as_itself():
    nan = {"loss": float("nan"), "accuracy": 0.5}
    assert comparison._values_that_differ(nan, dict(nan)) == ""
    assert comparison._values_that_differ(nan, nan | {"accuracy": 1.0}) == "accuracy 0.5 and 1.0"


def test_a_single_changed_line_is_found(copy, runs, capsys):
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    for index, line in enumerate(lines):
        values = json.loads(line)
        if values["step"] == 3 and "loss" in values:
            values["loss"] = float(np.nextafter(values["loss"], 9))
            values["step_seconds"] = 99.0
            lines[index] = json.dumps(values)
    (copy / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    code, said = compared(capsys, runs / "one", copy)
    assert code == 1
    assert said[2].startswith("logged steps: differ from step 3 (loss ")
    assert said[2].endswith("); the last that agrees is 2")
    assert said[-1] == "they differ from step 3"


def test_what_only_one_run_has_is_not_compared(copy, runs, capsys):
    lines = scripts.lines_of(copy / "metrics.jsonl")
    kept = [json.dumps(line) for line in lines if "state_sha256" not in line and line["step"] < 3]
    (copy / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    shutil.rmtree(copy / "checkpoints")
    code, said = compared(capsys, runs / "one", copy)
    assert code == 0
    assert said == [
        "settings: the same",
        "hashes of the state: none that both runs have",
        "logged steps: the same at all 2 steps that both have, 1 to 2",
        "evaluations: none that both runs have",
        "checkpoints: none that both runs have",
        "the same, to the last bit, as far as both go: to step 2",
    ]


def test_what_a_run_began_with_and_went_on_with_is_named(copy, runs, capsys):
    config = json.loads((copy / "config.json").read_text())
    [began] = config["stretches"]
    later = {"first_step": 2, "runs_on": began["runs_on"] | {"tensorflow": "9.9"}}
    began["runs_on"] |= {"TF_ENABLE_ONEDNN_OPTS": "0"}
    config["stretches"].append(later)
    (copy / "config.json").write_text(json.dumps(config))
    code, lines = compared(capsys, runs / "one", copy)
    assert code == 0
    assert lines[:3] == [
        "settings: began with TF_ENABLE_ONEDNN_OPTS 0 (the first run has None)",
        f"the second run: from step 2 on, tensorflow 9.9 (before: {tf.__version__})",
        "the second run: from step 2 on, TF_ENABLE_ONEDNN_OPTS not set (before: 0)",
    ]


@pytest.mark.whole_program
@pytest.mark.parametrize("seconds", [0.3, 1.5, pytest.param(6.0, marks=pytest.mark.long)])
def test_ctrl_c_is_no_answer(runs, seconds):
    """Whenever it comes: the code 1 would read as "they differ"."""
    process = subprocess.Popen(
        [sys.executable, "-m", "towers_cli.compare", runs / "one", runs / "one"],
        cwd=scripts.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    had_ended = process.returncode == 0 and seconds > 1
    assert process.returncode in (130, -signal.SIGINT) or had_ended


class TestWhatCannotBeCompared:
    def explained(self, capsys, *folders):
        assert compare.main([str(folder) for folder in folders]) == 2
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        return out, err

    def test_no_run(self, runs, tmp_path, capsys):
        _, err = self.explained(capsys, runs / "one", tmp_path / "none")
        assert err == f"towers-compare: error: {tmp_path / 'none'}: there is no run here\n"

    def test_files_that_are_no_run(self, runs, tmp_path, capsys):
        (tmp_path / "file").touch()
        _, err = self.explained(capsys, runs / "one", tmp_path)
        assert err.startswith(f"towers-compare: error: {tmp_path}: holds files but no run")

    @pytest.mark.parametrize("part", ["stretches"])
    def test_a_config_whose_part_is_empty(self, runs, copy, capsys, part):
        config = json.loads((copy / "config.json").read_text())
        config[part] = type(config[part])()
        (copy / "config.json").write_text(json.dumps(config))
        _, err = self.explained(capsys, runs / "one", copy)
        assert err.startswith(f"towers-compare: error: {copy}: its config.json is not that of")

    def test_no_step_in_common(self, copy, runs, capsys):
        shutil.rmtree(copy / "checkpoints")
        (copy / "metrics.jsonl").unlink()
        _, err = self.explained(capsys, runs / "one", copy)
        assert "the runs have no step in common" in err

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\xff\xfe\n", "line 1 is not one that a run writes; repair the file, or rest"),
            (b'{"step": 1}\n{"ste\n{"step": 3}\n', "line 2 is not one that a run writes"),
            (b'{"step": 1, "state_sha256": "0"}\n', "line 1 has no parts_sha256"),
        ],
    )
    def test_damaged_metrics(self, copy, runs, capsys, content, message):
        (copy / "metrics.jsonl").write_bytes(content)
        _, err = self.explained(capsys, runs / "one", copy)
        assert err.startswith(f"towers-compare: error: {copy / 'metrics.jsonl'}: {message}")
        assert err.count("\n") == 1

    def test_a_damaged_checkpoint_after_what_can_be(self, copy, runs, capsys):
        (copy / "checkpoints" / "step-2" / "state.index").write_bytes(b"torn")
        out, err = self.explained(capsys, runs / "one", copy)
        assert "step-2 cannot be" in err
        assert "hashes of the state: the same at all 5 steps" in out

    @pytest.mark.parametrize("arguments", [[], ["one"], ["one", "two", "three"], ["one", "--two"]])
    def test_other_than_two_folders(self, arguments):
        with pytest.raises(SystemExit) as ended:
            compare.main(arguments)
        assert ended.value.code == 2


def test_a_torn_last_line_is_left_out(copy, runs, capsys):
    whole = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(whole + '{"step": 5, "lo')
    code, said = compared(capsys, runs / "one", copy)
    assert (code, said[-1]) == (0, "the same, to the last bit")


def test_a_network_that_cannot_be_built_has_no_paths(copy, runs):
    config = json.loads((copy / "config.json").read_text())
    config["settings"]["model"] = "of_tomorrow"
    (copy / "config.json").write_text(json.dumps(config))
    assert comparison._path(run_folder.RunFolder(str(copy)), "weights/0") == ""
    assert comparison._path(run_folder.RunFolder(str(runs / "one")), "weights/99") == ""
    folder = run_folder.RunFolder(str(runs / "one"))
    assert comparison._path(folder, "weights/0") == ""  # another network than that of the run
    with lighter.runs():
        assert comparison._path(folder, "weights/0") == " (conv1/kernel)"


@pytest.mark.whole_program
def test_as_a_command(runs, copy):
    def run(*arguments):
        call = [sys.executable, "-m", "towers_cli.compare", *map(str, arguments)]
        return forked.run(call, cwd=scripts.ROOT, timeout=120)

    done = run(runs / "one", copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("the same, to the last bit\n")
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Where two runs begin to differ" in done.stdout
    assert run(copy, copy / "nothing").returncode == 2


def test_folders_are_left_as_they_are(runs, copy, capsys):
    before = scripts.contents(copy)
    assert compared(capsys, runs / "one", copy)[0] == 0
    assert scripts.contents(copy) == before
