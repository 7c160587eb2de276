"""Beginning with existing weights: a run's, or those of a file that Keras wrote.

Layers find their weights by name and shape. Names that Keras makes up, such as `dense_7`, depend on
what a process has built before; those layers are matched by kind and order, as in Keras's own
files. A file is read as numbers, and no code in it is run.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import math
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

from towers import adapted, errors, model_state
from towers.runs import checkpoints, run_folder

_ALLOWED = (
    "must be the folder of a run, a checkpoint in one such as runs/first/checkpoints/step-500, or "
    "a .keras or .weights.h5 file"
)
_NAMES_SAID = 4  # of layers, in one line


class WarmStartError(errors.UserError):
    """No weights can be taken from what a run was told to begin with."""

    exit_code = 2


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a model takes.

    Attributes:
      path: what was given, absolute.
      file: the file or checkpoint in it that is read.
      sha256: of all that is taken.
      taken: layers of the model that find their weights.
      own: layers of the model that keep the weights they have, each with the reason.
      unused: layers of the file that no layer of the model takes.
    """

    path: str
    file: str
    sha256: str
    taken: Sequence[str]
    own: Sequence[str]
    unused: Sequence[str]

    def recorded(self) -> dict:
        """For a run's `config.json`."""
        return dataclasses.asdict(self)


def is_recorded(value: object) -> bool:
    """Whether what was read from a `config.json` is what `WarmStart.recorded` gives, or None."""
    kinds = {"path": str, "file": str, "sha256": str, "taken": list, "own": list, "unused": list}
    return value is None or (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in kinds.items())
    )


def said(recorded: Mapping | None) -> list[str]:
    """What a model takes, in lines for a person."""
    if recorded is None:
        return []
    taken, own, unused = (recorded[name] for name in ("taken", "own", "unused"))
    of = f"{len(taken)} of {len(taken) + len(own)} layers with weights"
    lines = [f"begins with {recorded['file']}: {of}"]
    lines += [f"  not taken: {_some(own)}"] if own else []
    lines += [f"  not used: {_some(unused)}"] if unused else []
    return lines


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SAID
    return "; ".join(names[:_NAMES_SAID]) + (f"; and {more} more" if more > 0 else "")


def absolute(given: str | os.PathLike) -> str:
    """The path that was given, from the root."""
    return os.path.abspath(os.path.expanduser(given))


def locate(given: str | os.PathLike) -> str:
    """The file or checkpoint that is meant.

    Of a run it is the final model, or its newest checkpoint where that is of a later step.

    Raises:
      WarmStartError: there are no weights to begin with.
    """
    place = Path(os.path.expanduser(given))
    if _is_checkpoint(place):
        return os.path.abspath(place)
    if place.is_dir():
        return _of_run(given, place)
    if place.name.endswith((".keras", ".weights.h5")):
        if not place.is_file():
            raise WarmStartError(f"init_from={given}: no such file or folder")
        return os.path.abspath(place)
    problem = _ALLOWED if place.exists() else "no such file or folder"
    raise WarmStartError(f"init_from={given}: {problem}")


def _is_checkpoint(place: str | os.PathLike) -> bool:
    return Path(place).parent.name == "checkpoints" and checkpoints.is_checkpoint(place)


def _of_run(given, place: Path) -> str:
    folder = run_folder.RunFolder(place)
    if not folder.config.exists():
        raise WarmStartError(f"init_from={given}: {_ALLOWED}")
    try:
        final = folder.read_final_summary()
    except run_folder.RunFolderError as error:
        raise WarmStartError(f"init_from={given}: {error}") from error
    newest = checkpoints.newest(folder.checkpoints)
    if newest and not (final and checkpoints.step_of(newest) <= final["step"]):
        return os.path.abspath(newest)
    if final:
        return os.path.abspath(folder.final_model)
    raise WarmStartError(f"init_from={given}: has neither a final model nor a checkpoint yet")


def take(
    given: str | os.PathLike, model: keras.Model, averages: Sequence[tf.Variable] = ()
) -> WarmStart:
    """Gives a model at step 0 the weights that it finds, as they are evaluated.

    Batch-norm statistics count as weights here. Moving averages begin at the weights; the optimizer
    begins with nothing.

    Args:
      given: a run's folder, a checkpoint in one, or a `.keras` or `.weights.h5` file. The weights
        of a checkpoint have no names: all of them must fit the model's, in their order.
      model: of the run that begins.
      averages: of its trainable weights, if it keeps some.

    Raises:
      WarmStartError: there are no weights, they cannot be read, or no layer finds any.
    """
    file = locate(given)
    try:
        take_from = _take_checkpoint if _is_checkpoint(file) else _take_file
        found = take_from(file, model)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise WarmStartError(f"init_from={given}: {file} cannot be read: {error}") from error
    except (_DoesNotFitError, checkpoints.CheckpointError) as error:
        raise WarmStartError(f"init_from={given}: {error}") from error
    for average, weight in zip(averages, model.trainable_variables, strict=False):
        average.assign(weight.value)
    return WarmStart(absolute(given), file, *found)


class _DoesNotFitError(Exception):
    pass


def _take_checkpoint(path: str, model: keras.Model) -> tuple:
    config = run_folder.RunFolder(Path(path).parent.parent).read_config()
    of_run = config and config["resolved"].get("places_of_weights")
    values = checkpoints.read(path)
    weights = checkpoints.part(values, "moving_averages") or checkpoints.part(values, "weights")
    found = [*weights, *checkpoints.part(values, "model_state")]
    if not isinstance(of_run, list) or sorted(of_run) != list(range(len(found))):
        raise _DoesNotFitError(f"the config.json of its run does not fit checkpoint {path}")
    in_order = [value for _, value in sorted(zip(of_run, found, strict=True), key=lambda p: p[0])]
    kinds = [(tuple(variable.shape), variable.dtype) for variable in model.variables]
    if kinds != [(value.shape, value.dtype.name) for value in in_order]:
        raise _DoesNotFitError(
            f"the weights in {path} have no names, and their shapes and types are not the model's; "
            "give the final model of the run, which has names and gives what fits"
        )
    digest, layers = hashlib.sha256(), {}
    for place, (variable, value) in enumerate(zip(model.variables, in_order, strict=True)):
        if not model_state.is_draw_counter(variable):
            variable.assign(value)
            _add(digest, str(place), value)
            layers[variable.path.rpartition("/")[0] or variable.path] = None
    adapted.refresh(model)
    return digest.hexdigest(), list(layers), [], []


def _add(digest, name: str, value: np.ndarray) -> None:
    digest.update(f"{name} {value.dtype} {value.shape} ".encode())
    digest.update(np.ascontiguousarray(value).tobytes())


def _take_file(file: str, model: keras.Model) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        # The model's own file says which layer is where in it; Keras reads it back.
        own = Path(folder) / "own.weights.h5"
        model.save_weights(own)
        _check_read_back(model, own)
        with h5py.File(own, "r+") as ours, _weights_file(file, Path(folder)) as theirs:
            found = _give(ours, theirs)
        model.load_weights(own)
    return found


def _check_read_back(model: keras.Model, file: Path) -> None:
    """Checks that a layer without weights in the file keeps its own, as LoRA's would not."""
    before = [variable.numpy() for variable in model.variables]
    model.load_weights(file)
    for variable, value in zip(model.variables, before, strict=True):
        if not np.array_equal(variable.numpy(), value, equal_nan=True):
            for changed, original in zip(model.variables, before, strict=True):
                changed.assign(original)
            raise _DoesNotFitError(
                f"Keras does not save {variable.path} as it is (LoRA, or a quantized layer?): take "
                "weights before the layer is changed, in a program of your own"
            )


@contextlib.contextmanager
def _weights_file(file: str, folder: Path) -> Iterator[h5py.File]:
    if file.endswith(".keras"):
        with zipfile.ZipFile(file) as archive, archive.open("model.weights.h5") as packed:
            file = folder / "theirs.weights.h5"
            with open(file, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    with h5py.File(file) as opened:
        yield opened


_Name = tuple[str, ...]  # of a layer: the models and lists that it is in, and itself


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The weights of a layer in a file.

    Attributes:
      own_name: as the file has it, where the key is counted by kind.
      values: the weights.
      shapes: (shape, type) of each by its key.
    """

    own_name: _Name
    values: h5py.Group
    shapes: Mapping[str, tuple[tuple[int, ...], str]]


def _give(ours: h5py.File, theirs: h5py.File) -> tuple:
    """Writes their values into ours, layer by layer."""
    has_names = all(_says_names(file) for file in (ours, theirs))
    mine, others = (dict(_layers(file, has_names)) for file in (ours, theirs))
    if not others:
        raise _DoesNotFitError("it is not a weights file as Keras 3 writes them")
    pairs = _pairs(mine, others, (), ())
    _check_unambiguous(mine, others, pairs, (), ())
    left = {name: layer for name, layer in mine.items() if name not in pairs}
    unused = {n: layer for n, layer in others.items() if n not in set(pairs.values())}
    here, there = _best_places(left, unused, _own_names(ours, mine), _own_names(theirs, others),
                               both_within=not pairs)  # fmt: skip
    within = _pairs(left, unused, here, there)
    _check_unambiguous(left, unused, within, here, there)
    pairs |= within
    own = [
        f"{_said(name)} ({_difference(layer, others.get(name))})"
        for name, layer in mine.items()
        if name not in pairs
    ]
    if not pairs:
        raise _DoesNotFitError(
            "no layer of the model has the name, the shapes and the type of one in it; the model "
            f"has {_some(own)}, and the file {_some([*map(_said, others)])}"
        )
    digest = hashlib.sha256()
    for name, other in pairs.items():
        for key, value in others[other].values.items():
            mine[name].values[key][...] = value[...]
            _add(digest, "/".join((*name, key)), value[...])
    taken = [
        _said(name) if name == other else f"{_said(name)} (there {_said(other)})"
        for name, other in pairs.items()
    ]
    used = set(pairs.values())
    return digest.hexdigest(), taken, own, [_said(name) for name in others if name not in used]


def _pairs(
    ours: Mapping[_Name, _Layer], theirs: Mapping[_Name, _Layer], here: _Name, there: _Name
) -> dict[_Name, _Name]:
    """Layers of a model here, and those of a model there that have their names and shapes."""
    names = {name: there + name[len(here) :] for name in ours if name[: len(here)] == here}
    return {n: other for n, other in names.items() if _fit(ours[n], theirs.get(other))}


def _fit(one: _Layer, other: _Layer | None) -> bool:
    return other is not None and one.shapes == other.shapes


def _difference(here: _Layer, there: _Layer | None) -> str:
    if there is None:
        return "not there"
    types = [{of_type for _, of_type in layer.shapes.values()} for layer in (there, here)]
    if types[0] != types[1]:
        return f"there {' and '.join(sorted(types[0]))}, here {' and '.join(sorted(types[1]))}"
    shapes = [
        " and ".join(str(list(shape)) for shape, _ in layer.shapes.values())
        for layer in (there, here)
    ]
    return f"there {shapes[0]}, here {shapes[1]}"


def _said(name: _Name) -> str:
    return "/".join(part for part in name if part != _LAYERS) or "the model itself"


def _best_places(
    ours: Mapping[_Name, _Layer],
    theirs: Mapping[_Name, _Layer],
    our_names: Mapping[_Name, str],
    their_names: Mapping[_Name, str],
    both_within: bool,
) -> tuple[_Name, _Name]:
    """The model here and the model there whose layers share the most weights.

    One of them is the whole, and the other a model within it, as a pretrained base is within a
    classifier; both may be within others where `both_within`.

    Raises:
      _DoesNotFitError: several share as many, and not exactly one of them has the same name.
    """
    found = {}
    for here, there in itertools.product(_models(our_names), _models(their_names)):
        if bool(here) != bool(there) or (here and both_within):
            pairs = _pairs(ours, theirs, here, there)
            shapes = [shape for name in pairs for shape, _ in ours[name].shapes.values()]
            if shapes:
                found[here, there] = sum(map(math.prod, shapes))
    if not found:
        return (), ()
    best = [places for places, given in found.items() if given == max(found.values())]
    if len(best) > 1:
        named = [(h, t) for h, t in best if our_names[h] == their_names[t]]
        if len(named) != 1:
            ways = [f"from {_said(there)} there to {_said(here)} here" for here, there in best]
            raise _DoesNotFitError(
                f"the weights could go in several ways: {_some(ways)}; give a file of one model "
                "alone, or the two models the same name"
            )
        best = named
    return best[0]


def _models(names: Iterable[_Name]) -> list[_Name]:
    return sorted(names, key=lambda name: (len(name), name))


def _own_names(file: h5py.File, layers: Iterable[_Name]) -> dict[_Name, str]:
    """The whole, and the models within it, with the names they have themselves."""
    within = {name[:place] for name in layers for place, part in enumerate(name) if part == _LAYERS}
    own = file.get("vars")
    whole = own.attrs.get("name", "") if own is not None else ""
    return {(): whole} | {name: name[-1] for name in within if name}


def _check_unambiguous(ours, theirs, pairs, here: _Name, there: _Name) -> None:
    """Checks that no layer was matched by count to one of theirs but has another one's name.

    Where both have the same layers, their order matches those that were counted.
    """
    if {name[len(here) :] for name in ours if name[: len(here)] == here} == {
        name[len(there) :] for name in theirs if name[: len(there)] == there
    }:
        return
    by_own_name = {
        layer.own_name[len(there) :]: name
        for name, layer in theirs.items()
        if name[: len(there)] == there
    }
    for name, other in pairs.items():
        named = by_own_name.get(ours[name].own_name[len(here) :], other)
        if named != other and _fit(ours[name], theirs[named]):
            raise _DoesNotFitError(
                f"the layer {_said(ours[name].own_name)} could be {_said(theirs[named].own_name)} "
                f"in the file by its name, or {_said(theirs[other].own_name)} by its place among "
                "layers of its kind, whose names Keras may have made up: give them names of your "
                "own"
            )


_LAYERS = "layers"  # what a Sequential or functional model has in a file


def _says_names(file: h5py.File) -> bool:
    """Whether a file has the names of layers; those of some versions of Keras have kinds only."""
    found = []
    file.visititems(
        lambda path, one: found.append("name" in one.attrs) if path.endswith("/vars") else None
    )
    return all(found)


def _layers(
    group: h5py.Group, has_names: bool, name: _Name = (), own_name: _Name = ()
) -> Iterator[tuple[_Name, _Layer]]:
    """The layers that have weights, by name."""
    own = group.get("vars")
    if isinstance(own, h5py.Group) and len(own):
        if not all(isinstance(value, h5py.Dataset) for value in own.values()):
            raise _DoesNotFitError("it is not a weights file as Keras 3 writes them")
        # A type that HDF5 does not have, such as bfloat16, stands beside the bytes.
        shapes = {k: (v.shape, str(v.attrs.get("dtype", v.dtype))) for k, v in own.items()}
        yield name, _Layer(own_name, own, shapes)
    inner = [key for key in group if key != "vars" and isinstance(group[key], h5py.Group)]
    if not name and "optimizer" in inner:  # of a model that was compiled
        inner.remove("optimizer")
    # A group without `vars` is a list or a dict of layers, whose keys are kinds and numbers.
    counted, named = _named(group, inner, has_names) if own is None else ({}, {})
    for key in inner:
        yield from _layers(
            group[key],
            has_names,
            (*name, counted.get(key, key)),
            (*own_name, named.get(key, key)),
        )


def _named(group: h5py.Group, keys: Sequence[str], has_names: bool) -> tuple[dict, dict]:
    """Layers' names, with those that Keras made up counted by kind; and as they are."""
    counts, names, own_names = collections.Counter(), {}, {}
    for key in sorted(keys, key=_kind_and_number):
        kind, _ = _kind_and_number(key)
        own = group[key].get("vars")
        given = own.attrs.get("name") if has_names and own is not None else None
        own_names[key] = given or key
        if given is None or re.fullmatch(rf"{re.escape(kind)}(_\d+)?", given):
            number = counts[kind]
            counts[kind] += 1
            given = f"{kind}_{number}" if number else kind
        names[key] = given
    twice = {name for name, count in collections.Counter(names.values()).items() if count > 1}
    return {key: key if name in twice else name for key, name in names.items()}, own_names


def _kind_and_number(key: str) -> tuple[str, int]:
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", key).groups()
    return kind, int(number or 0)
