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

from towers import errors, networks, weight_decay
from towers.runs import definition
from towers_cli import settings


def network(name: str) -> networks.Network:
    """The network of a `--model`."""
    if name in networks.NETWORKS:
        return networks.NETWORKS[name]
    module_name, _, function_name = name.rpartition(":")
    if module_name and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end: no file there takes a package's place
    with errors_explained(name, "importing it"):
        module = importlib.import_module(module_name or "keras.applications")
        function, preprocessing = getattr(module, function_name), "pad_crop_flip"
    if not module_name:
        function, preprocessing = functools.partial(_application, function), "random_resized_crop"
    build = functools.partial(_build, name, function)
    return networks.Network(build, 0.0, weight_decay.kernels, preprocessing)


def _application(
    function: Callable, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    options = {"input_shape": image_shape, "classes": num_classes, "weights": None}
    if "include_preprocessing" in inspect.signature(function).parameters:
        options["include_preprocessing"] = False  # the images are prepared already
    model = function(classifier_activation=None, **options)
    scaling = (keras.layers.Rescaling, keras.layers.Normalization)
    if any(isinstance(layer, scaling) for layer in model.layers):
        raise ValueError("the model scales raw pixels itself: choose one that does not")
    return model


def _build(name: str, function: Callable, image_shape, num_classes, policy, seed) -> keras.Model:
    """The `build` of a `networks.Network`; refuses what cannot be trained as a classifier."""
    before = keras.config.dtype_policy()
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy)
    try:
        with errors_explained(name, "building it"):
            model = function(image_shape, num_classes)
            _check(model, image_shape, num_classes)
            definition.describe_model(model)
    finally:
        keras.config.set_dtype_policy(before)
    return model


def _check(model, image_shape: tuple[int, int, int], num_classes: int) -> None:
    """Refuses, with a ValueError, what cannot be trained as a classifier that gives logits."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"must return a Keras model, but returned a {type(model).__name__}")
    if not model.built:
        model.build((None, *image_shape))
    logits = model.compute_output_spec(keras.KerasTensor((None, *image_shape), dtype="float32"))
    shape = getattr(logits, "shape", None)
    if shape is None or tuple(shape[1:]) != (num_classes,):
        wanted = f"(None, {num_classes}), a logit for each class"
        raise ValueError(f"the model gives {shape or logits}: must be {wanted}")
    last = model.layers[-1] if model.layers else None
    softmax = getattr(last, "activation", None) is keras.activations.softmax
    if softmax or isinstance(last, keras.layers.Softmax):
        raise ValueError("the model ends with a softmax: must give logits")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weight: must have one")


@contextlib.contextmanager
def errors_explained(name: str, task: str) -> Iterator[None]:
    """Makes a SettingsError of an error in a user's model, with the line of its module."""
    try:
        yield
    except (settings.SettingsError, errors.UserError, OSError):  # which say it themselves
        raise
    except (Exception, SystemExit) as error:
        if name in networks.NETWORKS:
            raise
        line, module = "", f"{name.partition(':')[0].replace('.', os.sep)}.py"
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.endswith(os.sep + module):
                line = f" ({frame.filename}, line {frame.lineno})"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise settings.SettingsError(f"--model={name}: {task}: {reason}{line}") from error
