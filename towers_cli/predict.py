"""Classifies pictures with a finished run's model.

    towers-predict runs/first cat.jpg photos/*.png

RUN is the folder of a run, whose final model is used, or a .keras file such as
runs/first/best_model.keras. Any picture that Pillow reads will do, of any size,
with 8 bits a channel. Exits with 0, with 1 if a picture cannot be read, and with
2 if there is no model for pictures.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from towers_cli import command_line

_NAME = "towers-predict"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command_line.Parser(_NAME, __doc__)
    parser.add_argument("run", help="the folder of a run, or a .keras file")
    parser.add_argument("picture", nargs="+", help="a file")
    options = parser.parse_args(arguments)
    return command_line.exit_code(_NAME, lambda: predict(options.run, options.picture), 2)


def predict(run: str, paths: Sequence[str]) -> int:
    """Prints the model's answer for each picture; returns the exit code."""
    import numpy as np

    from input_pipeline import pictures
    from towers import errors

    model, mode, names = load(run)
    code = 0
    for path in paths:
        try:
            picture = pictures.decode(Path(path).read_bytes(), mode)
        except (OSError, pictures.NoPicture) as error:
            code = command_line.say_error(_NAME, f"{path}: {errors.reason(error)}", 1)
            continue
        images = picture.reshape(1, *picture.shape[:2], -1)  # of one channel, too
        [probabilities] = model(images)["probabilities"].numpy()
        best = np.argsort(-probabilities, kind="stable")[:3]
        answer = ", ".join(f"{names[place]} {probabilities[place]:.1%}" for place in best)
        print(command_line.printable(f"{path}: {answer}"), flush=True)
    return code


def load(run: str) -> tuple:
    """A Keras model of raw pictures, the mode of its pictures, and the names of its classes."""
    import keras

    from towers import errors
    from towers.runs import run_folder
    from towers_cli import own_model

    path = Path(run)
    if not run.endswith(".keras"):
        folder = run_folder.RunFolder(run)
        config, path = folder.read_config(), folder.final_model
        if config is None or folder.read_final_summary() is None:
            raise run_folder.RunFolderError(f"{run} has no final model: must be a finished run")
        model = config["settings"].get("model")  # a program's run has none
        if isinstance(model, str):
            own_model.network(model)  # registers layers of its own
    path.stat()  # an error says that the file is not there, and not that it is of another kind
    try:
        model = keras.saving.load_model(path, compile=False)
        names = model.get_layer("class_name").get_vocabulary()
        return model, _MODES[model.input_shape[-1]], names
    except (OSError, TypeError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise errors.UserError(
            f"{path} is no model of raw pictures with 1, 3 or 4 channels, such as export= saves "
            f"with input_pipeline.raw_images.classifier: {errors.reason(error)[:300]} (your own "
            "layers must be registered in the module of --model; a Lambda is not read)"
        ) from error
