"""What train.py and eval.py do before TensorFlow: they parse flags and ask for file handles.

A wrong flag is one line on stderr and exit code 2.

It stands beside the scripts and imports neither package: a slip of the finger is answered without
waiting for TensorFlow.
"""

import contextlib
import difflib
import errno
import os
import reprlib
import resource
import sys

from absl import flags

OPEN_FILES = 64  # enough for all that a run opens at a time


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


def provide_open_files():
    """Sees to it that the process may open OPEN_FILES files; with fewer, TensorFlow aborts.

    Raises:
      OSError: the system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
        return
    raise OSError(
        errno.EMFILE,
        f"this process may open {soft} files at a time, and {OPEN_FILES} are needed (ulimit -n)",
    )


def output_is_gone():
    """Ends the output where its reader has gone, as that of `train.py | head` has.

    Returns:
      The exit code, as the shell has it for SIGPIPE.
    """
    # Else Python complains when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
