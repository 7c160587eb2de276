"""`python -m laboratory` as a user has it: what it writes, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

from laboratory import __main__ as command
from laboratory import data, findings, report, rules, simulation, speeds
from laboratory import flags as flags_of

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
    images = data.load(findings.Setup(short=True))
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


@pytest.fixture
def simulated(monkeypatch):
    """What the command would run: the calls, and runs whose accuracy is `accuracy[rule, rate]`."""
    calls, accuracy = [], {}

    def run(name, rule, problem, of_workers, **options):
        calls.append((name, rule, of_workers, options))
        reached = accuracy.get((name, rule.rate), 0.5)
        return a_run([reached] * 3, rule=name, rate=rule.rate)

    monkeypatch.setattr(command.simulation, "run", run)
    monkeypatch.setattr(command, "make_problem", lambda options: (None, "nothing"))
    monkeypatch.setattr(command, "save_model", lambda run, problem, folder: None)
    return calls, accuracy


@pytest.mark.long
def test_compare_shows_each_rule_at_the_best_of_its_rates(shapes, simulated, tmp_path, capsys):
    _, accuracy = simulated
    accuracy |= {("synchronous", 0.1): 0.9, ("easgd", 0.3): 0.8, ("easgd", 0.02): 0.7}
    flags = ("compare", "--rule=synchronous,easgd", "--rates=0.02,0.1,0.3")
    assert command.main(flags) == 0
    runs = json.loads((tmp_path / "runs/laboratory/compare/runs.json").read_text())["runs"]
    assert [(run["rule"], run["rate"]) for run in runs] == [("synchronous", 0.1), ("easgd", 0.3)]
    assert [run["accuracy"] for run in runs] == [0.9, 0.8]


@pytest.mark.long
def test_compare_runs_all_rules_at_three_rates(shapes, simulated):
    calls, _ = simulated
    assert command.main(["compare"]) == 0
    tried = [(name, rule.rate) for name, rule, _, _ in calls]
    assert sorted(tried) == sorted((n, rate) for n in rules.RULES for rate in (0.03, 0.1, 0.3))
    assert all(type(rule) is rules.RULES[name] for name, rule, _, _ in calls)


def test_flags_reach_the_simulation(shapes, simulated):
    calls, _ = simulated
    flags = ("--rule=eamsgd", "--rate=0.02", "--workers=5", "--speeds=dying", "--dies_at=7")
    more = ("--noticed_after=3", "--message=0.5", "--time=90", "--seed=11", "--momentum=0.8")
    pulled = ("--moving_rate=0.3", "--period=4")
    assert command.main([*flags, *more, *pulled]) == 0
    ((name, rule, of_workers, options),) = calls
    assert (name, rule) == ("eamsgd", rules.EAMSGD(0.02, 0.3, 4, 0.8))
    assert of_workers == speeds.Speeds("dying", 5, dies_at=7.0, seed=11)
    assert options == {"until": 90.0, "message": 0.5, "noticed_after": 3.0}
    calls.clear()
    assert command.main(["--rule=synchronous", "--speeds=two_speeds", "--slowdown=9"]) == 0
    ((_, rule, of_workers, options),) = calls
    assert rule == rules.Synchronous(0.1)
    assert of_workers == speeds.Speeds("two_speeds", 16, slowdown=9.0)
    assert options == {"until": 200.0, "message": 0.1, "noticed_after": 10.0}


def test_the_model_and_the_batch_are_those_asked_for(shapes):
    from laboratory import network

    assert tuple(network.MODELS) == command.MODELS
    parser = command._make_parser()
    options = parser.parse(["--rule=easgd", "--model=cifarnet", "--batch=4", "--seed=3"])
    problem, name = command.make_problem(options)
    assert (problem.model.name, problem.batch, name) == ("cifarnet", 4, "shapes")
    ((images, _),) = problem.batches(1)
    ((same, _),) = data.load(findings.Setup(short=True)).training_batches(
        4, 1, seed=3, distorted=False
    )
    np.testing.assert_array_equal(images, same)


@pytest.mark.long
def test_a_run_without_an_update_or_that_diverged_leaves_no_model(shapes, tmp_path, capsys):
    assert command.main(["--rule=local_sgd", "--workers=2", "--time=2", "--batch=4"]) == 0
    assert (
        "local_sgd: no update was made in this time, there is no model" in capsys.readouterr().out
    )
    flags = ("--rule=asynchronous", "--rate=100", "--workers=2", "--time=300", "--batch=4")
    assert command.main(flags) == 0
    assert "asynchronous: diverged, there is no model" in capsys.readouterr().out
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
        assert rule.source in listed
        assert f"One model at the end: {rule.model}." in listed
    assert "  --bound: gradients that the fastest worker may be ahead of the slowest; def" in listed
    assert "  --rate: learning rate η; default: 0.1\n" in listed
    assert "w_t+1 = w_t - η g_i(w_t-s)" in listed
    assert "--speeds=straggler" in listed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workers=4"], "--rule is missing, or compare; the rules are synchronous, warm_up"),
        (["--rule=sync"], "--rule=sync: must be one of synchronous, warm_up"),
        (["compare", "--rule=easgd,sync"], "--rule=sync: must be one of synchronous"),
        (["contrast"], "contrast: the one word that is known is compare"),
        (["--rule=easgd", "--speeds=fast"], "--speeds=fast: must be one of constant, jitter"),
        (["--rule=easgd", "--model=resnet"], "--model=resnet: must be one of two_convolutions"),
        (["--rule=easgd", "--workers=0"], "--workers=0: must be a whole number, at least 1 and"),
        (["--rule=easgd", "--workers=2.5"], "--workers=2.5: must be a whole number"),
        (["--rule=easgd", "--time=nan"], "--time=nan: must be at least 1 and at most 100,000"),
        (["--rule=easgd", "--message=-1"], "--message=-1: must be at least 0 and at most 1,000"),
        (["--rule=easgd", "--rate=0"], "--rate=0: must be at least 1e-06 and at most 100"),
        (["--rule=easgd", "--moving_rate=1.5"], "--moving_rate=1.5: must be at least 0 and at mo"),
        (["--rule=easgd", "--bound=3"], "--bound=3: only for --rule=bounded_staleness"),
        (["--rule=local_sgd", "--momentum=0.5"], "--momentum=0.5: only for --rule=eamsgd"),
        (["--rule=easgd", "--rates=1,2"], "--rates=1,2: only for compare"),
        (["compare", "--rate=0.1"], "--rate=0.1: compare tries several"),
        (["compare", "--rates=0.1,fast"], "--rates=fast: must be at least 1e-06"),
        (["compare", "--rates="], "--rates=: must be at least 1e-06 and at most 100"),
        (["--rule=easgd", "--slowdown=2"], "--slowdown=2: only for --speeds=straggler or two_sp"),
        (["--rule=easgd", "--noticed_after=2"], "--noticed_after=2: only for --speeds=dying"),
        (["--rule=easgd", "--seed=3000000000"], "--seed=3000000000: must be a whole number, at l"),
        (
            ["--rule=backup_workers", "--workers=4", "--backups=4"],
            "--backups=4: must be below --workers=4",
        ),
        (["--rule=easgd", "--worker=4"], "unrecognized arguments: --worker=4"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_is_allowed(flags, said, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(flags)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m laboratory: error: {said}"), line


def test_a_folder_without_the_data_is_refused(shapes, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--rule=easgd", f"--data_dir={tmp_path}", "--time=1"])
    assert ended.value.code == 2
    assert "holds no CIFAR-10" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(shapes, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command.main(["--rule=easgd", "--out=file/below"]) == 1
    assert "--out=file/below: Not a directory" in capsys.readouterr().err


def test_a_reader_that_is_gone_is_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m laboratory | head -1",
        shell=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "--rule=synchronous\n"
    assert done.stderr == ""


def test_interrupted_is_no_traceback(capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    assert flags_of.run(interrupted, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


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
        assert head[3] == "to 37%: time (examples)"

    def test_a_run_that_diverged_has_no_accuracy(self):
        diverged = a_run([0.1], staleness={}, diverged=True)
        _, (row,) = report.table([diverged])
        assert row[2:4] == ["diverged", ""]
        assert report.final_accuracy(diverged) == 0.0
        assert report.as_json(diverged)["accuracy"] is None

    def test_in_the_panel_of_times_a_line_is_the_time_of_arrival(self):
        from matplotlib.figure import Figure

        # One run whose pace falls by half on the way: what counts is how it came there.
        points = [
            simulation.Point(float(t), examples, 2.0, accuracy, 0.0)
            for t, (examples, accuracy) in enumerate([(0, 0.1), (400, 0.4), (600, 0.5), (700, 0.5)])
        ]
        axes = Figure().subplots()
        report.draw_times(axes, [a_run([], points=points)], report.looks(1))
        dot, line = axes.lines
        assert tuple(dot.get_xydata()[0]) == (300.0, 600)
        (x0, y0), (x1, y1) = line.get_xydata()
        assert (y1 - y0) / (x1 - x0) == points[2].time

    def test_the_race_is_to_three_quarters_of_the_best(self):
        assert report.target([a_run([0.5] * 3), a_run([0.62] * 3)]) == 0.46

    @pytest.mark.long
    def test_runs_that_never_got_anywhere_can_be_drawn(self, tmp_path):
        still = [simulation.Point(float(t), 0, 2.0, 0.1, 0.0) for t in range(4)]
        runs = [
            a_run([0.1], diverged=True, staleness={}),
            a_run([], points=still, staleness={}, used=0, updates=0),
            a_run([0.1, 0.1, 0.1]),
        ]
        finding = findings.Finding((), (), "", {}, lambda f: report.draw(f, runs, "title"))
        findings.save(finding, tmp_path / "plot.png", size=(11, 6.5))
        assert (tmp_path / "plot.png").stat().st_size > 10_000
