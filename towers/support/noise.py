"""Keeps TensorFlow's start-up notices off the terminal."""

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
SILENT = "3"  # fatal errors only; the rest reaches Python as exceptions


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """For the import of TensorFlow, which prints two notices before its own log level takes effect.

    Within this context, file descriptor 2 is a temporary file. If the import fails, what was caught
    is printed: it is then the only clue. Whoever sets TF_CPP_MIN_LOG_LEVEL below 3 asked for the
    notices and gets them.
    """
    if os.environ.setdefault(LOG_LEVEL, SILENT) != SILENT:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if failed:
                caught.seek(0)
                sys.stderr.write(caught.read().decode(errors="replace"))


def quiet_loggers() -> None:
    """Lets TensorFlow and TFDS log nothing below an error: for commands, not for an import.

    A program that imports this package has loggers of its own to set. A level that is set already
    stays, and nothing is quieted where TF_CPP_MIN_LOG_LEVEL asks for TensorFlow's notices.
    """
    if os.environ.get(LOG_LEVEL, SILENT) != SILENT:
        return
    for name in ("tensorflow", "absl"):  # TFDS logs to absl's; this project to its modules' own
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)


def reason(error: Exception) -> str:
    """The first line of a TensorFlow error, without the operations it names."""
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)
