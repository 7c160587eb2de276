"""A command from its arguments to its exit code, with errors of one line on stderr.

A wrong argument ends with 2; help, or the version, goes to stdout and ends with 0. TensorFlow is
imported once the arguments are right: a typo is answered at once.
"""

import argparse
import contextlib
import os
import runpy
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from towers_cli import settings

_VERSION = Path(__file__).parents[1] / "towers" / "version.py"  # without importing TensorFlow


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors of one line."""

    def __init__(self, command: str, about: str | None, **options):
        formatter = argparse.RawDescriptionHelpFormatter
        options |= {"description": about, "formatter_class": formatter, "allow_abbrev": False}
        super().__init__(command, **options)

    def error(self, message):
        """Says what is wrong, and ends the process with 2."""
        self.exit(say_error(self.prog, " ".join(message.split())[:300], 2))

    def convert_arg_line_to_args(self, arg_line):
        """The flag in a line of a file of flags; none if that is empty or a comment."""
        line = arg_line.strip()
        return [line] if line and not line.startswith("#") else []


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError
    return text.lower() in ("true", "1")


def list_of_numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(","))) if text else ()


_TYPES: dict[Any, Callable] = {bool: boolean, tuple[float, ...]: list_of_numbers}


def parse(record: type[settings.Settings], about: str | None, argv: Sequence[str]) -> Any:
    """The checked record of a command's flags, with the recipe's values for those left out.

    The parts of `argv` are the command and its arguments, of which @FILE stands for those in a
    file. Exits with 2 after a wrong one, and with 0 after help.
    """
    usage = "%(prog)s [--flag=value ...] [@FILE with a flag in each line]"
    parser = Parser(os.path.basename(argv[0]), about, usage=usage, fromfile_prefix_chars="@")
    version = runpy.run_path(str(_VERSION))["__version__"]
    parser.add_argument("--version", action="version", version=f"towers {version}")
    for topic, of_topic in settings.by_topic(record).items():
        group = parser.add_argument_group(topic)
        for field in of_topic:
            is_optional = isinstance(field.type, types.UnionType)  # with None
            kind = typing.get_args(field.type)[0] if is_optional else field.type
            alone: dict[str, Any] = {"nargs": "?", "const": True} if kind is bool else {}
            group.add_argument(
                f"--{field.name}",
                type=_TYPES.get(kind, kind),
                default=argparse.SUPPRESS,
                metavar="..." if field.default is None else settings.shown(field.default),
                help=settings.described(field),
                **alone,
            )
    try:
        chosen = vars(parser.parse_args(argv[1:]))
        return record(**settings.RECIPES.get(chosen.get("recipe"), {}) | chosen)
    except ValueError as error:  # such as a SettingsError, or a file of flags that is no text
        parser.error(str(error))


def run(
    record: type[settings.Settings],
    about: str | None,
    main: Callable[[Any], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Parses a command's flags, checks them and calls `main`; returns the exit code."""
    argv = sys.argv if argv is None else argv
    chosen = parse(record, about, argv)
    return exit_code(os.path.basename(argv[0]), lambda: main(chosen))


def exit_code(command: str, run: Callable[[], int], error_code: int | None = None) -> int:
    """What `run` returns, or the exit code of an error, which is said in one line on stderr.

    TensorFlow is imported first. `error_code` is that of each error; None for that of its kind.
    """
    try:
        with without_notices():
            from towers import errors

        errors.quiet_loggers()
        code = run()
        sys.stdout.flush()  # else Python does, and complains where the reader has gone
        return code
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except BrokenPipeError:
        return output_is_gone()
    except OSError as error:  # such as a full disk
        file = f"{error.filename}: " if error.filename else ""
        return say_error(command, f"{file}{error.strerror or error}", error_code or 1)
    except Exception as error:
        is_of_import = getattr(error, "name", "") == "towers"  # Keras is not on TensorFlow
        if not (is_of_import or hasattr(error, "exit_code")):  # of a SettingsError or a UserError
            raise
        return say_error(command, error, error_code or getattr(error, "exit_code", 1))


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Keeps off a command's stderr what TensorFlow prints before its own log level takes effect.

    Whoever sets TF_CPP_MIN_LOG_LEVEL below 3 asked for it, and gets it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def say_error(command: str, error: object, code: int) -> int:
    """Says on stderr, in one line, why a command ends; returns the exit code."""
    print(f"{command}: error: {printable(error)}", file=sys.stderr)
    return code


def printable(text: object) -> str:
    """One line of text as a terminal may show it: a control character as `\\x1b`.

    A terminal obeys those that it is sent, and a file's name may hold some.
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


def output_is_gone() -> int:
    """Ends the output where its reader has gone, as of `train.py | head`; the shell's exit code."""
    # Else Python complains when it flushes at its end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return 141
