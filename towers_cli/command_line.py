"""A command from its arguments to its exit code, with errors of one line on stderr.

A wrong argument ends with 2; help goes to stdout and ends with 0. TensorFlow is imported once the
arguments are right: a typo is answered at once.
"""

import argparse
import contextlib
import os
import signal
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from towers_cli import settings


class Parser(argparse.ArgumentParser):
    """argparse for a command of few arguments: without abbreviations, with errors of one line."""

    def __init__(self, command: str, about: str | None):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(command, description=about, formatter_class=formatter, allow_abbrev=False)

    def error(self, message):
        """Says what is wrong, and ends the process with 2."""
        self.exit(say_error(self.prog, message.removeprefix("argument ")[:300], 2))


class TypeParser(flags.ArgumentParser):
    """Makes a value of a text by `convert`, or says what it must be."""

    def __init__(self, convert: Callable[[str], Any], allowed: str):
        self._convert, self.syntactic_help = convert, allowed

    def parse(self, argument):
        try:
            return self._convert(argument) if isinstance(argument, str) else argument
        except ValueError:
            raise ValueError(f"must be {self.syntactic_help}") from None


_PARSERS: dict[Any, TypeParser] = {
    int: TypeParser(int, "an integer"),
    float: TypeParser(float, "a number"),
    str: TypeParser(str, ""),
    bool: TypeParser(flags.BooleanParser().parse, "true or false"),
    tuple[float, ...]: TypeParser(
        lambda text: tuple(map(float, text.split(","))) if text else (),
        "numbers with commas between them",
    ),
}


def parse(record: type[settings.Settings], about: str | None, argv: Sequence[str]) -> Any:
    """The checked record of a command's flags, with the recipe's values for those left out.

    The parts of `argv` are the command and its arguments. Exits with 2 after a wrong one, and with
    0 after help.
    """
    values, topics = flags.FlagValues(), settings.by_topic(record)
    kinds = typing.get_type_hints(record)
    for topic, fields in topics.items():
        for field in fields:
            kind = typing.get_args(kinds[field.name] | None)[0]  # without None
            default = None if field.default == () else field.default  # help would show '()'
            options: dict = {"module_name": topic, "boolean": kind is bool}
            about_it = settings.described(field)
            flags.DEFINE(_PARSERS[kind], field.name, default, about_it, values, **options)
    if {"--help", "-help", "--helpfull", "-h"} & set(argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # else `--help | head` ends with a traceback
        print(about, *map(values.module_help, topics), sep="\n")
        sys.exit()
    try:
        if rest := values(argv)[1:]:
            raise flags.Error(f"unexpected argument {rest[0]!r}: flags begin with --")
        chosen = {name: values[name].value for name in values if values[name].present}
        return record(**settings.RECIPES.get(chosen.get("recipe"), {}) | chosen)
    except (flags.Error, settings.SettingsError) as error:
        problem = " ".join(str(error).split()).removeprefix("ERROR:: ").removeprefix("flag ")
    except (ValueError, RecursionError) as error:
        problem = f"a flag, or --flagfile: {error}"
    sys.exit(say_error(os.path.basename(argv[0]), problem[:300], 2))


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
    stderr = os.dup(2)
    try:
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
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
