"""`python -m laboratory` as a user has it: what it writes, and what it refuses."""

import dataclasses
import json
import sys
import types
from pathlib import Path

import forked
import numpy as np
import pytest
from matplotlib import image

from laboratory import __main__ as command
from laboratory import data, findings, flags, network, problems, report, rules, simulation, speeds

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
    assert f"weights {run['weights_sha256'][:16]}" in done.stdout
    # The model in the file is the one of the last point.
    images = data.load(findings.Setup(shapes=True))
    model = keras.saving.load_model(folder / run["file"])
    pairs = [(model.predict_on_batch(x), y) for x, y in images.test_batches()]
    right = [np.argmax(logits, axis=1) == labels for logits, labels in pairs]
    assert np.concatenate(right).mean() == pytest.approx(run["accuracy"])
    # And the same command in another process, this one, writes the same bytes.
    assert command.main([*arguments, *SHORT, "--out=again"]) == 0
    assert (tmp_path / "again/easgd/runs.json").read_bytes() == written


def test_flags_reach_the_simulation(shapes):
    flags = ("--rule=eamsgd", "--rate=0.02", "--workers=5", "--speeds=dying", "--dies_at=1")
    more = ("--noticed_after=1", "--message=0.5", "--time=4", "--momentum=0.8", "--period=2")
    options = command.make_parser().parse_args([*flags, *more, "--export"])
    command.check(command.make_parser(), options)
    assert options.export
    run = command.one_run(options, problems.Parabola(), "eamsgd", 0.02)
    asked = speeds.Speeds("dying", 5, dies_at=1.0)
    rule = rules.EAMSGD(0.02, period=2, momentum=0.8)
    told = {"until": 4.0, "message": 0.5, "noticed_after": 1.0}
    expected = simulation.run("eamsgd", rule, problems.Parabola(), asked, **told)
    assert run.points == expected.points
    assert run.weights == expected.weights


def test_the_network_that_flags_ask_for(shapes):
    asked = ["--rule=easgd", "--batch=8", "--seed=1", "--model=cifarnet"]
    problem, name = command.make_problem(command.make_parser().parse_args(asked))
    images = data.load(findings.Setup(shapes=True))
    expected = network.Network(data.small_cifarnet, images, 8, 1)
    assert (name, problem.batch) == ("shapes", 8)
    gradient = expected.gradient(expected.initial, 2)
    np.testing.assert_array_equal(problem.gradient(problem.initial, 2), gradient)


def test_the_page_has_what_its_command_gives():
    """What does not depend on gradients is that of a parabola, which is fast to run."""
    parser = command.make_parser()
    assert parser.description and "\n" not in parser.description
    page = (ROOT / "docs/laboratory.md").read_text("utf-8").split("--speeds=straggler` (")[1]
    lines = [line for line in page.splitlines() if line.startswith("| ")][1 : 1 + len(rules.RULES)]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    options = parser.parse_args(["compare", "--speeds=straggler"])
    command.check(parser, options)
    parabola = problems.Parabola(0.01)
    parabola.batch = options.batch
    runs = [command.one_run(options, parabola, rule, float(rate)) for rule, rate, *_ in shown]
    _, rows = report.table(runs)
    assert [row[:2] + row[4:8] for row in rows] == [row[:2] + row[4:8] for row in shown]


class Right(problems.Parabola):
    """Which is right the more, the nearer it is; its model is a text."""

    def evaluate(self, weights):
        return super().evaluate(weights)._replace(accuracy=float(1 - abs(weights[0])))

    def assign(self, weights):
        return types.SimpleNamespace(save=lambda path: path.write_text("model"))


def test_rules_are_compared_at_their_best_rates(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "make_problem", lambda options: (Right(), "a parabola"))
    flags = ["--rule=synchronous,easgd,synchronous", "--rates=0.5,0.25,4", "--workers=2"]
    flags += ["--time=20", "--period=2", f"--out={tmp_path}", "--export"]
    assert command.main(["compare", *flags]) == 0
    settings, runs = json.loads((tmp_path / "compare/runs.json").read_text()).values()
    asked = {"workers": 2, "time": 20, "period": 2, "rates": [0.5, 0.25, 4]}
    assert (
        asked | {"rules": ["synchronous", "easgd"], "data": "a parabola"}
    ).items() <= settings.items()
    assert not {"out", "data_dir", "compare", "rule", "export"} & settings.keys()
    files = [f"{rule}.keras" for rule in settings["rules"]]
    assert [(run["rule"], run["rate"], run["file"]) for run in runs] == [
        (rule, 0.5, file) for rule, file in zip(settings["rules"], files, strict=True)
    ]
    shown = capsys.readouterr().out
    drawn, published = tmp_path / "compare/plot.png", ROOT / "docs/figures/laboratory.png"
    assert image.imread(drawn).shape[:2] == image.imread(published).shape[:2]
    for name in ("plot.png", "timeline.html", *files):
        assert (tmp_path / "compare" / name).stat().st_size and f"compare/{name}" in shown
    assert "| synchronous | 0.5 " in shown


def test_only_a_run_with_updates_has_a_model(tmp_path, capsys):
    saved = types.SimpleNamespace(save=lambda path: path.write_text("model"))
    problem = types.SimpleNamespace(assign=lambda weights: saved)
    rule, asked = rules.RULES["synchronous"](0.1), speeds.Speeds("constant", 2)
    run = simulation.run("sgd", rule, problems.Parabola(), asked, until=3)
    for change, files in (({"diverged": True}, []), ({"updates": 0}, []), ({}, ["sgd.keras"])):
        made = command.save_model(dataclasses.replace(run, **change), problem, tmp_path)
        assert made == (files[0] if files else None)
        assert [path.name for path in tmp_path.iterdir()] == files
        assert ("sgd.keras" if files else "sgd: ") in capsys.readouterr().out


def test_without_arguments_it_lists_rules_with_formula_and_source():
    listed = forked.run([sys.executable, "-m", "laboratory"], timeout=200, cwd=ROOT).stdout
    for name, rule in rules.RULES.items():
        assert f"--rule={name}\n" in listed
        assert rule.source in listed and rule.model in listed
    assert all(f"--speeds={name}" in listed for name in speeds.SPEEDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["compare", "--rule=easgd,sync"], "sync: must be one of synchronous"),
        (["--rule=easgd", "--speeds=fast"], "fast: must be one of constant"),
        (["--rule=easgd", "--workers=2.5"], "2.5: must be a whole number"),
        (["--rule=easgd", "--time=nan"], "nan: must be at least 1 and at most 100,000"),
        (["--rule=easgd", "--bound=3"], "--bound=3: only for --rule=bounded_staleness"),
        (["--rule=easgd", "--speeds=straggler", "--slowdown=0.5"], "0.5: must be at least 1"),
        (["--rule=easgd", "--slowdown=2"], "--slowdown=2: only for --speeds=straggler"),
        (["--rule=easgd", "--rates=1,2"], "--rates: only for compare"),
        (["compare", "--rates=0.1,fast"], "--rates: fast"),
        (["--rule=backup_workers", "--workers=4", "--backups=4"], "--backups=4: must be below"),
        (["--rule=easgd", "--worker=4"], "--worker=4"), (["--workers=4"], "--rule"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_one_line_that_says_what_is_allowed(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_folders_without_data_or_that_cannot_be_written_are_named(shapes, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--rule=easgd", f"--data_dir={tmp_path}", "--time=100000"])  # the most
    assert ended.value.code == 2
    assert f"--data_dir={tmp_path}" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert command.main(["--rule=easgd", "--out=file/below"]) == 1
    assert "--out=file/below" in capsys.readouterr().err


def test_the_exit_code_is_the_command_s_or_says_that_it_was_interrupted(capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    assert [flags.run(command, []) for command in (len, interrupted)] == [0, 130]
    assert flags.run(len, ["--a", "--b"]) == 2
