"""Beginning with existing weights: a run's, or those of a file that Keras wrote.

Layers find their weights by name and shape. Names that Keras makes up, such as `dense_7`, depend on
what a process has built before; those layers are matched by their place in the model, by kind and
order, as in Keras's own files. A file is read as numbers, and no code in it is run.
"""

import collections
import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

from towers import errors, model_state
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
    final = folder.read_final_summary()
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
    digest = hashlib.sha256()
    layers: dict[str, None] = {}
    for place, (variable, value) in enumerate(zip(model.variables, in_order, strict=True)):
        if not model_state.is_draw_counter(variable):
            variable.assign(value)
            _add(digest, str(place), value)
            layers[variable.path.rpartition("/")[0] or variable.path] = None
    model_state.refresh(model)
    return digest.hexdigest(), list(layers), [], []


def _add(digest, name: str, value: np.ndarray) -> None:
    digest.update(f"{name} {value.dtype} {value.shape} ".encode())
    digest.update(np.ascontiguousarray(value).tobytes())


def _take_file(file: str, model: keras.Model) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        # The model's own file says which layer is where in it; Keras reads it back.
        own = Path(folder) / "own.weights.h5"
        model.save_weights(own)
        with h5py.File(own, "r+") as ours, _weights_file(file, Path(folder)) as theirs:
            found = _give(ours, theirs)
        model.load_weights(own)
    return found


@contextlib.contextmanager
def _weights_file(file: str, folder: Path) -> Iterator[h5py.File]:
    if file.endswith(".keras"):
        with zipfile.ZipFile(file) as archive, archive.open("model.weights.h5") as packed:
            file = str(folder / "theirs.weights.h5")
            with open(file, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    with h5py.File(file) as opened:
        yield opened


def _give(ours: h5py.File, theirs: h5py.File) -> tuple:
    """Writes their values into ours, layer by layer."""
    with_names = all(_has_names(file) for file in (ours, theirs))
    mine, others = (_layers(file, with_names) for file in (ours, theirs))
    if not others:
        raise _DoesNotFitError("it is not a weights file as Keras 3 writes them")
    kept = {name: _difference(layer, others.get(name)) for name, layer in mine.items()}
    kept = {name: difference for name, difference in kept.items() if difference}
    taken = [name for name in mine if name not in kept]
    own = [f"{name} ({difference})" for name, difference in kept.items()]
    if not taken:
        raise _DoesNotFitError(
            "no layer of the model has the name, the shapes and the type of one in it; the model "
            f"has {_some(own)}, and the file {_some([*others])}"
        )
    if mine.keys() != others.keys():  # else the order of those that are counted is the same
        _check_names(mine, others, taken)
    digest = hashlib.sha256()
    for name in taken:
        for key, value in others[name].items():
            mine[name][key][...] = value[...]
            _add(digest, f"{name}/{key}", value[...])
    return digest.hexdigest(), taken, own, [name for name in others if name not in taken]


def _check_names(mine: Mapping, others: Mapping, taken: Sequence[str]) -> None:
    """Checks that no layer takes weights by its place where another has its name."""
    by_own_name = {values.attrs.get("name"): name for name, values in others.items()}
    for name in taken:
        own_name = mine[name].attrs.get("name")
        named = by_own_name.get(own_name, name)
        if named != name and not _difference(mine[name], others[named]):
            raise _DoesNotFitError(
                f"the layer {own_name} could be {own_name} in the file by its name, or {name} by "
                "its place among layers of its kind, whose names Keras may have made up: give them "
                "names of your own"
            )


def _difference(here: h5py.Group, there: h5py.Group | None) -> str:
    """Why a layer cannot take the weights of another; empty where it can."""
    if there is None:
        return "not there"
    # A type that HDF5 does not have, such as bfloat16, stands beside the bytes.
    types, shapes = (
        [{key: read(value) for key, value in layer.items()} for layer in (there, here)]
        for read in (lambda v: str(v.attrs.get("dtype", v.dtype)), lambda v: str(list(v.shape)))
    )
    for values in (types, shapes):
        if values[0] != values[1]:
            there_s, here_s = (" and ".join(dict.fromkeys(of.values())) for of in values)
            return f"there {there_s}, here {here_s}"
    return ""


def _has_names(file: h5py.File) -> bool:
    """Whether a file has the names of layers; those of some versions of Keras have kinds only."""
    return all("name" in values.attrs for _, values in _values(file))


def _layers(file: h5py.File, with_names: bool) -> dict[str, h5py.Group]:
    """The values of each layer that has weights.

    By its name, wherever in a model of layers it is; and by its place where Keras has made up the
    name, several layers have it, or a subclass holds the layer.
    """
    found = list(_values(file))
    names = [values.attrs["name"] if with_names else "" for _, values in found]
    counts = collections.Counter(names)
    layers = {}
    for (path, values), name in zip(found, names, strict=True):
        kind = re.sub(r"_\d+$", "", path[-1]) if path else ""
        is_made_up = re.fullmatch(rf"{re.escape(kind)}(_\d+)?", name)
        if path[-2:-1] == ("layers",) and not is_made_up and counts[name] == 1:
            layers[name] = values
        else:
            place = "/".join(part for part in path if part != "layers") or "the model itself"
            layers["/".join(path) if place in layers else place] = values
    return layers


def _values(group: h5py.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, h5py.Group]]:
    """Where in a file each layer with weights is, and its values by number."""
    values = group.get("vars")
    if isinstance(values, h5py.Group) and len(values):
        if not all(isinstance(value, h5py.Dataset) for value in values.values()):
            raise _DoesNotFitError("it is not a weights file as Keras 3 writes them")
        yield path, values
    for key, inner in group.items():
        # A model that was compiled has an optimizer, and a layer its seeds.
        is_other = key in ("vars", "seed_generator") or (not path and key == "optimizer")
        if not is_other and isinstance(inner, h5py.Group):
            yield from _values(inner, (*path, key))
