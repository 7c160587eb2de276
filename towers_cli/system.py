"""How a command starts and ends: what it asks of the system, and its errors in one line each."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from towers_cli import settings


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Keeps off a command's stderr what TensorFlow prints before its own log level takes effect.

    Whoever sets TF_CPP_MIN_LOG_LEVEL below 3 asked for it, and gets it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of a command with a few arguments and no flags; --help shows what it is about."""
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(command, description=about, formatter_class=formatter)


def exit_code(command: str, run: Callable[[], int], error_code: int | None = None) -> int:
    """What `run` returns, or the exit code of an error, which is said in one line on stderr.

    TensorFlow is imported first. `error_code` is that of each error; None for that of its kind.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a stream was closed, as by `>&-`: Keras writes to it all the same
    os.close(nowhere)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    try:
        with without_notices():
            from towers import errors

        errors.quiet_loggers()
        try:
            code = run()
            sys.stdout.flush()  # else Python does, and complains where the reader has gone
            return code
        except (settings.SettingsError, errors.UserError) as error:
            return say_error(command, error, error_code or error.exit_code)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except BrokenPipeError:
        return output_is_gone()
    except OSError as error:  # such as a full disk
        file = f"{error.filename}: " if error.filename else ""
        return say_error(command, f"{file}{error.strerror or error}", error_code or 1)
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        return say_error(command, error, error_code or 1)


def say_error(command: str, error: object, code: int) -> int:
    """Says on stderr, in one line, why a command ends; returns the exit code."""
    try:
        print(f"{os.path.basename(command)}: error: {printable(error)}", file=sys.stderr)
    except OSError:  # the terminal was closed
        return output_is_gone()
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
