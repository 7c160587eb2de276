"""A fork is what `python` would be, and so is what stands for it where there are no forks."""

import signal
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("line, code", [("= tf.constant(1)", 1), ("= tf.TensorSpec([])", 0)])
def test_a_file_of_tests_that_starts_tensorflow_is_named(tmp_path, line, code):
    (tmp_path / "test_new.py").write_text(f"import tensorflow as tf\nX {line}\ndef test(): pass\n")
    (tmp_path / "test_other.py").write_text("def test(): pass\n")
    program = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import first_process; "
    program += f"first_process.read_tests([{str(tmp_path)!r}])"
    done = forked.run([sys.executable, "-c", program], cwd=tmp_path, timeout=60)
    assert done.returncode == code
    assert ("test_new.py starts TensorFlow's runtime as it is read" in done.stderr) == (code == 1)
    assert "test_other.py starts" not in done.stderr  # which comes later
