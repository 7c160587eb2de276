"""Help, the version, and output that cannot be."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scripts

import towers
from towers_cli import command_line

pytestmark = pytest.mark.whole_program

COMMANDS = ("towers-train", "towers-eval", "towers-predict", "towers-compare", "towers-launch")
HEAVY = {"tensorflow", "keras", "numpy", "towers", "input_pipeline", "tensorflow_datasets"}


@pytest.mark.parametrize(
    ("command", "flag", "code"),
    [
        *((command, "--help", 0) for command in COMMANDS),
        ("towers-train", "--version", 0),
        ("towers-train", "--momentum=2", 2),
    ],
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
    elif flag == "--version":
        assert done.stdout == f"towers {towers.__version__}\n"
    else:
        assert command in done.stdout


@pytest.mark.parametrize("name", scripts.COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-?", "--helpfull"])
def test_help_is_of_every_flag(command, name, flag):
    done = command(f"{name}.py", "--train_dir=runs/a", flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert ("stderrthreshold" in done.stdout) == (flag == "--helpfull")
    if flag == "--help":
        for field in dataclasses.fields(scripts.COMMANDS[name][1]):
            assert f"  --{field.name}=" in done.stdout or f"  --[no]{field.name}" in done.stdout
            said = " ".join(command_line.described(field).split())
            assert said in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("script", "flag", "unbuffered"), [("train.py", "--help", ""), ("eval.py", "--version", "1")]
)
def test_a_reader_that_has_gone_is_no_traceback(script, flag, unbuffered):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as closed:
        done = subprocess.run(
            [sys.executable, str(scripts.ROOT / script), flag],
            stdout=closed, stderr=subprocess.PIPE, timeout=60,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, b"")


SHORT = ("--dataset=shapes", "--global_batch_size=24", "--max_steps=1", "--microbatch_size=24")


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_run_whose_streams_are_closed_goes_its_way(tmp_path, closed):
    call = [sys.executable, str(scripts.ROOT / "train.py"), *SHORT, f"--train_dir={tmp_path}/run"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *call],
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert scripts.final_summary(tmp_path / "run")["step"] == 1


@pytest.mark.parametrize("depth", [3, 1500])
def test_flag_files_that_name_the_next_one(tmp_path, depth):
    for number in range(depth):
        (tmp_path / f"{number}").write_text(f"--flagfile={tmp_path / str(number + 1)}\n")
    (tmp_path / f"{depth}").write_text("--zzz=1\n")
    done = scripts.run("eval", f"--flagfile={tmp_path / '0'}")
    assert done.returncode == 2 and ("--flagfile" if depth > 3 else "zzz") in done.stderr
