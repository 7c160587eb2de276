"""`python -m laboratory` as a user has it: what it writes, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

from laboratory import __main__ as command
from laboratory import data, findings, problems, report, rules, simulation, speeds

import keras  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--workers=4", "--time=40", "--batch=8")


@pytest.fixture
def shapes(monkeypatch, tmp_path):
    """No CIFAR-10 is at hand; and where a command is run, files are its own."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.whole_program
@pytest.mark.usefixtures("whole_runs")
@pytest.mark.long
def test_a_rule_ends_with_a_table_a_plot_and_one_model(tmp_path, shapes, capsys):
    arguments = ("--rule=easgd", "--speeds=straggler", "--rate=0.2", "--period=2", "--message=0")
    call = [sys.executable, "-m", "laboratory", *arguments, *SHORT, f"--out={tmp_path}"]
    done = forked.run(call, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "| easgd | 0.2  |" in done.stdout
    folder = tmp_path / "easgd"
    assert (folder / "plot.png").stat().st_size > 30_000
    written = (folder / "runs.json").read_bytes()
    settings, (run,) = json.loads(written).values()
    assert settings["data"] == "shapes"
    assert (settings["speeds"], settings["period"], settings["workers"]) == ("straggler", 2, 4)
    assert (
        f"easgd.keras: the centre, accuracy {run['accuracy']:.1%}, "
        f"weights {run['weights_sha256'][:16]}"
    ) in done.stdout
    # Three workers make 40 steps, and the straggler 10, with a pull at every second one, the
    # first included, which has nothing to tell.
    assert run["updates"] == 3 * 20 + 5
    assert run["gradients"]["used"] == 3 * 38 + 8
    assert sum(run["staleness"].values()) == run["updates"]
    # The model in the file is the one of the last point.
    model = keras.saving.load_model(folder / run["file"])
    images = data.load(findings.Setup(shapes=True))
    right = count = 0
    for pixels, labels in images.test_batches():
        predicted = np.argmax(model(pixels), axis=1)
        right += int((predicted == labels.numpy()).sum())
        count += len(labels)
    assert right / count == pytest.approx(run["accuracy"])
    assert run["accuracy"] == run["points"][-1]["accuracy"]
    # And the same command in another process, this one, writes the same bytes.
    assert command.main([*arguments, *SHORT, "--out=again"]) == 0
    assert (tmp_path / "again/easgd/runs.json").read_bytes() == written
    picture = (tmp_path / "again/easgd/plot.png").read_bytes()
    assert picture == (folder / "plot.png").read_bytes()


@pytest.mark.long
def test_compare_shows_each_rule_at_the_best_of_its_rates(shapes, tmp_path):
    arguments = ["--workers=2", "--time=3", "--batch=4", "--message=0", "--seed=3"]
    flags = ["compare", "--rule=synchronous,easgd", "--rates=0.1,100", *arguments]
    assert command.main(flags) == 0
    written = json.loads((tmp_path / "runs/laboratory/compare/runs.json").read_text())
    assert [(run["rule"], run["rate"]) for run in written["runs"]] == [
        ("synchronous", 0.1), ("easgd", 0.1)
    ]  # fmt: skip
    assert written["settings"]["seed"] == 3


def test_flags_reach_the_simulation(shapes):
    flags = ("--rule=eamsgd", "--rate=0.02", "--workers=5", "--speeds=dying", "--dies_at=1")
    more = ("--noticed_after=1", "--message=0.5", "--time=4", "--momentum=0.8", "--period=2")
    options = command._make_parser().parse_args([*flags, *more])
    command.check(command._make_parser(), options)
    run = command.one_run(options, problems.Parabola(), "eamsgd", 0.02)
    asked = speeds.Speeds("dying", 5, dies_at=1.0)
    rule = rules.EAMSGD(0.02, period=2, momentum=0.8)
    told = {"until": 4.0, "message": 0.5, "noticed_after": 1.0}
    expected = simulation.run("eamsgd", rule, problems.Parabola(), asked, **told)
    assert run.points == expected.points
    assert run.weights == expected.weights


def test_the_model_and_the_batch_are_those_asked_for(shapes):
    from laboratory import network

    assert tuple(network.MODELS) == command.MODELS
    flags = ["--rule=easgd", "--model=cifarnet", "--batch=4", "--seed=3"]
    problem, name = command.make_problem(command._make_parser().parse_args(flags))
    assert (problem.model.name, problem.batch, name) == ("cifarnet", 4, "shapes")
    ((images, _),) = problem.batches(1)
    same = data.load(findings.Setup(shapes=True)).training_batches(4, 1, seed=3, distorted=False)
    np.testing.assert_array_equal(images, next(iter(same))[0])


@pytest.mark.long
def test_a_run_without_an_update_or_that_diverged_leaves_no_model(shapes, tmp_path):
    assert command.main(["--rule=local_sgd", "--workers=2", "--time=2", "--batch=4"]) == 0
    flags = ("--rule=asynchronous", "--rate=100", "--workers=2", "--time=300", "--batch=4")
    assert command.main(flags) == 0
    for name in ("local_sgd", "asynchronous"):
        folder = tmp_path / "runs/laboratory" / name
        (run,) = json.loads((folder / "runs.json").read_text())["runs"]
        assert run["file"] is None
        assert not (folder / f"{name}.keras").exists()


def test_without_arguments_it_lists_rules_with_formula_and_source(capsys):
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    for name, rule in rules.RULES.items():
        assert f"--rule={name}\n" in listed
        assert rule.source in listed and rule.model in listed
    assert all(f"--speeds={name}" in listed for name in speeds.SPEEDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workers=4"], "--rule"),
        (["--rule=sync"], "sync: must be one of synchronous"),
        (["compare", "--rule=easgd,sync"], "sync: must be one of synchronous"),
        (["contrast"], "contrast: must be one of compare"),
        (["--rule=easgd", "--speeds=fast"], "fast: must be one of constant"),
        (["--rule=easgd", "--model=resnet"], "resnet: must be one of two_convolutions"),
        (["--rule=easgd", "--workers=2.5"], "2.5: must be a whole number"),
        (["--rule=easgd", "--time=nan"], "nan: must be at least 1 and at most 100,000"),
        (["--rule=easgd", "--moving_rate=1.5"], "1.5: must be at least 0 and at most 1"),
        (["--rule=easgd", "--bound=3"], "--bound=3: only for --rule=bounded_staleness"),
        (["--rule=easgd", "--slowdown=2"], "--slowdown=2: only for --speeds=straggler"),
        (["--rule=easgd", "--rates=1,2"], "--rates: only for compare"),
        (["compare", "--rate=0.1"], "--rate=0.1"),
        (["compare", "--rates=0.1,fast"], "--rates: fast"),
        (["--rule=backup_workers", "--workers=4", "--backups=4"], "--backups=4: must be below"),
        (["--rule=easgd", "--worker=4"], "--worker=4"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_is_allowed(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_folders_without_data_or_that_cannot_be_written_are_named(shapes, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--rule=easgd", f"--data_dir={tmp_path}", "--time=1"])
    assert ended.value.code == 2
    assert f"--data_dir={tmp_path}" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert command.main(["--rule=easgd", "--out=file/below"]) == 1
    assert "--out=file/below" in capsys.readouterr().err


def test_a_reader_that_is_gone_is_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m laboratory | head -1",
        shell=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("--rule=synchronous\n", "")


def a_run(accuracies, **changed):
    """A run with a point at 0, 1, 2, ... and 100 examples between them."""
    points = [
        simulation.Point(float(t), 100 * t, 2.0, accuracy, 0.5)
        for t, accuracy in enumerate(accuracies)
    ]
    made = dict(
        rule="asynchronous",
        rate=0.1,
        model="the server's weights",
        points=points,
        staleness={0: 1, 3: 3},
        began=9,
        used=4,
        dropped=2,
        updates=4,
        weights=np.zeros(3, np.float32),
        diverged=False,
    )
    return simulation.Run(**made | changed)


class TestReport:
    def test_a_row_by_hand(self):
        head, (row,) = report.table([a_run([0.1, 0.4, 0.5, 0.6])])
        assert row == [
            "asynchronous", "0.1", "50.0%", "2 (200)", "100.0", "4", "2.2, 3", "2", "0.500",
        ]  # fmt: skip
        assert len(row) == len(head)

    def test_a_run_that_diverged_has_no_accuracy(self):
        diverged = a_run([0.1], staleness={}, diverged=True)
        _, (row,) = report.table([diverged])
        assert row[2:4] == ["diverged", ""]
        assert report.final_accuracy(diverged) == 0.0
        assert report.as_json(diverged)["accuracy"] is None

    def test_the_race_is_to_three_quarters_of_the_best(self):
        assert report.target([a_run([0.5] * 3), a_run([0.62] * 3)]) == 0.46

    @pytest.mark.long
    def test_runs_that_never_got_anywhere_can_be_drawn(self, tmp_path):
        runs = [a_run([0.1], diverged=True, staleness={}), a_run([0.1] * 4, staleness={}, used=0)]
        finding = findings.Finding((), (), {}, lambda f: report.draw(f, runs, "title"))
        findings.save(finding, tmp_path / "plot.png", size=(11, 6.5))
        assert (tmp_path / "plot.png").stat().st_size > 10_000
