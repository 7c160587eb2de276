"""What a program hands to a Trainer, checked before anything is computed with it.

What is wrong raises a TypeError or a ValueError of one sentence: what was given, by its type and
shape but not its values, and what is expected.
"""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from towers.support import errors, machine

_NOT_COMPILED = re.compile("Detected unsupported operations .*|Trying to access resource .*")

# What Keras's own training calls, and towers do not.
_OF_KERAS_S_TRAINING = ("train_step", "test_step", "compute_loss", "compute_metrics")


def described(value) -> str:
    """A value's type, with its shape, length or keys: `a dict with the keys 'a', 'b'`."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{getattr(value.dtype, 'name', value.dtype)} {list(value.shape)}"
    if isinstance(value, Mapping):
        keys = ", ".join(repr(key) for key in value)
        return f"a {type(value).__name__} with the keys {keys:.80}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return f"{value!r:.60}"
    return f"of type {type(value).__name__}"


def model(given: keras.Model) -> None:
    """Checks that towers can train a model, and ignore nothing of it."""
    if given.compiled:
        raise ValueError(
            "the model is compiled, and a Trainer would ignore what it was compiled with: build "
            "it without compile(), or load it with compile=False"
        )
    own = [name for name in _OF_KERAS_S_TRAINING if _is_overridden(given, name)]
    if own:
        raise ValueError(
            f"the model has {' and '.join(own)} of its own, which a Trainer never calls: "
            "leave it out, or give the loss by add_loss of a layer"
        )
    for layer in given._flatten_layers():
        remat = layer._remat_mode
        is_left_out = (
            remat and remat.mode == "list_of_layers" and layer.name not in remat.layer_names
        )
        if remat and remat.mode != "activations" and not is_left_out:
            raise ValueError(
                f"the layer {layer.name} was made in a keras.RematScope (mode {remat.mode!r}), in "
                "which its weights may get no gradient here: make it outside, and give the Trainer "
                "accumulate_gradients=True to save memory"
            )
    if given.metrics:
        names = ", ".join(repr(metric.name) for metric in given.metrics)
        raise ValueError(
            f"the model's layers have metrics ({names:.80}), whose state a Trainer does not keep: "
            "leave them out"
        )


def _is_overridden(given: keras.Model, name: str) -> bool:
    return getattr(getattr(given, name), "__func__", None) is not getattr(keras.Model, name)


def compiled_deterministically(trained: keras.Model) -> None:
    """Checks that XLA has a deterministic gradient of each of Keras's layers.

    Raises:
      ValueError: names the layer.
    """
    pooling = keras.layers.MaxPooling1D, keras.layers.MaxPooling2D, keras.layers.MaxPooling3D
    for layer in trained._flatten_layers(include_self=False):
        if isinstance(layer, pooling):
            raise ValueError(
                f"the layer {layer.name} is max pooling, which has no deterministic gradient in "
                "XLA; leave one of the two out"
            )


def tell_of_other_devices(
    parts: Mapping[str, Sequence[tf.Variable]], device: str, jit_compile: bool
) -> bool:
    """Logs a warning where variables of a state, but for its counters, are not on its device.

    Returns whether all of them are there; XLA reaches no others.
    """
    more = ", and XLA does not compile the update" if jit_compile else ""
    wanted = tf.DeviceSpec.from_string(device)
    elsewhere = {}
    for part, variables in parts.items():
        for variable in variables if part != "counters" else ():
            spec = tf.DeviceSpec.from_string(variable.device)
            if (spec.device_type, spec.device_index) != (wanted.device_type, wanted.device_index):
                elsewhere.setdefault(f"{spec.device_type}:{spec.device_index}", []).append(part)
    for place, of_parts in elsewhere.items():
        logging.getLogger(__name__).warning(
            "%d variables (%s) are on %s, and each step copies them to %s and back%s: make the "
            "model and the optimizer within `with tf.device(%r):`",
            len(of_parts), ", ".join(sorted(set(of_parts))), place, device, more, device,
        )  # fmt: skip
    return not elsewhere


def device_names(given) -> tuple[str, ...]:
    """The names of towers' devices, which must exist: TensorFlow would take another one."""
    is_list = isinstance(given, (list, tuple)) and len(given) > 0
    if not (is_list and all(isinstance(name, str) for name in given)):
        raise TypeError(
            f"towers is {described(given)}: must be their number, or a list of their devices' names"
        )
    for name in given:
        _check_device(name)
    return tuple(given)


def _check_device(name: str) -> None:
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(f"towers has {name!r}: must be the name of a device") from error
    kind = spec.device_type or "CPU"
    number = machine.num_devices(kind)
    if (spec.device_index or 0) >= number:
        raise ValueError(f"towers has {name!r}: no such device; {kind} devices: {number}")


def weights(given, examples: int, dtype: type, of: str = "") -> np.ndarray:
    """The weights of a batch's examples, [examples], of `dtype`.

    Args:
      given: floats, integers or booleans; not None.
      examples: of the batch.
      dtype: floating.
      of: what has so many examples, for messages.
    """
    weight = np.asarray(given, dtype)
    if weight.shape != (examples,):
        raise ValueError(
            f"sample_weight of shape {list(weight.shape)}: must be one weight per example, "
            f"[{examples}]{of and f', for {of}'}"
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("sample_weight: every weight must be finite and at least 0")
    return weight


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Makes one sentence of XLA's error; a UserError where it cannot compile something."""
    try:
        yield
    except tf.errors.OpError as error:
        found = _NOT_COMPILED.search(error.message)
        if found is None:
            raise
        raise errors.UserError(
            "jit_compile=True: XLA cannot compile this model, its loss or its optimizer: "
            f"{found[0].strip()}"
        ) from error


def scalars(model: keras.Model, model_losses: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """What a model adds to the loss itself; a ValueError where it is one for each example.

    Keras would add them up, and the sum over a microbatch depends on how many examples it has.
    """
    tensors = [tf.convert_to_tensor(loss) for loss in model_losses]
    for loss in tensors:
        if loss.shape.num_elements() != 1:
            raise ValueError(
                f"the model {model.name} adds a loss of shape {loss.shape} (add_loss, or a "
                "regularizer): must be one number, such as the mean over the examples"
            )
    return [tf.reshape(loss, []) if loss.shape.rank else loss for loss in tensors]


def choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Checks that a value is one of those allowed; else a ValueError names them."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
