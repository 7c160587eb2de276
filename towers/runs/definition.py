"""What a run is: what decides the weights it ends with, and what `config.json` records."""

import hashlib
import json
import re
from collections.abc import Mapping

import keras


def of_model(model: keras.Model) -> dict:
    """What `config.json` records of a model.

    `layers`: from `layers`. `places_of_weights`: for each weight in a checkpoint, in the
    checkpoint's order, its place in `model.variables`; that order changes where layers are frozen.
    """
    place_of = {id(variable): place for place, variable in enumerate(model.variables)}
    saved = [*model.trainable_variables, *model.non_trainable_variables]
    return {
        "layers": layers(model),
        "places_of_weights": [place_of[id(variable)] for variable in saved],
    }


# The first three differ from process to process.
_NO_PART_OF_IT = ("module", "seed", "shared_object_id", "compile_config")
_NAME = re.compile(r'"name": "([^"]+)"')


def layers(model: keras.Model) -> dict[str, str] | None:
    """A hash of a model's layers as Keras saves them, and of which weights train.

    Code within a layer or your own model is not in it, nor are seeds, which are state. None
    where Keras cannot save the model. Keras's version stands beside it.
    """
    try:
        kept = _kept(keras.saving.serialize_keras_object(model))
        text = json.dumps(kept, sort_keys=True)
    except (NotImplementedError, TypeError, ValueError):
        return None
    for number, name in enumerate(dict.fromkeys(_NAME.findall(text))):
        # Keras numbers names by what a process has built before.
        text = text.replace(f'"{name}"', f'"name {number}"')
    weights = [(list(v.shape), v.dtype, v.trainable) for v in model.variables]
    digest = hashlib.sha256(f"{text} {weights}".encode()).hexdigest()
    return {"keras": keras.version(), "sha256": digest}


def _kept(config):
    if isinstance(config, dict):
        if "DTypePolicy" in str(config.get("class_name")):  # its name is what it is
            return f"{config['class_name']} {config['config']}"
        if config.get("class_name") == "__lambda__":
            return "a lambda"  # Keras saves its code with its file and its lines
        return {k: _kept(value) for k, value in config.items() if k not in _NO_PART_OF_IT}
    return [_kept(value) for value in config] if isinstance(config, (list, tuple)) else config


def are_others(now: Mapping | None, before: object) -> bool:
    """Whether two results of `layers` are of different models, as far as one Keras can tell."""
    if not (isinstance(now, Mapping) and isinstance(before, Mapping)):
        return False
    return now["keras"] == before.get("keras") and now["sha256"] != before.get("sha256")
