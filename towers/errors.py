"""The errors that are for the person at the keyboard: one sentence, and a command's exit code."""

import json
from collections.abc import Callable, Mapping


class UserError(Exception):
    """What is wrong, with which value, and what to do; a command prints it and ends.

    Attributes:
      exit_code: of a command that ends with it.
    """

    exit_code = 1


def differences(
    old: Mapping,
    new: Mapping,
    who: str = "the run",
    label: Callable[[str], str] = "{} ".format,
) -> list[str]:
    """`name new (the run has old)` for each value that differs; `who` has the old one.

    Args:
      old: values by name, as JSON can hold them.
      new: likewise.
      who: whose the old ones are.
      label: from a name to what stands before its value.
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
