"""What a person at the keyboard reads: errors in one sentence, and little that TensorFlow logs."""

import json
import logging
import os
import re
from collections.abc import Callable, Mapping


class UserError(Exception):
    """What is wrong, with which value, and what to do; a command prints it and ends.

    Attributes:
      exit_code: of a command that ends with it.
    """

    exit_code = 1


class WorkerError(UserError):
    """Another worker does not fit this one, or has ended with an error of its own."""


class GoneError(WorkerError):
    """Another worker is late, is gone or was stopped: starting all of them again may help."""

    exit_code = 138  # above 128, as of a signal, cluster managers try again (docs/workers.md)


def reason(error: Exception) -> str:
    """What the system said, or the first line of a TensorFlow error, without its operations."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)


def quiet_loggers() -> None:
    """Lets TensorFlow and TFDS log nothing below an error: for commands, not for an import.

    Not where TF_CPP_MIN_LOG_LEVEL asks for TensorFlow's notices.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        for name in ("tensorflow", "absl"):  # TFDS logs to absl's; this project to its modules' own
            logging.getLogger(name).setLevel(logging.ERROR)


def differences(
    old: Mapping, new: Mapping, who: str = "the run", label: Callable[[str], str] = "{} ".format
) -> list[str]:
    """`name new (the run has old)` for each value that differs, of values that JSON can hold.

    `who` has the old ones, and `label` makes of a name what stands before its value.
    """
    return [
        f"{label(name)}{_shown(new.get(name))} ({who} has {_shown(old.get(name))})"
        for name in {**old, **new}
        if _plain(old.get(name)) != _plain(new.get(name))
    ]


def _plain(value):
    return json.loads(json.dumps(value))  # a tuple and the list it is read back as are the same


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.8g}"
    return "not set" if value is None else str(value)
