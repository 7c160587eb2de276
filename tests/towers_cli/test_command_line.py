"""Help, the version, and output that cannot be."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import scripts

from towers_cli import settings

pytestmark = pytest.mark.whole_program

COMMANDS = ("towers-train", "towers-eval", "towers-predict", "towers-compare", "towers-launch")
HEAVY = {"tensorflow", "keras", "numpy", "towers", "input_pipeline", "tensorflow_datasets"}


@pytest.mark.parametrize(
    ("command", "flag", "code"),
    [*((command, "--help", 0) for command in COMMANDS), ("towers-train", "--momentum=2", 2)],
)
def test_what_needs_no_tensorflow_does_not_wait_for_it(command, flag, code, tmp_path):
    """It goes to stdout, but for an error, which names the command as it was called."""
    program = Path(sys.executable).with_name(command)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", program, flag],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not HEAVY & {module.split(".")[0] for module in imported}
    if code:
        assert "\ntowers-train: error: --momentum=2.0: " in done.stderr and not done.stdout
    else:
        assert command in done.stdout


@pytest.mark.parametrize("name", scripts.COMMANDS)
def test_help_is_of_every_flag(command, name):
    done = command(f"{name}.py", "--train_dir=runs/a", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = "".join(done.stdout.split())
    for field in dataclasses.fields(scripts.COMMANDS[name][1]):
        assert f"  --{field.name}: " in done.stdout or f"  --[no]{field.name}: " in done.stdout
        assert "".join(settings.described(field).split()) in text
        default = f"(default:'{field.default}')".lower()
        assert field.default in (None, ()) or default in text.lower()


@pytest.mark.parametrize(("flag", "code"), [("--dry_run", 141), ("--help", -signal.SIGPIPE)])
def test_a_reader_that_has_gone_is_no_traceback(flag, code, tmp_path):
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, str(scripts.ROOT / "train.py"), f"--train_dir={tmp_path / 'run'}"]
    with os.fdopen(write) as closed:
        done = forked.run([*call, "--dataset=shapes", flag], stdout=closed, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
