"""`python -m laboratory` as a user has it: what it writes, and what it refuses."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from laboratory import __main__ as command
from laboratory import report, rules, simulation
from lessons import data, lesson

import keras  # isort: skip

SHORT = ("--workers=4", "--time=40", "--batch=8")


@pytest.fixture
def shapes(monkeypatch, tmp_path):
    """No CIFAR-10 is at hand; and where a command is run, files are its own."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.whole_program
def test_a_rule_ends_with_a_table_a_plot_and_one_model(tmp_path):
    arguments = ("--rule=easgd", "--speeds=straggler", "--rate=0.2", "--period=2", "--message=0")
    done = subprocess.run(
        [sys.executable, "-m", "laboratory", *arguments, *SHORT, f"--out={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TFDS_DATA_DIR": str(tmp_path / "none")},
    )
    assert done.returncode == 0, done.stderr
    assert "| easgd | 0.2  |" in done.stdout
    assert "shapes" in done.stdout
    assert (tmp_path / "easgd.png").stat().st_size > 30_000
    (run,) = json.loads((tmp_path / "easgd.json").read_text())
    assert f"easgd.keras: the centre; weights {run['weights_sha256'][:16]}" in done.stdout
    # Three workers make 40 steps, and the straggler 10, with a pull at every second one, the
    # first included, which has nothing to tell.
    assert run["updates"] == 3 * 20 + 5
    assert run["gradients"]["used"] == 3 * 38 + 8
    assert sum(run["staleness"].values()) == run["updates"]
    # The model in the file is the one of the last point.
    model = keras.saving.load_model(tmp_path / "easgd.keras")
    images = data.load(lesson.Setup(short=True))
    right = count = 0
    for pixels, labels, mask in images.test_batches().take(4):
        predicted = np.argmax(model(pixels), axis=1)
        right += int(((predicted == labels.numpy()) & mask.numpy()).sum())
        count += int(mask.numpy().sum())
    assert count == 1_000  # all
    assert right / count == pytest.approx(run["points"][-1]["accuracy"])


def test_compare_runs_rules_side_by_side_at_their_best_rates(shapes, tmp_path, capsys):
    chosen = "synchronous,asynchronous,local_sgd"
    flags = ("compare", f"--rule={chosen}", "--rates=0.02,0.3", "--speeds=two_speeds", *SHORT)
    assert command.main([*flags, "--out=one"]) == 0
    assert command.main([*flags, "--out=other"]) == 0
    assert "synchronous.keras: the server's weights" in capsys.readouterr().out
    runs = json.loads((tmp_path / "one/compare.json").read_text())
    assert [run["rule"] for run in runs] == chosen.split(",")
    assert {run["rate"] for run in runs} == {0.02, 0.3} or {run["rate"] for run in runs} == {0.3}
    written = (tmp_path / "one/compare.json").read_bytes()
    assert written == (tmp_path / "other/compare.json").read_bytes()  # and so is the picture
    picture = (tmp_path / "one/compare.png").read_bytes()
    assert picture == (tmp_path / "other/compare.png").read_bytes()


def test_without_arguments_it_lists_rules_with_formula_and_source(capsys):
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    for name, rule in rules.RULES.items():
        assert f"--rule={name}\n" in listed
        assert rule.source in listed
        assert f"One model at the end: {rule.model}." in listed
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
        (["--rule=easgd", "--model=resnet"], "--model=resnet: must be one of cifarnet, two_"),
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
        (["compare", "--rates=0.1,fast"], "--rate=fast: must be at least 1e-06"),
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


class TestReport:
    def a_run(self, accuracies, **changed):
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

    def test_a_row_by_hand(self):
        (row,) = report.table([self.a_run([0.1, 0.4, 0.5, 0.6])])
        assert row == [
            "asynchronous", "0.1", "50.0%", "2.000", "100.0", "4", "2.2, 3", "2", "0.500",
        ]  # fmt: skip
        assert len(row) == len(report.HEAD)

    def test_a_run_that_diverged_has_no_accuracy(self):
        diverged = self.a_run([0.1], staleness={}, diverged=True)
        (row,) = report.table([diverged])
        assert row[2:4] == ["diverged", ""]
        assert report.final_accuracy(diverged) == 0.0

    def test_the_race_is_to_three_quarters_of_the_best(self):
        assert report.target([self.a_run([0.5] * 3), self.a_run([0.62] * 3)]) == 0.46

    def test_runs_that_never_got_anywhere_can_be_drawn(self, tmp_path):
        runs = [self.a_run([0.1], diverged=True, staleness={}), self.a_run([0.1, 0.1, 0.1])]
        finding = lesson.Finding((), (), "", {}, lambda f: report.draw(f, runs, "title"))
        lesson.save(finding, tmp_path / "plot.png", size=(15, 6.5))
        assert (tmp_path / "plot.png").stat().st_size > 10_000
