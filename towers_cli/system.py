"""What a command asks of the system before TensorFlow starts, and how it reports its errors."""

import contextlib
import os
import sys


def provide_output():
    """Makes sure that printing cannot end the process: what is printed is lost, or escaped.

    Where stdin, stdout or stderr is closed, the next file that is opened would take its place, and
    what TensorFlow prints would go into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  for good
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):  # an ASCII terminal, and a folder with another name
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def without_notices():
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


def said_by_system(error):
    """An OSError in words: `/a/file: No space left on device`, without Python's `[Errno 28]`."""
    text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    return printable(text)


def printable(text):
    """One line of text as a terminal may show it: a control character as `\\x1b`."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(text))


def ended_by_system(command, error):
    """Says why a command ends, if anyone reads it; returns the exit code."""
    try:
        print(f"{command}: error: {said_by_system(error)}", file=sys.stderr, flush=True)
    except OSError:  # the terminal was closed, which may be the error itself
        return output_is_gone()
    return 1


def output_is_gone():
    """Ends the output where its reader has gone: that of `train.py | head`, a closed terminal.

    Returns:
      The exit code, as the shell has it for SIGPIPE.
    """
    # Else Python complains when it flushes at its end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return 141
