"""What `import towers` sets for TensorFlow, Keras and loggers, leaves as it is, and refuses."""

import os
import subprocess
import sys

import pytest
import scripts

import towers

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
HOST = """
import logging, absl.logging, towers
levels = {name: logging.getLogger(name).level for name in ("", "absl", "tensorflow")}
assert levels == {"": logging.WARNING, "absl": logging.NOTSET, "tensorflow": logging.NOTSET}, levels
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
absl.logging.info("a word of the program's")
"""


def run(*command, **environment):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *command], cwd=scripts.ROOT, capture_output=True, text=True,
        env=kept | {"CUDA_VISIBLE_DEVICES": "-1"} | environment, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["program", "command"])
def test_another_backend_is_refused(kind, tmp_path):
    program, command = ["-c", "import towers"], ["eval.py", f"--train_dir={tmp_path / 'run'}"]
    done = run(*(program if kind == "program" else command), KERAS_BACKEND="jax")
    assert (done.returncode, done.stdout) == (1, "")
    *before, last = done.stderr.splitlines()
    assert "'jax'" in last
    assert last.startswith("ImportError: " if kind == "program" else "eval.py: error: ")
    assert not before or kind == "program"


@pytest.mark.parametrize(
    ("before", "imported", "after"),
    [(None, False, "1"), ("0", False, "0"), ("1", False, "1"), (None, True, None)],
)
def test_a_variable_is_set_unless_it_was_or_it_is_too_late(monkeypatch, before, imported, after):
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    if not imported:
        monkeypatch.delitem(sys.modules, "tensorflow")
    towers.setup()
    assert os.environ.get(VARIABLE) == after


@pytest.mark.long
def test_an_import_leaves_every_logger_as_it_is():
    done = run("-c", HOST, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.stderr.splitlines()[-1] == "absl: a word of the program's"
