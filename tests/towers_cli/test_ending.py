"""How a command ends where nobody reads what it says."""

import contextlib
import os
import signal

import pytest

from towers.support import errors
from towers_cli import ending, settings


def test_a_stop_at_once_that_nobody_reads_of_is_one():
    """An error here would come up in the middle of an import, which might go on after it."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out, contextlib.redirect_stdout(out):
        assert ending.stopped_at_once(signal.SIGTERM) == 143


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errors.UserError, "--seed=x: --momentum"),
        (settings.SettingsError, "--seed=x: --momentum"),
        (settings.ModelError, "seed=x: `momentum`"),
    ],
)
def test_arguments_of_the_library_are_flags_and_those_of_a_user_s_network_are_not(
    kind, expected, capsys
):
    def fails():
        raise kind("seed=x: `momentum`")

    assert ending._user_errors_said("train.py", fails) == kind.exit_code
    assert capsys.readouterr().err == f"train.py: error: {expected}\n"
