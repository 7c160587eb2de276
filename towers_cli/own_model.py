"""The network that `--model` names: the package's, keras.applications', or the user's own."""

import contextlib
import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator

import keras

from towers import errors, networks
from towers.runs import definition
from towers_cli import settings


def network(name: str) -> networks.Network:
    """The network of a `--model`."""
    if name in networks.NETWORKS:
        return networks.NETWORKS[name]
    module_name, _, function_name = name.partition(":")
    if not function_name:
        if not hasattr(keras.applications, name):
            raise settings.SettingsError(f"--model={name}: keras.applications has no such network")
        function, preprocessing = functools.partial(_application, name), "random_resized_crop"
    else:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # at the end: no file there takes a package's place
        with faults_of(name, "importing it"):
            module = importlib.import_module(module_name)
        function, preprocessing = getattr(module, function_name, None), "pad_crop_flip"
        if not callable(function):
            raise settings.SettingsError(f"--model={name}: {module.__file__} has no such function")
    build = functools.partial(_build, name, function)
    return networks.Network(build, 0.0, "kernels", preprocessing)


def _application(name: str, image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """A network of keras.applications."""
    function = getattr(keras.applications, name)
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


def _build(name: str, function: Callable, image_shape, num_classes, policy, seed) -> keras.Model:
    """The `build` of a `networks.Network`; refuses what cannot be trained as a classifier."""
    before = keras.config.dtype_policy()
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy)
    try:
        with faults_of(name, "building it"):
            model = function(image_shape, num_classes)
            if isinstance(model, keras.Model) and not model.built:
                model(keras.ops.zeros((1, *image_shape)))
            problem = _problem(model, image_shape, num_classes)
    finally:
        keras.config.set_dtype_policy(before)
    if problem:
        raise settings.SettingsError(f"--model={name}: {problem}")
    return model


def _problem(model, image_shape: tuple[int, int, int], num_classes: int) -> str:
    """Why a model cannot be trained as a classifier, in words; "" where it can."""
    if not isinstance(model, keras.Model):
        return f"returned a {type(model).__name__}: must be a Keras model"
    logits = model.compute_output_spec(keras.KerasTensor((None, *image_shape), dtype="float32"))
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape[1:]) != (num_classes,):
        return f"gives {shape or logits}: must be (None, {num_classes}), a logit for each class"
    last = model.layers[-1] if model.layers else None
    softmax = getattr(last, "activation", None) is keras.activations.softmax
    if softmax or isinstance(last, keras.layers.Softmax):
        return "ends with a softmax: must give logits"
    if not model.trainable_variables:
        return "has no trainable weight: must have one"
    definition.describe_model(model)
    return ""


def faults_in_training(name: str) -> contextlib.AbstractContextManager:
    """Says in one line what a user's model does wrong in training; for our networks nothing."""
    is_ours = name in networks.NETWORKS
    return contextlib.nullcontext() if is_ours else faults_of(name, "training it")


@contextlib.contextmanager
def faults_of(name: str, what: str) -> Iterator[None]:
    """Says in one line what went wrong in a user's code, and where."""
    try:
        yield
    except (settings.SettingsError, errors.UserError, OSError):  # which say it themselves
        raise
    except (Exception, SystemExit) as error:
        where, file = "", f"{name.partition(':')[0].replace('.', os.sep)}.py"
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.endswith(os.sep + file):
                where = f" ({frame.filename}, line {frame.lineno})"
        reason = " ".join(str(error).split())[:300]
        raise settings.SettingsError(
            f"--model={name}: {what}: {type(error).__name__}: {reason}{where}"
        ) from error
