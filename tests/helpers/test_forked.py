"""A fork is what `python` would be, and so is what stands for it where there are no forks."""

import signal
import subprocess
import sys

import forked
import pytest

every_kind = pytest.mark.parametrize("kind", [subprocess.Popen, forked.Popen])
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
# What a program can ask of its surroundings.
SAYS = """
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ["GIVEN"], "HOME" in os.environ, sys.stdin.read())
print("an error", file=sys.stderr)
sys.exit(3)
"""


def said_by(kind, *arguments, **options) -> tuple[int, str, str]:
    process = kind([sys.executable, *arguments], stdin=subprocess.PIPE, **PIPES, **options)
    out, err = process.communicate("typed", timeout=60)
    return process.returncode, out, err


@every_kind
@pytest.mark.parametrize("how", ["program", "script", "module"])
def test_has_its_arguments_folder_environment_and_pipes(tmp_path, kind, how):
    (tmp_path / "says.py").write_text(SAYS)
    call = {
        "program": ["-c", SAYS],
        "script": [str(tmp_path / "says.py")],
        "module": ["-m", "says"],
    }
    name = {"program": "-c"}.get(how, str(tmp_path / "says.py"))
    found = said_by(kind, *call[how], "one", "--two", cwd=tmp_path, env={"GIVEN": "here"})
    said = f"{[name, 'one', '--two']} __main__ {tmp_path} here False typed\n"
    assert found == (3, said, "an error\n")


@every_kind
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(kind, number):
    program = "import time; print('here', flush=True); time.sleep(60)"
    process = kind([sys.executable, "-c", program], **PIPES)
    assert process.stdout.readline() == "here\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == process.poll() == -number
