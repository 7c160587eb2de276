"""Parses the flags of train.py and eval.py; a wrong one is one line on stderr and exit code 2.

It stands beside the scripts and imports neither package: a slip of the finger is answered without
waiting for TensorFlow.
"""

import difflib
import os
import reprlib
import sys

from absl import flags


def parse(argv, values=flags.FLAGS):
    """Parses a command line, for `app.run(main, flags_parser=command_line.parse)`.

    Args:
      argv: the program's name, then its arguments.
      values: the flags.

    Returns:
      The program's name, then the arguments that are no flags.

    Raises:
      SystemExit: a flag is unknown, or its value is not of its type; stderr says which.
    """
    try:
        rest = [argument for argument in values(argv, known_only=True) if argument != "--"]
        problem = _unknown(rest[1], values) if rest[1:] and rest[1].startswith("-") else None
    except flags.IllegalFlagValueError as error:
        problem = _illegal(error, values)
    except UnicodeDecodeError as error:
        problem = f"--flagfile: is not text: {error}"
    except (flags.Error, ValueError) as error:  # ValueError: absl's own, for --noflag=value
        problem = _one_line(error)
    if problem is None:
        return rest
    print(f"{os.path.basename(argv[0])}: error: {problem}", file=sys.stderr)
    sys.exit(2)


def _unknown(argument, values):
    given = argument.partition("=")[0]
    near = difflib.get_close_matches(given.lstrip("-").lower(), list(values), n=2, cutoff=0.5)
    near = [f"--{name}" for name in near]
    hint = f"did you mean {' or '.join(near)}?" if near else "--help lists them"
    return f"{_shown(given)}: there is no such flag; {hint}"


def _illegal(error, values):
    """Says it as a `settings.SettingsError` does: `--flag=value: must be ...`."""
    # absl has caught the parser's exception, and says "flag --name=value: that exception".
    given = str(error).removeprefix("flag --").removesuffix(f": {error.__context__}")
    name, _, value = given.partition("=")
    if name not in values:  # --flagfile without its value
        return _one_line(error)
    flag = values[name]
    allowed = "true or false" if flag.boolean else flag.parser.syntactic_help
    choices = getattr(flag.parser, "enum_values", [])
    if choices:
        near = difflib.get_close_matches(value.lower(), choices, n=1)
        allowed = f"one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
    return f"--{name}={_shown(value)}: must be {allowed}" if allowed else _one_line(error)


def _shown(text):
    return text if text.isprintable() and len(text) <= 60 else reprlib.repr(text)


def _one_line(error):
    return " ".join(str(error).removeprefix("ERROR:: ").split())[:300]
