"""What a run is: what decides the weights it ends with."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from towers import errors

# The first three differ from process to process.
_NO_PART_OF_IT = ("module", "seed", "shared_object_id", "compile_config")
_NAME = re.compile(r'"name": "([^"]+)"')


def describe_run(
    model: keras.Model,
    optimizer: Mapping,
    data: Mapping,
    callbacks: Sequence[keras.callbacks.Callback],
) -> dict:
    """What decides the weights that a run ends with, by name.

    The optimizer is as `describe` has it; callbacks without a `get_config` decide nothing.
    """
    weights = getattr(model._compile_loss, "_user_loss_weights", None)
    things = {"loss": model.loss, "loss_weights": weights}
    things |= {type(one).__name__: one for one in callbacks if hasattr(one, "get_config")}
    defined = {**data, **optimizer, "jit_compile": bool(model.jit_compile)}
    for name, thing in things.items():
        defined |= describe(name, thing)
    return defined


def describe_model(model: keras.Model) -> dict[str, str]:
    """A hash of a model's layers as Keras saves them, and one of its variables.

    Code within a layer or a model of your own is not in it, nor are seeds, which are state.

    Raises:
      ValueError: Keras cannot save the model; now, and not at the end of a run.
    """
    try:
        config = keras.saving.serialize_keras_object(model)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            "Keras cannot save the model: a layer or a model of your own needs a get_config with "
            f"all arguments of its constructor ({errors.reason(error)})"
        ) from error
    text = json.dumps(_kept(config), sort_keys=True)
    for number, name in enumerate(dict.fromkeys(_NAME.findall(text))):
        # Keras numbers names by what a process has built before.
        text = text.replace(f'"{name}"', f'"name {number}"')
    variables = [
        (list(v.shape), v.dtype, v.trainable, describe("regularizer", v.regularizer))
        for v in model.variables
    ]
    parts = {"layers": text, "variables": json.dumps(variables)}
    return {name: hashlib.sha256(part.encode()).hexdigest()[:12] for name, part in parts.items()}


def _kept(config):
    if isinstance(config, dict):
        if "DTypePolicy" in str(config.get("class_name")):  # its name is what it is
            return f"{config['class_name']} {config['config']}"
        if config.get("class_name") == "__lambda__":
            return "a lambda"  # Keras saves its code with its file and its lines
        return {k: _kept(value) for k, value in config.items() if k not in _NO_PART_OF_IT}
    return [_kept(value) for value in config] if isinstance(config, (list, tuple)) else config


def describe(name: str, thing: Any) -> dict[str, object]:
    """What Keras saves of an object, by name, without names that it numbers by what was built."""
    if thing is None or isinstance(thing, (str, int, float)):
        return {name: thing}
    if isinstance(thing, (Mapping, list, tuple)):
        parts = thing.items() if isinstance(thing, Mapping) else enumerate(thing)
        return {k: v for key, part in parts for k, v in describe(f"{name} {key}", part).items()}
    config = thing.get_config() if hasattr(thing, "get_config") else {}
    return {name: getattr(thing, "__name__", type(thing).__name__)} | {
        f"{name} {key}": json.loads(json.dumps(value, default=str))
        for key, value in config.items()
        if key != "name"
    }
