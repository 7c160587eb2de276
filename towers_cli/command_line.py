"""A command's flags: made from its record of settings, parsed, and explained.

A wrong flag is one line on stderr and exit code 2; help, or the version, goes to stdout and ends
with 0. Nothing here imports TensorFlow: a typo is answered without waiting for it.
"""

import dataclasses
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from towers_cli import settings, system

_HELP = {"--help", "-help", "--helpshort", "-h", "-?"}
_VERSION = {"--version", "-version"}
_ALLOWED = {int: "an integer", float: "a number", str: "text"}


class _Parser(flags.ArgumentParser):
    """Makes a value of a text by `convert`, or says what it must be."""

    def __init__(self, convert: Callable, allowed: str):
        self._convert, self.syntactic_help = convert, allowed

    def parse(self, argument):
        try:
            return self._convert(argument) if isinstance(argument, str) else argument
        except ValueError:
            raise ValueError(f"must be {self.syntactic_help}") from None


class CommandLine:
    """The flags of one command.

    Attributes:
      record: the class of its settings.
      values: the flags, of absl.
    """

    def __init__(
        self, record: type[settings.Settings], about: str, values: flags.FlagValues | None = None
    ):
        """Defines the flags, in absl's of the process or in `values`; help begins with `about`."""
        self.record = record
        self.values = flags.FLAGS if values is None else values
        self._about = (about or "").strip()
        for field in dataclasses.fields(record):
            _define(field, self.values)

    def parse(self, argv: Sequence[str]) -> list[str]:
        """Parses a command line, for `app.run(main, flags_parser=...)`; what is left are no flags.

        Exits with 2 after a flag that is unknown or not of its type, and with 0 after help.
        """
        try:
            if not _HELP.isdisjoint(argv):
                print(self.help(), flush=True)
                sys.exit()
            if not _VERSION.isdisjoint(argv):
                print(f"towers {version()}", flush=True)
                sys.exit()
            return self.values(argv)
        except flags.Error as error:
            problem = " ".join(str(error).removeprefix("ERROR:: ").split())[:300]
            sys.exit(system.say_error(argv[0], problem.removeprefix("flag "), 2))
        except (ValueError, RecursionError) as error:
            sys.exit(system.say_error(argv[0], f"--flagfile: {error}", 2))
        except BrokenPipeError:
            sys.exit(system.output_is_gone())
        except SystemExit:
            sys.exit(0)  # absl's --helpfull says 1

    def settings(self, rest: Sequence[str]) -> settings.Settings:
        """The checked record of the flags, with the recipe's values for those left out."""
        if rest[1:]:
            raise settings.SettingsError(f"unexpected argument {rest[1]!r}: flags begin with --")
        recipe = settings.RECIPES.get(self.values.recipe, {}) if "recipe" in self.values else {}
        chosen = {}
        for field in dataclasses.fields(self.record):
            flag = self.values[field.name]
            of_recipe = field.name in recipe and not flag.present
            chosen[field.name] = recipe[field.name] if of_recipe else flag.value
        return self.record(**chosen)

    def help(self) -> str:
        """What --help shows: the flags by topic, the everyday ones first."""
        width = min(80, shutil.get_terminal_size().columns)
        lines = [self._about]
        for topic, fields in settings.by_topic(self.record):
            lines += ["", f"{topic}:"]
            for field in fields:
                lines += textwrap.wrap(
                    f"{_usage(field)}: {described(field)}", width,
                    initial_indent="  ", subsequent_indent="      ",
                    break_long_words=False, break_on_hyphens=False,
                )  # fmt: skip
        others = "--version: Show the version. --flagfile=FILE: More flags, one per line. "
        others += "--helpfull: Flags of the libraries, too."
        return "\n".join([*lines, "", *textwrap.wrap(others, width, break_on_hyphens=False)])


def run(record: type[settings.Settings], about: str, main: Callable[[typing.Any], int]) -> None:
    """Runs a command to its end: parses its flags, checks them, calls `main`, and exits."""
    line = CommandLine(record, about)
    app.run(lambda rest: execute(line, rest, main), flags_parser=line.parse)


def execute(line: CommandLine, rest: Sequence[str], main: Callable[[typing.Any], int]) -> int:
    """What `main` returns for the settings of a parsed command line, or an error's exit code."""
    try:
        chosen = line.settings(rest)
    except settings.SettingsError as error:
        return system.say_error(rest[0], error, error.exit_code)
    return system.exit_code(rest[0], lambda: main(chosen))


def _define(field: dataclasses.Field, values: flags.FlagValues) -> None:
    """Defines the flag of a setting; its range is checked by the record."""
    kind: typing.Any = field.type
    default: typing.Any = field.default
    name, help_ = field.name, described(field)
    if isinstance(kind, types.UnionType):  # with None
        kind = typing.get_args(kind)[0]
    if kind is bool:
        flags.DEFINE_bool(name, default, help_, flag_values=values)
        values[name].parser = _Parser(values[name].parser.parse, "true or false")
    else:
        allowed = _ALLOWED.get(kind, "numbers separated by commas")
        parser = _Parser(kind if kind in _ALLOWED else _numbers, allowed)
        flags.DEFINE(parser, name, default, help_, flag_values=values)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(","))) if text else ()


def _usage(field: dataclasses.Field) -> str:
    """A flag with its default: `--seed=0`, `--[no]nesterov`, `--max_steps=`."""
    if field.type is bool:
        return f"--[no]{field.name}" if not field.default else f"--[no]{field.name} (on)"
    return f"--{field.name}={'' if field.default is None else settings.shown(field.default)}"


def described(field: dataclasses.Field) -> str:
    """A setting's help, with its choices."""
    allowed = field.metadata["allowed"]
    choices = f" Must be {allowed.allowed}." if allowed and allowed.choices else ""
    return field.metadata["help"] + choices


def version() -> str:
    """The package's, as its source has it: importing it would import TensorFlow."""
    source = (Path(__file__).parents[1] / "towers" / "version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.M)[1]
