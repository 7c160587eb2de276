"""What TensorFlow logs and says in its errors, as a person may want to read it."""

import logging
import os
import re

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
SILENT = "3"  # fatal errors only; the rest reaches Python as exceptions


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
    """What the system said, or the first line of a TensorFlow error, without its operations."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)
