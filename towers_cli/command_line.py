"""A command from its arguments to its exit code, with errors of one line on stderr.

A wrong argument ends with 2; help goes to stdout and ends with 0. TensorFlow is imported once the
arguments are right: a typo is answered at once.
"""

import argparse
import contextlib
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from towers_cli import settings


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors of one line."""

    def __init__(self, command: str, about: str | None, **options):
        formatter = argparse.RawDescriptionHelpFormatter
        options |= {"description": about, "formatter_class": formatter, "allow_abbrev": False}
        super().__init__(command, **options)

    def error(self, message):
        """Says what is wrong, and ends the process with 2."""
        problem = " ".join(message.split()).removeprefix("argument ")
        self.exit(say_error(self.prog, problem[:300], 2))


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError
    return text.lower() in ("true", "1")


def list_of_numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(","))) if text else ()


_TYPES: dict[Any, Callable] = {bool: boolean, tuple[float, ...]: list_of_numbers}


def parse(record: type[settings.Settings], about: str | None, argv: Sequence[str]) -> Any:
    """The checked record of a command's flags, with the recipe's values for those left out.

    The parts of `argv` are the command and its arguments. Exits with 2 after a wrong one, and with
    0 after help.
    """
    parser = Parser(os.path.basename(argv[0]), about, usage="%(prog)s [--flag=value ...]")
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
    chosen = vars(parser.parse_args(argv[1:]))
    try:
        return record(**settings.RECIPES.get(chosen.get("recipe"), {}) | chosen)
    except settings.SettingsError as error:
        parser.error(str(error))


def run(record, about: str | None, main: Callable[[Any], int], argv=None) -> int:
    """Parses a command's flags as `parse` and calls `main`; returns the exit code."""
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
    except BrokenPipeError:  # the reader has gone, as of `train.py | head`
        os._exit(141)  # as a shell has it; Python would complain as it flushes the rest
    except OSError as error:  # such as a full disk
        file = f"{error.filename}: " if error.filename else ""
        return say_error(command, f"{file}{error.strerror or error}", error_code or 1)
    except Exception as error:
        is_of_towers = isinstance(error, ImportError) and error.name == "towers"  # another backend
        if not (is_of_towers or hasattr(error, "exit_code")):  # of a SettingsError or a UserError
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
