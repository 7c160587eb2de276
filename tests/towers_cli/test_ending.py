"""How a command ends where nobody reads what it says."""

import contextlib
import os
import signal

from towers_cli import ending


def test_a_stop_at_once_that_nobody_reads_of_is_one():
    """An error here would come up in the middle of an import, which might go on after it."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out, contextlib.redirect_stdout(out):
        assert ending.stopped_at_once(signal.SIGTERM) == 143
