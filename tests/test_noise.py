"""`import towers` touches no logger of the program that imports it; a command quiets some."""

import logging
import os
import subprocess
import sys

import pytest
import scripts

from towers import noise
from towers_cli import compare

LOGGERS = ("", "absl", "tensorflow")
HOST = """
import logging
levels = {name: logging.getLogger(name).level for name in ("", "absl", "tensorflow")}
assert levels == {"": logging.WARNING, "absl": logging.NOTSET, "tensorflow": logging.NOTSET}, levels
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
from absl import logging as absl_logging
absl_logging.info("a word of the program's")
"""


@pytest.fixture
def fresh_loggers():
    """The levels that a new process has; afterwards those of the tests."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS[1:]:
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def stderr_of(program: str, **environment: str) -> list[str]:
    """The lines of a program's stderr, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=scripts.ROOT,
        env={name: text for name, text in os.environ.items() if name != noise.LOG_LEVEL}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.whole_program
class TestAnImport:
    @pytest.mark.parametrize(
        "imports",
        [
            pytest.param("import towers", marks=pytest.mark.long),
            "import absl.logging, towers",
            pytest.param(
                "import towers_cli.comparison, towers.runs.resuming, input_pipeline.datasets",
                marks=pytest.mark.long,
            ),
            pytest.param("import tensorflow, towers", marks=pytest.mark.long),
        ],
    )
    @pytest.mark.long
    def test_leaves_every_logger_as_it_is(self, imports):
        said = stderr_of(imports + HOST, TF_CPP_MIN_LOG_LEVEL="3")
        assert said[-1] == "absl: a word of the program's"


class TestACommand:
    def test_logs_errors_alone(self, fresh_loggers, monkeypatch):
        monkeypatch.setenv(noise.LOG_LEVEL, noise.SILENT)
        noise.quiet_loggers()
        assert [logging.getLogger(name).level for name in LOGGERS[1:]] == [logging.ERROR] * 2

    def test_leaves_a_level_that_somebody_has_set(self, fresh_loggers, monkeypatch):
        monkeypatch.setenv(noise.LOG_LEVEL, noise.SILENT)
        logging.getLogger("absl").setLevel(logging.INFO)
        noise.quiet_loggers()
        assert logging.getLogger("absl").level == logging.INFO

    def test_logs_all_to_who_asks_for_tensorflows_notices(self, fresh_loggers, monkeypatch):
        monkeypatch.setenv(noise.LOG_LEVEL, "0")
        noise.quiet_loggers()
        assert logging.getLogger("absl").level == logging.NOTSET

    @pytest.mark.parametrize("name", ["train", "eval", "compare"])
    def test_quiets_them_itself(self, fresh_loggers, monkeypatch, tmp_path, name):
        monkeypatch.setenv(noise.LOG_LEVEL, noise.SILENT)
        if name == "compare":
            compare.main([str(tmp_path), str(tmp_path)])
        else:
            flags = {"train": ["--num_towers=3"], "eval": []}  # refused later than a wrong value
            done = scripts.run(name, f"--train_dir={tmp_path}", *flags[name])
            assert done.returncode != 0
        assert logging.getLogger("absl").level == logging.ERROR
