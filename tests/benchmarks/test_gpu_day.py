"""The script for a day with a GPU, as far as a CPU can rehearse it."""

import json
import subprocess
import sys
import time
import types
import unittest.mock

import pytest
import scripts
import tensorflow as tf

from benchmarks import gpu_day
from benchmarks.peers import gpu_sides


@pytest.fixture
def day(tmp_path):
    options = types.SimpleNamespace(
        rehearse=True, output=str(tmp_path / "day.jsonl"), turn_seconds=0.01
    )
    return gpu_day.Day(options, tmp_path, time.monotonic(), 2)


def plan(name, program):
    return lambda until: gpu_day.Process([sys.executable, "-c", program], {}), [name]


def lines_of(day):
    with open(day.options.output, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_a_side_that_ends_costs_nothing_but_its_own_rate(day):
    good = 'import sys\nprint(\'{"ready": ["good"]}\', flush=True)\nfor turn in sys.stdin:'
    good += ' print(\'{"images": 6, "seconds": 2}\', flush=True)'
    silent = "import time; time.sleep(60)"
    wrong = "import sys\nprint('I0000 00:00: noise', file=sys.stderr)\nraise ValueError('no use')"
    programs = {"silent": silent, "wrong": wrong, "good": good}
    plans = {name: plan(name, program) for name, program in programs.items()}
    gpu_day.by_turns(day, "rates", plans, time.monotonic() + 9.5, task="any")
    told = lines_of(day)
    assert told[-1]["medians"] == {"good": 3.0}
    errors = {line["process"]: line["error"] for line in told if "lost" in line}
    assert errors == {"wrong": "exit status 1; ValueError: no use", "silent": "no answer in time"}
    assert not gpu_day.Process.running


@pytest.mark.parametrize("part", [1, 2])
def test_a_part_fits_into_a_call_of_nine_minutes(part):
    limits = [limit for of, limit, _ in gpu_day.SECTIONS.values() if of in (0, part)]
    assert sum(limits) <= 525


def test_a_batch_is_copied_each_time():
    """Eager TensorFlow keeps the copy of a constant: a second one would cost nothing."""
    given, watched = tf.constant([1.0]), []
    with unittest.mock.patch.object(tf, "identity", side_effect=watched.append):
        gpu_sides.copied("/CPU:0", given)
    assert len(watched) == 2  # on the host, then to the device


@pytest.mark.whole_program
def test_its_first_line_names_the_machine(tmp_path):
    output = tmp_path / "day.jsonl"
    flags = "--rehearse", "--section=names", f"--output={output}"
    command = [sys.executable, "-m", "benchmarks.gpu_day", *flags]
    subprocess.run(command, cwd=scripts.ROOT, check=True, timeout=300, capture_output=True)
    first, second, *_ = map(json.loads, output.read_text().splitlines())
    assert first["tensorflow"] == tf.__version__ and "error" not in first
    assert second["used"] == ["autotuner", "fusions"] and "error" not in second["answers"]["all"]
