"""Beginning with existing weights: a run's, or those of a model that Keras saved.

A layer takes the weights of the layer with its name. Names that Keras makes up, such as `dense_7`,
depend on what a process has built before: those layers are matched by what is around them, their
kind and their order, and only where there are as many of them in both models.
"""

import collections
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from towers import devices, errors, hashes, model_state
from towers.runs import checkpoints, run_folder

from keras.src.utils import io_utils, naming  # isort: skip


class WarmStartError(errors.UserError):
    """No weights can be taken from what a run was told to begin with."""

    exit_code = 2


def locate(init_from: str | os.PathLike) -> str:
    """The file or checkpoint that is meant, absolute.

    Of a run it is the final model, or its newest checkpoint where that is of a later step.
    """
    path = Path(os.path.abspath(os.path.expanduser(init_from)))
    is_checkpoint = checkpoints.is_checkpoint(path) and path.parent.name == "checkpoints"
    if is_checkpoint or (path.suffix == ".keras" and path.is_file()):
        return str(path)
    folder = run_folder.RunFolder(path)
    final, newest = folder.read_final_summary(), checkpoints.newest(folder.checkpoints)
    if newest and not (final and checkpoints.step_of(newest) <= final["step"]):
        return newest
    if final is None:
        raise WarmStartError(
            f"init_from={init_from}: must be a run's folder with a final model or a checkpoint,"
            " a checkpoint such as runs/first/checkpoints/step-500, or a .keras file"
        )
    return str(folder.final_model)


def take(init_from: str | os.PathLike, model: keras.Model) -> dict:
    """Gives a model the weights that it finds, as they are evaluated, and no optimizer's state.

    It prints which layers took none.

    Args:
      init_from: a run's folder, a checkpoint in one, or a `.keras` file. A checkpoint has no names
        of layers: all of its weights must fit the model's, in their order.
      model: of the run that begins.

    Returns:
      For `config.json`: `path`, absolute; `file`, the file or checkpoint that was read; `sha256` of
      all that was taken; `kept`, the layers that keep what they have, with the reason.

    Raises:
      WarmStartError: there are no weights, they cannot be read, or no layer finds any.
    """
    file, kept = locate(init_from), list[str]()
    try:
        if file.endswith(".keras"):
            pairs, kept = _take_from_model(file, model)
        else:
            pairs = restore(file, model)
    except (WarmStartError, checkpoints.CheckpointError) as error:
        raise WarmStartError(f"init_from={init_from}: {error}") from error
    but = f", but for {len(kept)} layers: {'; '.join(kept)[:300]}" if kept else ""
    io_utils.print_msg(f"begins with the weights of {file}{but}")
    return {
        "path": os.path.abspath(os.path.expanduser(init_from)),
        "file": file,
        "sha256": hashes.sha256(value for _, value in pairs),
        "kept": kept,
    }


def restore(path: str, model: keras.Model) -> list[tuple[keras.Variable, np.ndarray]]:
    """Gives a model the weights in a checkpoint, averages where it has some; these weights."""
    values = checkpoints.read_weights(path)
    if _kinds(values) != _kinds(model.variables):
        raise checkpoints.CheckpointError(
            f"the weights in {path} have no names, and their shapes and types are not the model's; "
            "give the final model of the run, which has names and gives what fits"
        )
    pairs = zip(model.variables, values, strict=True)
    return _assign(model, [pair for pair in pairs if not model_state.is_draw_counter(pair[0])])


def _assign(model: keras.Model, pairs: list[tuple]) -> list[tuple]:
    for variable, value in pairs:
        variable.assign(value)
    model_state.refresh(model)
    return pairs


def _take_from_model(file: str, model: keras.Model) -> tuple[list, list[str]]:
    classes = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    try:
        with tf.device(devices.HOST):
            source = keras.saving.load_model(file, custom_objects=classes, compile=False)
    except Exception as error:  # Keras has many for a file, or code in it, that it does not know
        raise WarmStartError(f"{file} cannot be read: {errors.reason(error)[:300]}") from error
    others, pairs, kept = _layers_by_key(source), list[tuple](), list[str]()
    matches: dict[int, list] = {}  # of a layer, which may be in several places
    for key, layer in _layers_by_key(model).items():
        matches.setdefault(id(layer), [key, layer]).append(others.get(key))
    for key, layer, other, *more in matches.values():
        is_one = all(another is other for another in more)
        here, there = _weights(layer), _weights(other) if other and is_one else []
        if _kinds(here) == _kinds(there):
            pairs += zip(here, there, strict=True)
        else:
            kept.append(f"{key} (there {_kinds(there) or 'nothing'}, here {_kinds(here)})")
    if not pairs:
        raise WarmStartError(
            "no layer of the model has the name, the shapes and the types of one in it; the model "
            f"has {'; '.join(kept)[:300]}, and the file {'; '.join(others)[:300]}"
        )
    return _assign(model, pairs), kept


def _layers_by_key(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers with weights, by what matches them; a model in another has the same keys."""
    names = collections.Counter(layer.name for layer in model._flatten_layers())
    top, inner = model, [model]
    while inner:  # down to the last layer that has all weights in layers of its own
        top = inner[0]
        count = len(top.variables)
        inner = [one for one in top._layers if one._layers and len(one.variables) == count]
    return {key: layer for key, layer in _walk(top, names, "(model)") if _weights(layer)}


def _walk(
    layer: keras.layers.Layer, names: Mapping[str, int], key: str
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """A layer and all layers in it, each with its key.

    That is a name that only one layer has; else the key of what is around it (what is in `encoder`
    never gets what was in `decoder`), the name or the kind, and the number among those alike, by
    place and by Keras's numbers: where these differ, nobody knows which layer is meant.
    """
    yield key, layer
    kinds = [_name_or_kind(inner) for inner in layer._layers]
    for kind, inner in zip(kinds, layer._layers, strict=True):
        alike = [one for one, its in zip(layer._layers, kinds, strict=True) if its == kind]
        made = sorted(alike, key=lambda one: (len(one.name), one.name))
        number = f"{alike.index(inner) + 1} of {len(alike)}, made as {made.index(inner) + 1}"
        yield from _walk(inner, names, kind if names[kind] == 1 else f"{key}/{kind} {number}")


def _name_or_kind(layer: keras.layers.Layer) -> str:
    """A layer's name; `*Dense` where Keras has made it up."""
    kind = type(layer).__name__
    made_up = rf"{re.escape(naming.to_snake_case(kind))}(_\d+)?"
    return f"*{kind}" if re.fullmatch(made_up, layer.name) else layer.name


def _weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """A layer's weights, without those of layers in it: what Keras saves of it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def _kinds(values: Sequence) -> str:
    return ", ".join(f"{value.dtype} {list(value.shape)}" for value in values)
