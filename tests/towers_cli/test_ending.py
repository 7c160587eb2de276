"""How a command ends where nobody reads what it says."""

import contextlib
import os
import signal

import pytest

from towers import errors
from towers_cli import ending, settings


def test_a_stop_at_once_that_nobody_reads_of_is_one():
    """An error here would come up in the middle of an import, which might go on after it."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out, contextlib.redirect_stdout(out):
        assert ending.stopped_at_once(signal.SIGTERM) == 143


@pytest.mark.parametrize("kind", [errors.UserError, settings.SettingsError])
def test_an_error_of_the_user_s_is_one_line(kind, capsys):
    def fails():
        raise kind("seed=x: must be a number")

    assert ending._user_errors_said("train.py", fails) == kind.exit_code
    assert capsys.readouterr().err == "train.py: error: seed=x: must be a number\n"
