"""The errors that are for the person at the keyboard: one sentence, and a command's exit code."""


class UserError(Exception):
    """What is wrong, with which value, and what to do; a command prints it and ends.

    Attributes:
      exit_code: of a command that ends with it.
    """

    exit_code = 1
