"""A command's flags: made from its record of settings, parsed, and explained.

A wrong flag is one line on stderr and exit code 2; help, or the version, goes to stdout and ends
with 0. Nothing here imports TensorFlow: a typo is answered without waiting for it.
"""

import dataclasses
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from towers_cli import settings, system


class _Shown(flags.BooleanFlag):
    """A flag that shows something and ends the program, like absl's --helpfull."""

    def __init__(self, name, short_name, help_, text):
        super().__init__(name, False, help_, short_name=short_name, allow_hide_cpp=True)
        self._text = text

    def parse(self, argument):
        if self._parse(argument):
            print(self._text(), flush=True)
            sys.exit()


class CommandLine:
    """The flags of one command.

    Attributes:
      record: the class of its settings.
      values: the flags, of absl.
    """

    def __init__(
        self, record: type[settings.Settings], about: str, values: flags.FlagValues | None = None
    ):
        """Defines the flags.

        Args:
          record: the class of the settings.
          about: what the command does, above its flags in the help.
          values: where they are defined; None for absl's, of the process.
        """
        self.record = record
        self.values = flags.FLAGS if values is None else values
        self._about = (about or "").strip()
        for field in dataclasses.fields(record):
            _define(field, self.values)

    def parse(self, argv: Sequence[str]) -> list[str]:
        """Parses a command line, for `app.run(main, flags_parser=...)`.

        Args:
          argv: the program's name, then its arguments.

        Returns:
          The program's name, then the arguments that are not flags.

        Raises:
          SystemExit: with 2, if a flag is unknown, or its value is not of its type; stderr says
            which. With 0, if help or the version was asked for and shown.
        """
        for name in ("help", "helpshort", "?", "h", "version"):  # absl's, defined by `app.run`
            if name in self.values:
                delattr(self.values, name)
        for name, short_name, help_, text in (
            ("help", "h", "Show this.", self.help),
            ("helpshort", "?", "Show this.", self.help),
            ("version", None, "Show the version.", lambda: f"towers {version()}"),
        ):
            flags.DEFINE_flag(_Shown(name, short_name, help_, text), self.values)
        try:
            return self.values(argv)
        except (flags.Error, ValueError, RecursionError) as error:  # of a --flagfile, too
            sys.exit(system.say_error(argv[0], self._problem(error), 2))
        except BrokenPipeError:
            sys.exit(system.output_is_gone())
        except SystemExit:
            sys.exit(0)  # absl's --helpfull says 1

    def _problem(self, error: Exception) -> str:
        """One line of absl's error: the flag, its value, and what it must be."""
        text = " ".join(str(error).removeprefix("ERROR:: ").split())[:300]
        named = re.match(r"flag --(\w+)=", text)
        if named is None or named[1] not in self.values:
            of_file = isinstance(error, (UnicodeDecodeError, RecursionError))
            return f"--flagfile: {text}" if of_file else text
        flag = self.values[named[1]]
        allowed = "true or false" if flag.boolean else flag.parser.syntactic_help
        # absl has caught the parser's exception, and ends with it.
        value = text.removeprefix("flag ").removesuffix(f": {error.__context__}")
        return f"{value}: must be {allowed}"

    def settings(self, rest: Sequence[str]) -> settings.Settings:
        """The checked record of the flags, with the recipe's values for those that were left out.

        Raises:
          SettingsError: a setting is wrong; or there is an argument that is not a flag.
        """
        if rest[1:]:
            raise settings.SettingsError(f"unexpected argument {rest[1]!r}: flags begin with --")
        recipe = settings.RECIPES.get(self.values.recipe, {}) if "recipe" in self.values else {}
        chosen = {}
        for field in dataclasses.fields(self.record):
            flag = self.values[field.name]
            of_recipe = field.name in recipe and not flag.present
            chosen[field.name] = recipe[field.name] if of_recipe else _value(field, flag)
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
        others = "--[no]version: Show the version. --flagfile=FILE: More flags, one per line. "
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
    kinds = {field.type, *typing.get_args(field.type)}
    default: typing.Any = field.default
    common: dict[str, typing.Any] = {
        "name": field.name,
        "help": described(field),
        "flag_values": values,
    }
    if bool in kinds:
        flags.DEFINE_bool(default=default, **common)
    elif any(typing.get_origin(kind) is tuple for kind in kinds):
        default = None if default is None else list(default)
        flags.DEFINE_list(default=default, **common)
    elif float in kinds:
        flags.DEFINE_float(default=default, **common)
    elif int in kinds:
        flags.DEFINE_integer(default=default, **common)
    else:
        flags.DEFINE_string(default=default, **common)


def _value(field: dataclasses.Field, flag: flags.Flag):
    is_list = isinstance(flag.parser, flags.ListParser)
    return settings.of_text(field, flag.value) if is_list else flag.value


def _usage(field: dataclasses.Field) -> str:
    """A flag with its default: `--seed=0`, `--[no]nesterov`, `--max_steps=`."""
    if field.type is bool:
        return f"--[no]{field.name}" if not field.default else f"--[no]{field.name} (on)"
    return f"--{field.name}={'' if field.default is None else settings.shown(field.default)}"


def described(field: dataclasses.Field) -> str:
    """A setting's help, with its choices."""
    about = field.metadata
    said = settings.said_choices(field) if about["choices"] else ""
    choices = f" {said[0].upper()}{said[1:]}." if said else ""
    return about["help"] + choices


def version() -> str:
    """The package's, as its source has it: importing it would import TensorFlow."""
    source = (Path(__file__).parents[1] / "towers" / "version.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.M)[1]
