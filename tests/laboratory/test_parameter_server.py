"""Asynchronous SGD in real processes."""

import collections
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from laboratory import parameter_server
from laboratory.parameter_server import Applied, Outcome


@pytest.mark.long
@pytest.mark.whole_program
def test_real_processes_train_one_model_with_stale_gradients(tmp_path):
    flags = ("--workers=2", "--gradients=400", "--batch=16", "--rate=0.1")
    done = subprocess.run(
        [sys.executable, "-m", "laboratory.parameter_server", *flags],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TFDS_DATA_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    head, _, *rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert head.strip("| ").startswith("staleness")
    never_idle, idle, measured = (float(mean) for mean in cells[-1][1:])
    assert never_idle == pytest.approx(1.0, abs=0.05)  # k - 1
    # Two workers, which pause: some gradients are stale, by hardly more than one of the other's.
    assert 0 < idle < 1
    assert 0 < measured <= 1.1
    said = done.stdout.splitlines()[-1]
    before = float(said.split("(")[1].split("%")[0])
    after = float(said.split("weights: ")[1].split("%")[0])
    assert before < 20
    assert after > before + 10  # shapes: 400 gradients of 16 examples; their order is the machine's


ONE_WORKER = """
from laboratory import data, race
from laboratory import findings
findings.start_runtime()
from laboratory import network, parameter_server, rules, simulation, speeds
problem = network.Network(race.network, data.load(findings.Setup(short=True)), 16)
real = parameter_server.train(problem, 1, 40, 0.1)
virtual = simulation.run(
    "asynchronous", rules.Asynchronous(0.1), problem, speeds.Speeds(), until=40
)
assert {one.staleness for one in real.applied} == {0}
print((real.weights == virtual.weights).all())
"""


@pytest.mark.long
@pytest.mark.whole_program
def test_one_real_worker_has_the_weights_of_the_simulation():
    done = subprocess.run(
        [sys.executable, "-c", ONE_WORKER], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "True\n", done.stderr


def start(tmp_path, workers):
    """A run that would take minutes, and its processes."""
    coordinator = subprocess.Popen(
        [sys.executable, "-m", "laboratory.parameter_server", "--gradients=100000"]
        + [f"--workers={workers}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TFDS_DATA_DIR": str(tmp_path)},
    )
    until, servers = time.monotonic() + 100, []
    while len(servers) < workers + 1:
        assert time.monotonic() < until
        time.sleep(0.1)
        servers = psutil.Process(coordinator.pid).children()
    return coordinator, servers


def none_is_left(processes):
    _, left = psutil.wait_procs(processes, timeout=60)
    for process in left:
        process.kill()
    return not left


@pytest.mark.long
@pytest.mark.whole_program
def test_a_worker_that_is_gone_ends_the_run_with_one_line_and_all_processes(tmp_path):
    """The coordinator ends without tidying up, as one does that is killed itself."""
    coordinator, servers = start(tmp_path, 2)
    servers[2].kill()
    try:
        _, said = coordinator.communicate(timeout=60)
    finally:
        coordinator.kill()
    assert coordinator.returncode == 1
    assert said.splitlines()[-1] == "laboratory: error: worker 1 is gone (exit code -9)"
    assert none_is_left(servers)


class TestOutcome:
    def test_the_pause_and_the_staleness_are_of_steady_gradients(self):
        # Two workers, each at work for 1 of every 3 seconds; the first four gradients are slow.
        slow = [Applied(read_at, 9, 0.0, 50.0) for read_at in range(4)]
        steady = [
            Applied(4 + number, number % 2, 50.0 + 3 * (number // 2), 51.0 + 3 * (number // 2))
            for number in range(8)
        ]
        outcome = Outcome(2, slow + steady, 0.1, 0.5, np.zeros(1))
        assert outcome.steady() == steady
        assert outcome.staleness() == {0: 4, 1: 4}
        assert outcome.pause() == pytest.approx(2 * 10 / 8 - 1)  # from 50 to 60, 8 at work

    @pytest.mark.parametrize(
        ("workers", "pause"),
        [
            pytest.param(4, 0.0, marks=pytest.mark.long),
            (4, 1.0),
            pytest.param(8, 10.9, marks=pytest.mark.long),
        ],
    )
    def test_a_simulation_is_stale_by_the_others_that_are_at_work(self, workers, pause):
        staleness = parameter_server.simulated(workers, pause)
        expected = (workers - 1) / (1 + pause)
        assert parameter_server.mean(staleness) == pytest.approx(expected, rel=0.06)

    @pytest.mark.long
    def test_rows_end_with_the_means(self):
        applied = [Applied(number, 1, number, number + 1.0) for number in range(30)]
        rows = parameter_server.rows(Outcome(2, applied, 0.1, 0.5, np.zeros(1)))
        assert [row[0] for row in rows[:2]] == ["0", "1"]
        assert rows[1][3] == "100%"
        assert rows[-1][0] == "mean"
        assert rows[-1][3] == "1.00"
        assert parameter_server.mean(collections.Counter({0: 1, 3: 1})) == 1.5


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--workers=0", "--workers=0: must be a whole number, at least 1 and at most 16"),
        ("--rate=x", "--rate=x: must be at least 0 and at most 100"),
        ("--server=2", "unrecognized arguments: --server=2"),
    ],
)
def test_a_wrong_flag_is_one_line(flag, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parameter_server.main([flag])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"python -m laboratory.parameter_server: error: {said}"
