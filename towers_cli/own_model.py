"""The network that `--model` names: the package's, keras.applications', or the user's own."""

import contextlib
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import keras

import input_pipeline
import towers
from towers import errors, networks
from towers.runs import definition
from towers_cli import settings

_OURS = tuple(os.path.dirname(file) + os.sep for file in (towers.__file__, __file__))
_OTHERS = re.compile(r"[/\\](site-packages|importlib)[/\\]|^<frozen ")
PREPROCESSING = "pad_crop_flip"  # of your own model, where none is asked for


def is_own(name: str) -> bool:
    """Whether a `--model` is not one of the package's networks."""
    return name not in networks.NETWORKS


def network(name: str) -> networks.Network:
    """The network of a `--model`.

    Raises:
      SettingsError: it cannot be imported, or is not a function.
    """
    if not is_own(name):
        return networks.NETWORKS[name]
    module_name, _, function_name = name.partition(":")
    if not function_name:
        build = functools.partial(_build, name, _of_keras(name))
        return networks.Network(build, 0.0, "kernels", "random_resized_crop")
    if os.getcwd() not in sys.path:
        _check_no_namesake(name)
        # At the end: a file of the user's takes the place of no package.
        sys.path.append(os.getcwd())
    with faults_of(name, "importing it"):
        module = importlib.import_module(module_name)
    build = getattr(module, function_name, None)
    if not callable(build):
        raise settings.SettingsError(
            f"--model={name}: {getattr(module, '__file__', module_name)} has no function "
            f"{function_name}"
        )
    return networks.Network(functools.partial(_build, name, build), 0.0, "kernels", PREPROCESSING)


def _of_keras(name: str) -> Callable:
    """A network of keras.applications, as a function of (image_shape, num_classes)."""
    known = [n for n in dir(keras.applications) if n[0].isupper()]
    if name not in known:
        near = difflib.get_close_matches(name, known, cutoff=0.4) or known[:3]
        raise settings.SettingsError(
            f"--model={name}: keras.applications has no such network; it has {', '.join(near)} and "
            "others"
        )
    function = getattr(keras.applications, name)

    def build(image_shape, num_classes):
        options = {"input_shape": image_shape, "classes": num_classes, "weights": None}
        if "include_preprocessing" in inspect.signature(function).parameters:
            options["include_preprocessing"] = False  # the images are prepared already
        model = function(classifier_activation=None, **options)
        scaling = (keras.layers.Rescaling, keras.layers.Normalization)
        if any(isinstance(layer, scaling) for layer in model.layers):
            raise settings.SettingsError(
                f"--model={name}: scales raw pixels itself, but gets scaled images; choose one "
                "that does not, such as EfficientNetV2B0"
            )
        return model

    return build


def _check_no_namesake(name: str) -> None:
    """The user's modules would find ours, which is imported already, in place of their own."""
    for theirs in (Path("input_pipeline.py"), Path("input_pipeline", "__init__.py")):
        if theirs.exists() and not theirs.samefile(input_pipeline.__file__):
            raise settings.SettingsError(
                f"--model={name}: {theirs.absolute()} has the name of a package that the command "
                "needs; rename it, or make the run in a program of your own (docs/library.md), "
                "where the package is towers.data"
            )


def _build(
    name: str,
    function: Callable,
    image_shape: tuple[int, int, int],
    num_classes: int,
    policy: keras.DTypePolicy,
    seed: int,
) -> keras.Model:
    before = keras.config.dtype_policy()
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy)
    try:
        with faults_of(name, "building it"):
            model = function(image_shape, num_classes)
    finally:
        keras.config.set_dtype_policy(before)
    if isinstance(model, keras.Model) and not model.built:
        with faults_of(name, "calling it"):
            model(keras.ops.zeros((1, *image_shape)))
    _check(name, model, image_shape, num_classes)
    return model


def _check(name: str, model, image_shape: tuple[int, int, int], num_classes: int) -> None:
    if not isinstance(model, keras.Model):
        raise settings.SettingsError(
            f"--model={name}: returned a {type(model).__name__}: must be a Keras model"
        )
    with faults_of(name, "calling it"):
        images = keras.KerasTensor((None, *image_shape), dtype="float32")
        logits = model.compute_output_spec(images)
    with faults_of(name, "saving it"):
        definition.check_can_be_saved(model)
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape[1:]) != (num_classes,):
        raise settings.SettingsError(
            f"--model={name}: gives {shape or type(logits).__name__} for images of "
            f"{list(image_shape)}: must be (None, {num_classes}), a logit for each class"
        )
    last = model.layers[-1] if model.layers else None
    softmax = getattr(last, "activation", None) is keras.activations.softmax
    if softmax or isinstance(last, keras.layers.Softmax):
        raise settings.SettingsError(
            f"--model={name}: ends with a softmax: must give logits, which the loss and the final "
            "model turn into probabilities"
        )
    if not model.trainable_variables:
        raise settings.SettingsError(f"--model={name}: has no trainable weight: must have one")


def _is_library(filename: str) -> bool:
    return filename.startswith(_OURS) or bool(_OTHERS.search(filename))


def faults_in_training(name: str) -> contextlib.AbstractContextManager:
    """Says in one line what a user's model does wrong in training; for our networks nothing."""
    return faults_of(name, "training it") if is_own(name) else contextlib.nullcontext()


@contextlib.contextmanager
def faults_of(name: str, what: str) -> Iterator[None]:
    """Says in one line what went wrong in a user's code, and where."""
    try:
        yield
    except (settings.SettingsError, errors.UserError, OSError):  # which say it themselves
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        own = [frame for frame in frames if not _is_library(frame.filename)]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        if isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "-"):
            where = f"; it is looked for in {os.getcwd()} and where Python finds packages"
        reason = " ".join(str(error).split())[:300]
        raise settings.SettingsError(
            f"--model={name}: {what}: {type(error).__name__}: {reason}{where}"
        ) from error
