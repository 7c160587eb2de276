"""Runs of a user's own model and data: killed, continued on other towers, the same to the bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import models
import pytest
import scripts

from towers_cli import launch

PROGRAM = scripts.ROOT / "tests/helpers/own_run.py"
OFTEN = ("two_by_two",)  # the others in `make test-all`


def run(folder: Path, *arguments) -> subprocess.CompletedProcess:
    call = [sys.executable, str(PROGRAM), str(folder), *map(str, arguments)]
    return forked.run(call, timeout=300)


def lines(folder: Path) -> list[dict]:
    """Of metrics.jsonl, without times."""
    of_time = ("examples_per_second", "step_seconds")
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in of_time} for line in found]


@pytest.mark.parametrize(
    "name",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.long)
        for name in models.TASKS | models.LARGE
    ],
)
def test_a_killed_run_goes_on_on_other_towers_with_the_same_bits(name, tmp_path):
    whole = run(tmp_path / "whole", name, 1, 0)
    assert whole.returncode == 0, whole.stderr
    killed = run(tmp_path / "killed", name, 2, 0, 11)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    on = run(
        tmp_path / "killed", name, 4, 1
    )  # with other weights, in place of which come the run's
    assert on.returncode == 0, on.stderr
    assert "continuing at step 8" in on.stdout
    assert on.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    summaries = [
        json.loads((tmp_path / f / "final_model.json").read_text()) for f in ("whole", "killed")
    ]
    assert summaries[0] == summaries[1]
    program = [sys.executable, "-m", "towers_cli.compare", "whole", "killed"]
    compared = forked.run(program, timeout=100, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "the same, to the last bit" in compared.stdout


@pytest.mark.parametrize("init_from", ["", pytest.param("first", marks=pytest.mark.long)])
@pytest.mark.long
def test_two_workers_make_the_run_of_one(tmp_path, monkeypatch, init_from):
    """Where weights are taken from another run, the chief alone has that."""
    if init_from:
        first = run(tmp_path / init_from, "two_by_two", 1, 1)
        assert first.returncode == 0, first.stderr
        monkeypatch.setenv("INIT_FROM", str(tmp_path / init_from))
    alone = run(tmp_path / "alone", "two_by_two", 2, 0)
    everyone = {"worker": [f"127.0.0.1:{port}" for port in launch.free_ports(2)]}
    call = [sys.executable, str(PROGRAM), str(tmp_path / "two"), "two_by_two", "1"]
    workers = []
    for index in range(2):
        config = {"cluster": everyone, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(config)}
        if init_from and index:
            environment["INIT_FROM"] = "nowhere"
        # The second one begins with other weights, and is given the chief's.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        workers.append(forked.Popen([*call, str(index)], env=environment, **pipes))
    for worker in workers:
        stdout, stderr = worker.communicate(timeout=300)
        assert worker.returncode == 0, stderr
        assert stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
    assert ("begins with" in alone.stdout) == bool(init_from)
    assert lines(tmp_path / "two") == lines(tmp_path / "alone")
