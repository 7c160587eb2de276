"""What is raised where another worker is the reason."""

from towers import errors


class WorkerError(errors.UserError):
    """Another worker does not fit this one, or has ended with an error of its own."""


class GoneError(WorkerError):
    """Another worker is late, is gone or was stopped: starting all of them again may help."""

    exit_code = 138  # above 128, as of a signal, cluster managers try again (docs/workers.md)
