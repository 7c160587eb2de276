"""Beginning with weights that are there already: a run's, or those of a file that Keras wrote.

Layers find their weights by name and shape. Names that Keras makes up, such as `dense_7`, depend on
what a process has built before; those layers are counted by their kind and order, as in Keras's own
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

from towers import model_state, train_state
from towers.runs import checkpoints, run_folder
from towers.support import adapted, errors

_ALLOWED = (
    "must be the folder of a run, a checkpoint in one such as runs/first/checkpoints/step-500, or "
    "a file with the ending .keras or .weights.h5"
)
_NAMES_SAID = 4  # of layers, in one line


class WarmStartError(errors.UserError):
    """Nothing can be taken from what a run is to begin with."""

    exit_code = 2


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a model takes.

    Attributes:
      path: what was given, absolute.
      file: what is read of it.
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


def is_of(recorded: object, given: str | os.PathLike) -> bool:
    """Whether it records what was taken from a path."""
    return bool(is_recorded(recorded) and recorded and recorded["path"] == absolute(given))


def said(recorded: Mapping | None) -> list[str]:
    """What a model takes, in lines for a person."""
    if recorded is None:
        return []
    taken, own, unused = (recorded[name] for name in ("taken", "own", "unused"))
    of = f"{len(taken)} of {len(taken) + len(own)} layers with weights"
    lines = [f"begins with {recorded['file']}: {of}"]
    lines += [f"  not taken: {_some(own)}"] if own else []
    lines += [f"  not used of it: {_some(unused)}"] if unused else []
    return lines


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SAID
    return "; ".join(names[:_NAMES_SAID]) + (f"; and {more} more" if more > 0 else "")


def absolute(given: str | os.PathLike) -> str:
    """The path that was given, from the root."""
    return os.path.abspath(os.path.expanduser(given))


def locate(given: str | os.PathLike) -> str:
    """The file or checkpoint that is meant.

    Of a run it is the final model, or its newest whole checkpoint where that is of a later step.

    Raises:
      WarmStartError: there is nothing to begin with.
    """
    place = Path(os.path.expanduser(given))
    if place.is_dir():
        return _of_run(given, place)
    if place.name.endswith((".keras", ".weights.h5")):
        if not place.is_file():
            raise WarmStartError(f"init_from={given}: no such file")
        return os.path.abspath(place)
    checkpoint = os.path.abspath(place).removesuffix(".index")
    if place.parent.name != "checkpoints" or not os.path.exists(f"{checkpoint}.index"):
        raise WarmStartError(f"init_from={given}: {_ALLOWED}")
    try:
        checkpoints.check_whole(checkpoint)
    except checkpoints.CheckpointError as error:
        raise WarmStartError(f"init_from={given}: {error}") from error
    return checkpoint


def _of_run(given, place: Path) -> str:
    folder = run_folder.RunFolder(place)
    if not folder.config.exists():
        raise WarmStartError(f"init_from={given}: {_ALLOWED}")
    try:
        final = folder.read_final_summary()
    except run_folder.RunFolderError as error:
        raise WarmStartError(f"init_from={given}: {error}") from error
    problem = "has neither a final model nor a checkpoint yet"
    for step, path in reversed(checkpoints.by_step(folder.checkpoints).items()):
        if final and step <= final["step"]:
            break
        try:
            checkpoints.check_whole(path)
        except checkpoints.CheckpointError as error:
            problem = str(error)
        else:
            return os.path.abspath(path)
    if final:
        return os.path.abspath(folder.final_model)
    raise WarmStartError(f"init_from={given}: {problem}")


def take(given: str | os.PathLike, state: train_state.TrainState) -> WarmStart:
    """Gives a model at step 0 the weights that it finds, as they are evaluated.

    Batch-norm statistics are weights in this. Moving averages begin at the weights; the optimizer
    begins with nothing.

    Args:
      given: a run's folder, a checkpoint in one, or a `.keras` or `.weights.h5` file. The weights
        of a checkpoint have no names: all of them have to fit the model's, in their order.
      state: of the run that begins.

    Raises:
      WarmStartError: there is nothing to begin with, it cannot be read, or no layer finds weights.
    """
    file = locate(given)
    try:
        if os.path.exists(f"{file}.index"):
            found = _take_checkpoint(file, state.model)
        else:
            found = _take_file(file, state.model)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise WarmStartError(f"init_from={given}: {file} cannot be read: {error}") from error
    except _DoesNotFitError as error:
        raise WarmStartError(f"init_from={given}: {error}") from error
    _begin_at_weights(state)
    return WarmStart(absolute(given), file, *found)


class _DoesNotFitError(Exception):
    pass


def _begin_at_weights(state: train_state.TrainState) -> None:
    for average, weight in zip(state.averages, state.model.trainable_variables, strict=False):
        average.assign(weight.value)
    begin_statistics_at_models(state)


def begin_statistics_at_models(state: train_state.TrainState) -> None:
    """Each microbatch's own batch-norm statistics, where they are kept, begin at the model's."""
    places = model_state.kept_apart(state.model) if state.statistics_of_each else []
    for variable, place in zip(state.statistics_of_each, places, strict=True):
        shared = state.model.non_trainable_variables[place].value
        variable.assign(tf.stack([shared] * variable.shape[0]))


def _take_checkpoint(path: str, model: keras.Model) -> tuple:
    values = checkpoints.read(path)
    weights = checkpoints.part(values, "moving_averages") or checkpoints.part(values, "weights")
    found = weights, checkpoints.part(values, "model_state")
    variables = model.trainable_variables, model.non_trainable_variables
    shapes = [[tuple(variable.shape) for variable in part] for part in variables]
    if shapes != [[value.shape for value in part] for part in found]:
        raise _DoesNotFitError(
            f"the weights in {path} have no names, and their shapes are not the model's; the final "
            "model of a run has names, and gives what fits"
        )
    digest = hashlib.sha256()
    pairs = zip(itertools.chain(*variables), itertools.chain(*found), strict=True)
    taken = [(one, value) for one, value in pairs if not model_state.is_draw_counter(one)]
    for place, (variable, value) in enumerate(taken):
        variable.assign(value)
        _add(digest, str(place), value)
    adapted.refresh(model)
    return digest.hexdigest(), [variable.path for variable, _ in taken], [], []


def _add(digest, name: str, value: np.ndarray) -> None:
    digest.update(f"{name} {value.dtype} {value.shape} ".encode())
    digest.update(np.ascontiguousarray(value).tobytes())


def _take_file(file: str, model: keras.Model) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        # The model's own file says which layer is where in it; Keras reads it back.
        own = Path(folder) / "own.weights.h5"
        model.save_weights(own)
        with h5py.File(own, "r+") as ours, _weights_file(file, Path(folder)) as theirs:
            found = _give(dict(_layers(ours)), dict(_layers(theirs)))
        model.load_weights(own)
    return found


@contextlib.contextmanager
def _weights_file(file: str, folder: Path) -> Iterator[h5py.File]:
    if file.endswith(".keras"):
        with zipfile.ZipFile(file) as archive, archive.open("model.weights.h5") as packed:
            file = folder / "theirs.weights.h5"
            with open(file, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    with h5py.File(file) as opened:
        yield opened


def _give(ours: Mapping[str, h5py.Group], theirs: Mapping[str, h5py.Group]) -> tuple:
    """Writes their values into ours, layer by layer."""
    shapes, other_shapes = ({n: _shapes(g) for n, g in group.items()} for group in (ours, theirs))
    names = _best_names(shapes, other_shapes)
    pairs = {n: other for n, other in names.items() if shapes[n] == other_shapes.get(other)}
    if not pairs:
        raise _DoesNotFitError(
            "no layer of the model has the name and the shapes of one there; it has "
            f"{_some(list(ours))}, and there are {_some(list(theirs))}"
        )
    digest = hashlib.sha256()
    for name, other in pairs.items():
        for key, value in theirs[other].items():
            ours[name][key][...] = value[...]
            _add(digest, f"{name}/{key}", value[...])
    kept = [
        f"{name} (there {_said(other_shapes[names[name]])}, here {_said(shapes[name])})"
        if names.get(name) in other_shapes
        else f"{name} (not there)"
        for name in ours
        if name not in pairs
    ]
    taken_of_theirs = set(pairs.values())
    return digest.hexdigest(), list(pairs), kept, [n for n in theirs if n not in taken_of_theirs]


def _shapes(group: h5py.Group) -> dict[str, tuple]:
    return {key: (value.shape, str(value.dtype)) for key, value in group.items()}


def _said(shapes: Mapping[str, tuple]) -> str:
    return " and ".join(str(list(shape)) for shape, _ in shapes.values())


def _best_names(ours: Mapping[str, dict], theirs: Mapping[str, dict]) -> dict[str, str]:
    """The name there of layers here, whether or not there is one.

    One of the two may be a model within the other, as a pretrained base is within a classifier: it
    is whichever gives the most weights.
    """
    most, best = 0, {}
    places = [("", "")]
    places += [(inside, "") for inside in _models_within(ours)]
    places += [("", inside) for inside in _models_within(theirs)]
    for here, there in places:
        names = {n: there + n.removeprefix(here) for n in ours if n.startswith(here)}
        fit = [name for name, other in names.items() if ours[name] == theirs.get(other)]
        given = sum(math.prod(shape) for name in fit for shape, _ in ours[name].values())
        if given > most:
            most, best = given, names
    return best


def _models_within(names: Iterable[str]) -> list[str]:
    """The first parts of names, each with the slash behind it."""
    cuts = {name[: at.end()] for name in names for at in re.finditer("/", name)}
    return sorted(cuts)


def _layers(group: h5py.Group, name: str = "") -> Iterator[tuple[str, h5py.Group]]:
    """The layers that have weights, by name."""
    own = group.get("vars")
    if own is not None and len(own):
        yield name or "the model itself", own
    inner = [key for key in group if key != "vars"]
    # A group without `vars` is a list or a dict of layers, whose keys are kinds and numbers.
    named = _named(group, inner) if own is None else {}
    for key in inner:
        part = named.get(key, key)
        if part == "layers":  # of a Sequential or functional model: no part of a layer's name
            yield from _layers(group[key], name)
        else:
            yield from _layers(group[key], f"{name}/{part}" if name else part)


def _named(group: h5py.Group, keys: Sequence[str]) -> dict[str, str]:
    """Layers' own names; those that Keras made up are counted by kind."""
    counts, names = collections.Counter(), {}
    for key in sorted(keys, key=_kind_and_number):
        kind, _ = _kind_and_number(key)
        given = group[key].get("vars")
        given = None if given is None else given.attrs.get("name")
        if given is None or re.fullmatch(rf"{re.escape(kind)}(_\d+)?", given):
            number = counts[kind]
            counts[kind] += 1
            given = f"{kind}_{number}" if number else kind
        names[key] = given
    twice = {name for name, count in collections.Counter(names.values()).items() if count > 1}
    return {key: key if name in twice else name for key, name in names.items()}


def _kind_and_number(key: str) -> tuple[str, int]:
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", key).groups()
    return kind, int(number or 0)
