"""A saved model that is asked about pictures in files."""

import zipfile
from pathlib import Path

import keras
import numpy as np

from input_pipeline import pictures
from towers import errors, noise
from towers.runs import run_folder
from towers_cli import own_model

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


class PictureModelError(errors.UserError):
    """There is no model, or it does not take raw pictures."""

    exit_code = 2


class PictureError(errors.UserError):
    """A picture cannot be read."""


def file_of(run: str) -> Path:
    """The model of a run: its final one, or the `.keras` file that was given itself.

    Raises:
      RunFolderError: the folder holds something other than a run.
      PictureModelError: there is no model.
    """
    if run.endswith(".keras"):
        if not Path(run).is_file():
            raise PictureModelError(f"{run}: no such file")
        return Path(run)
    folder = run_folder.RunFolder(run)
    config = folder.read_config()
    if config is None:
        raise PictureModelError(f"{run} holds no run")
    model = config["settings"].get("model")  # a program's run has none
    if isinstance(model, str) and own_model.is_own(model):
        own_model.network(model)  # registers layers of its own
    if folder.read_final_summary() is None:
        raise PictureModelError(f"{run} has no final model: the run has not finished")
    return folder.final_model


class PictureModel:
    """Gives classes and probabilities for pictures."""

    def __init__(self, path: Path):
        """
        Raises:
          PictureModelError: the model cannot be read, or is not as `raw_images.classifier` makes
            them.
        """
        if not zipfile.is_zipfile(path):
            raise PictureModelError(f"{path} is not a Keras file")
        try:
            self._model = keras.saving.load_model(path, compile=False)
        except (OSError, TypeError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise PictureModelError(
                f"{path} cannot be read: {noise.reason(error)[:300]} (your own layers must be "
                "registered where they are defined, in the module of --model; a Lambda is not read)"
            ) from error
        outputs = getattr(self._model, "output", None)
        shape = getattr(self._model, "input_shape", None)
        of_pictures = isinstance(shape, tuple) and shape[:3] == (None, None, None)
        of_pictures = of_pictures and len(shape) == 4 and shape[3] in _MODES
        if not (of_pictures and isinstance(outputs, dict) and "class_name" in outputs):
            raise PictureModelError(
                f"{path} does not take raw pictures; to save a model that does, give the run "
                "export=, with input_pipeline.raw_images.classifier"
            )
        self._mode = _MODES[shape[-1]]
        self._names = self._model.get_layer("class_name").get_vocabulary()

    def __call__(self, picture: str) -> list[tuple[str, float]]:
        """The classes with their probabilities, the most probable first.

        Args:
          picture: path of a file.

        Raises:
          PictureError: it cannot be read.
        """
        images = self._read(picture)[np.newaxis]
        [probabilities] = keras.ops.convert_to_numpy(self._model(images)["probabilities"])
        order = np.argsort(-probabilities, kind="stable")
        return [(self._names[place], float(probabilities[place])) for place in order]

    def _read(self, picture: str) -> np.ndarray:
        """uint8 [height, width, channels], decoded as the pictures of a training are."""
        try:
            array = pictures.decode(Path(picture).read_bytes(), self._mode)
        except (OSError, pictures.NoPicture) as error:
            raise PictureError(f"{picture}: {noise.reason(error)}") from error
        return array.reshape(*array.shape[:2], -1)
