"""Classifies pictures with a finished run's model.

    towers-predict runs/first cat.jpg photos/*.png

RUN is the folder of a run, whose final model is used, or a .keras file such as
runs/first/best_model.keras. Any picture that Pillow reads will do, of any size,
with 8 bits a channel. Exits with 0, with 1 if a picture cannot be read, and with
2 if there is no model for pictures.
"""

import sys
from collections.abc import Sequence

from towers_cli import system

_NAME = "towers-predict"
_CLASSES_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the model's answer for each picture; returns the exit code."""
    parser = system.parser(_NAME, __doc__)
    parser.add_argument("run", help="the folder of a run, or a .keras file")
    parser.add_argument("picture", nargs="+", help="a file")
    options = parser.parse_args(arguments)
    return system.exit_code(_NAME, lambda: predict(options.run, options.picture), error_code=2)


def predict(run: str, pictures: Sequence[str]) -> int:
    """Prints the model's answer for each picture; returns the exit code."""
    from towers_cli import picture_model

    model, code = picture_model.PictureModel(picture_model.file_of(run)), 0
    for picture in pictures:
        try:
            classes = model(picture)[:_CLASSES_SHOWN]
        except picture_model.PictureError as error:
            code = system.say_error(_NAME, error, 1)
        else:
            answer = ", ".join(f"{name} {probability:.1%}" for name, probability in classes)
            print(system.printable(f"{picture}: {answer}"), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
