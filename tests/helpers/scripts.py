"""Runs train.py and eval.py in the tests' own process, lighter than people run them (lighter.py).

What only a process can show (exit codes, signals, a silent stderr) is tested through the
`forked_command` fixture or `start`.
"""

import contextlib
import functools
import gc
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import forked
import lighter

from towers.runs import checkpoints
from towers_cli import command_line, compare, settings
from towers_cli import evaluate as evaluate_command
from towers_cli import train as train_command

from tensorflow.python.framework import config, ops  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "train": (train_command, settings.TrainSettings),
    "eval": (evaluate_command, settings.EvalSettings),
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs `python name.py arguments` without a new process; an error is one line on stderr."""
    command, record = COMMANDS[name]
    call = [f"{name}.py", *arguments]
    stdout, stderr = io.StringIO(), io.StringIO()
    was_deterministic = config.is_op_determinism_enabled()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            with lighter.runs():
                code = command_line.run(record, command.__doc__, command.main, call)
        except SystemExit as ended:
            code = ended.code
        finally:
            if not was_deterministic:  # else a later run here would have other bits
                config.disable_op_determinism()
    done = subprocess.CompletedProcess(call, code, stdout.getvalue(), stderr.getvalue())
    assert code not in (1, 2) or re.fullmatch(rf"{name}\.py: error: .+\n", done.stderr), done
    return done


def let_graphs_go() -> None:
    """Lets the graphs go that this process has built, once a hundred custom gradients hold them.

    TensorFlow 2.21 keeps the gradient of every tf.custom_gradient forever, and its graph. Keras's
    optimizers have one in each step: a process grew to 10 GB, and collections went through all.
    """
    registered = ops.gradient_registry._registry
    names = [name for name in registered if name.startswith("CustomGradient-")]
    if len(names) > 100:
        for name in names:
            del registered[name]
        gc.collect()


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs train.py on `shapes` with small batches; later arguments win."""
    return run("train", *small_run(folder), *arguments)


def trained(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """As `train`; it succeeds and complains of nothing."""
    done = train(folder, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def small_run(folder: Path) -> list[str]:
    """Arguments of a training that takes a second or two."""
    return [
        f"--train_dir={folder}", "--dataset=shapes", "--global_batch_size=24",
        "--microbatch_size=12", "--intra_op_threads=1", "--log_every_steps=1", "--max_steps=4",
    ]  # fmt: skip


LIGHTER_TRAIN = f"""
import runpy, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests" / "helpers")!r}]
from towers_cli import command_line
with command_line.without_notices():
    import lighter
with lighter.runs():
    runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""


def lighter_train(folder: Path) -> str:
    """Writes a train.py that makes the lighter run in a process of its own; returns its path."""
    path = folder / "train.py"
    path.write_text(LIGHTER_TRAIN)
    return str(path)


def settings_of(*arguments: str) -> settings.TrainSettings:
    """The `TrainSettings` that train.py makes of its flags."""
    return command_line.parse(settings.TrainSettings, None, ["train.py", *arguments])


def start(name: str, *arguments: str) -> subprocess.Popen:
    """Starts a script as a process that a test sends signals to (forked.py)."""
    return forked.Popen([sys.executable, str(ROOT / f"{name}.py"), *arguments], **forked.PIPES)


def wait_for_line(process: subprocess.Popen, start_of_line: str) -> str:
    """Reads the process's output up to a line; fails where it ends without one."""
    for line in process.stdout:
        if line.startswith(start_of_line):
            return line
    raise AssertionError(f"no line {start_of_line!r}; stderr: {process.stderr.read()}")


def lines_of(path: Path) -> list[dict]:
    """The objects of a `.jsonl` file; unlike the package's reader, it forgives nothing."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _lines_with(key: str, folder: Path) -> list[dict]:
    return [line for line in lines_of(folder / "metrics.jsonl") if key in line]


# The lines of a run's `metrics.jsonl` that are training steps, that are evaluations, and those that
# `--verify_every_steps` writes.
training_lines = functools.partial(_lines_with, "step_seconds")
evaluation_lines = functools.partial(_lines_with, "val_loss")
hash_lines = functools.partial(_lines_with, "state_sha256")


def values_of(lines: list[dict]) -> list[dict]:
    """Lines without what the clock put into them."""
    return [{k: v for k, v in line.items() if k not in compare.TIMINGS} for line in lines]


def assert_same_run(folder: Path, expected: Path) -> None:
    """The same weights bit for bit, and the same numbers in the training lines."""
    assert final_summary(folder) == final_summary(expected)
    lines = [values_of(training_lines(run)) for run in (folder, expected)]
    assert lines[0] == lines[1]
    assert values_of(evaluation_lines(folder)[-1:]) == values_of(evaluation_lines(expected)[-1:])


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there, in order."""
    return list(checkpoints.by_step(folder / "checkpoints"))


def final_summary(folder: Path) -> dict:
    """What `final_model.json` holds."""
    return json.loads((folder / "final_model.json").read_text(encoding="utf-8"))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
