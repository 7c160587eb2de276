"""Classifies pictures with a finished run's model.

    towers-predict runs/first cat.jpg photos/*.png

RUN is the folder of a run, whose final model is used, or a .keras file such as
runs/first/best_model.keras. Any picture that Pillow reads will do, of any size,
with 8 bits a channel. Exits with 0, with 1 if a picture cannot be read, and with
2 if there is no model for pictures.
"""

import signal
import sys
from collections.abc import Sequence

from towers_cli import system

_USAGE = "usage: towers-predict RUN PICTURE [PICTURE ...]"
_NAMES_SHOWN = 3


def command() -> None:
    """Runs the command to its end."""
    # Python would turn Ctrl-C into a page of text and an exit code of 1, which has a meaning here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Prints the model's answer for each picture; returns the exit code."""
    if set(arguments) & {"-h", "--help"}:
        print(__doc__ or _USAGE)  # python -OO leaves docstrings out
        return 0
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        return predict(*arguments)
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        print(f"towers-predict: error: {error}", file=sys.stderr)
        return 2


def predict(run: str, *pictures: str) -> int:
    """Prints the model's answer for each picture; returns the exit code."""
    # After the usage, because it imports TensorFlow.
    with system.without_notices():
        from towers import errors, noise
        from towers.runs import console
        from towers_cli import picture_model, settings

    noise.quiet_loggers()
    try:
        ask = picture_model.PictureModel(picture_model.file_of(run))
    except (settings.SettingsError, errors.UserError) as error:
        console.say_error("towers-predict", error)
        return 2
    code = 0
    for picture in pictures:
        try:
            found = ask(picture)[:_NAMES_SHOWN]
        except picture_model.PictureError as error:
            console.say_error("towers-predict", error)
            code = 1
        else:
            said = ", ".join(f"{name} {probability:.1%}" for name, probability in found)
            print(console.printable(f"{picture}: {said}"), flush=True)
    return code


if __name__ == "__main__":
    command()
