"""A fork is what `python` would be, and so is what stands for it where there are no forks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import lighter
import pytest

OURS = [pytest.param(forked.StartedProcess, marks=pytest.mark.long)]  # each imports TensorFlow
if sys.platform == "linux":
    OURS.append(forked.ForkedProcess)

every_kind = pytest.mark.parametrize("kind", [subprocess.Popen, *OURS])  # the first is the oracle
READ_BY = os.getpid()
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
def test_an_error_is_a_traceback_and_1(kind):
    code, out, err = said_by(kind, "-c", "1 / 0")
    assert (code, out, err.splitlines()[-1]) == (1, "", "ZeroDivisionError: division by zero")


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


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_ctrl_c_does_not_end_the_process_that_tells_how_a_fork_ends():
    """It is a signal to all processes of the terminal."""
    program = "import os, time; print(os.getppid(), flush=True); time.sleep(60)"
    process = forked.ForkedProcess([sys.executable, "-c", program], **PIPES)
    os.kill(int(process.stdout.readline()), signal.SIGINT)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


@every_kind
def test_a_reader_that_has_gone_is_no_error_of_the_process(kind):
    program = (
        "import sys\ntry:\n    while True: print('x' * 99)\nexcept BrokenPipeError: sys.exit(5)"
    )
    process = kind([sys.executable, "-c", program], **PIPES)
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (5, "")
    process.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_a_fork_has_tensorflow_and_has_not_started_it():
    program = """
import sys
from tensorflow.python.eager import context
print("tensorflow" in sys.modules, context.context()._initialized)
"""
    said_by(forked.ForkedProcess, "-c", "")  # the first one waits for the import
    began = time.monotonic()
    assert said_by(forked.ForkedProcess, "-c", program) == (0, "True False\n", "")
    assert time.monotonic() - began < 3  # to import it takes longer


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_the_processes_that_run_tests_are_forks():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("one process runs the tests")
    assert "first_process.py" in Path(f"/proc/{os.getppid()}/cmdline").read_text()
    assert os.getpid() != READ_BY
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1" and "TF_ENABLE_ONEDNN_OPTS" in os.environ


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


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("made_lighter", [["images", "networks"], ["images"], []])
def test_runs_are_as_light_as_those_of_the_test(kind, made_lighter):
    program = "import lighter; from input_pipeline import shapes\n"
    program += "print(sorted(lighter.made_lighter()), len(shapes.make('test')[1]))"
    with lighter.only(made_lighter):
        code, out, err = said_by(kind, "-c", program, env=dict(os.environ))
    images = lighter.TEST_IMAGES if "images" in made_lighter else 1000
    assert (code, out) == (0, f"{made_lighter} {images}\n"), err
