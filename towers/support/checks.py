"""What a program hands to a Trainer, checked before anything is computed with it.

What is wrong raises a TypeError or a ValueError of one sentence: what was given, by its type and
shape but not its values, and what is expected.
"""

import contextlib
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from towers.support import adapted, errors, machine, structures

_NOT_COMPILED = re.compile("Detected unsupported operations .*|Trying to access resource .*")
_LABEL_OUT_OF_RANGE = re.compile(r"label value of (-?\d+) which is outside .*\[0, (\d+)\)")

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


def model(given, example_inputs: structures.Structure | None) -> None:
    """Checks that towers can train a model, and ignore nothing of it; builds it, if need be."""
    if not isinstance(given, keras.Model):
        raise TypeError(f"model is {described(given)}: must be a keras.Model")
    if not given.built and example_inputs is not None:
        if not all(hasattr(part, "shape") for part in tf.nest.flatten(example_inputs)):
            raise TypeError("example_inputs: must be an array, or a structure of arrays")
        try:
            given(tf.nest.map_structure(tf.convert_to_tensor, example_inputs))
        except (AttributeError, LookupError, TypeError, ValueError, tf.errors.OpError) as error:
            raise ValueError(f"the model cannot be called on example_inputs: {error}") from error
    if not given.built:
        raise ValueError(
            "the model is not built: give the Trainer example_inputs, such as x[:1], or the model "
            "a keras.Input"
        )
    if given.compiled:
        raise ValueError(
            "the model is compiled, and a Trainer would ignore what it was compiled with: build "
            "it without compile(), or load it with compile=False, and give the Trainer the "
            "optimizer and the loss"
        )
    own = [name for name in _OF_KERAS_S_TRAINING if _is_overridden(given, name)]
    if own:
        raise ValueError(
            f"the model has {' and '.join(own)} of its own, which a Trainer never calls: give the "
            "loss as `loss`, or by add_loss of a layer"
        )
    for variable in given.variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                f"the model's variable {variable.path} is overwritten with its gradient, as those "
                "of float8 layers are, and towers would average it: leave out quantize('float8')"
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


def optimizer(given, trained: keras.Model, learning_rate) -> None:
    """Checks that an optimizer does in a Trainer, with a model, what it says."""
    if not isinstance(given, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is {described(given)}: must be a Keras optimizer, such as "
            "keras.optimizers.SGD(0.1)"
        )
    if learning_rate is not None and not callable(learning_rate):
        raise TypeError(
            f"learning_rate is {described(learning_rate)}: must be a function from the examples "
            "seen to the rate; give a constant rate to the optimizer"
        )
    if learning_rate is not None and not hasattr(getattr(given, "learning_rate", None), "assign"):
        if isinstance(given, keras.optimizers.MultiOptimizer):
            raise ValueError(
                "learning_rate is given, but a MultiOptimizer has a rate for each of its "
                "optimizers; leave out learning_rate"
            )
        raise ValueError(
            "learning_rate is given, but the optimizer has a schedule of its own; give one of them"
        )
    _check_averages(given)
    factor = given.loss_scale_factor
    if factor is not None and not 0 < factor < math.inf:
        raise ValueError(f"loss_scale_factor={factor}: must be finite and above 0")
    is_scaled = factor is not None or isinstance(given, keras.optimizers.LossScaleOptimizer)
    narrow = [layer.name for layer in layers(trained) if layer.compute_dtype == "float16"]
    if narrow and not is_scaled:
        raise ValueError(
            f"layer {narrow[0]!r} computes in float16, where small gradients become 0: wrap the "
            "optimizer in keras.optimizers.LossScaleOptimizer"
        )


def _check_averages(given: keras.optimizers.Optimizer) -> None:
    inner = [given, getattr(given, "inner_optimizer", None), *getattr(given, "optimizers", [])]
    for one in inner:
        if getattr(one, "use_ema", False) and not one.ema_overwrite_frequency:
            raise ValueError(
                "the optimizer has use_ema, whose averages Keras's fit puts into the weights at "
                "its end, and a Trainer does not: give moving_average_decay instead"
            )


def layers(given: keras.Model) -> list[keras.layers.Layer]:
    """A model's layers, with those within layers, and the model itself."""
    return list(given._flatten_layers())


class Trainable:
    """Which of a model's layers and variables can be trained, as it was when this was made."""

    def __init__(self, trained: keras.Model):
        self._of = [*layers(trained), *trained.variables]
        self._then = [one.trainable for one in self._of]

    def check(self) -> None:
        """Raises a ValueError if that has changed since: the step is built for what it was."""
        if [one.trainable for one in self._of] == self._then:  # every step comes here
            return
        changed = [
            one for one, then in zip(self._of, self._then, strict=True) if one.trainable != then
        ]
        names = ", ".join(one.path or one.name for one in changed[:3])
        done = "unfrozen" if changed[0].trainable else "frozen"
        raise ValueError(
            f"{names}: {done} after the Trainer was made, which still trains what it was made for; "
            "make a new Trainer"
        )


def integer(name: str, value) -> None:
    """Checks that a value is an integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {described(value)}: must be an integer")


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


def parameter_device(device: str | None, host: str, num_workers: int) -> str:
    """The name of the parameters' device, which must exist; the host's if None."""
    if not isinstance(device, str | None):
        raise TypeError(f"parameter_device is {described(device)}: must be the name of a device")
    device = host if device is None else _device("parameter_device", device)
    if num_workers > 1 and device != host:
        raise ValueError(
            f"parameter_device={device}: must be {host} with several workers, which exchange their "
            "gradients there"
        )
    return device


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
        _device("towers", name)
    return tuple(given)


def _device(argument: str, name: str) -> str:
    """Its kind and number, such as `/CPU:0`."""
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(f"{argument} has {name!r}: must be the name of a device") from error
    kind = spec.device_type or "CPU"
    number = machine.num_devices(kind)
    if (spec.device_index or 0) >= number:
        raise ValueError(f"{argument} has {name!r}: no such device; {kind} devices: {number}")
    return f"/{kind}:{spec.device_index or 0}"


def batches(given) -> Iterator:
    """The iterator over what must be batches."""
    if not isinstance(given, (str, bytes, Mapping)) and not hasattr(given, "shape"):
        try:
            return iter(given)
        except TypeError:
            pass
    raise TypeError(
        f"batches is {described(given)}: must be a list, a generator or a tf.data.Dataset of "
        "(inputs, labels) or (inputs, labels, sample_weight)"
    )


def steps(given) -> None:
    """Checks the number of steps of a `fit`, where people may give labels instead."""
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 0:
        raise TypeError(
            f"steps is {described(given)}: must be a number of steps or None; give inputs and "
            "labels together, as fit([(inputs, labels)])"
        )


def batch(
    given, trained: keras.Model | None = None
) -> tuple[structures.Structure, structures.Structure, object]:
    """A batch's inputs and labels as tensors, and its sample_weight; None where it has none.

    With a model, the inputs must be those that it takes.
    """
    given = parts_of(given)
    inputs, labels = tensors("inputs", given[0]), tensors("labels", given[1])
    n = structures.num_examples(inputs)
    for name, part in (("inputs", inputs), ("labels", labels)):
        for place, one in _leaves(name, part):
            if one.shape[0] != n:
                first = _leaves("inputs", inputs)[0][0]
                raise ValueError(f"{n} {first}, but {one.shape[0]} {place}")
    if trained is not None:
        inputs_fit(trained, inputs)
    return inputs, labels, given[2] if len(given) == 3 else None


def parts_of(batch) -> tuple:
    """A batch's inputs, labels and, where there is one, sample_weight, as they are."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(
            f"a batch is {described(batch)}: must be (inputs, labels) or "
            "(inputs, labels, sample_weight)"
        )
    return tuple(batch)


def _leaves(name: str, given: structures.Structure) -> list[tuple[str, tf.Tensor]]:
    """Each tensor with the place that messages name it by: `inputs['a']`."""
    if isinstance(given, Mapping):
        pairs = given.items()
    elif isinstance(given, (tuple, list)):
        pairs = enumerate(given)
    else:
        return [(name, given)]
    return [leaf for key, one in pairs for leaf in _leaves(f"{name}[{key!r}]", one)]


def tensors(name: str, given) -> structures.Structure:
    """Inputs or labels as tensors [n, ...]: one, or a dict, tuple or list of them."""
    if isinstance(given, Mapping) and given:
        return {key: tensors(f"{name}[{key!r}]", one) for key, one in given.items()}
    if isinstance(given, (list, tuple)) and any(
        hasattr(one, "shape") and one.shape or isinstance(one, Mapping) for one in given
    ):
        made = [tensors(f"{name}[{place}]", one) for place, one in enumerate(given)]
        return made if isinstance(given, list) else tuple(made)
    if not isinstance(given, (Mapping, str, bytes)) and given is not None:
        try:
            made = tf.convert_to_tensor(given)
        except (ValueError, TypeError):  # it may say all values
            made = None
        if made is not None and made.shape.rank:
            return made
    raise TypeError(
        f"{name}: {described(given)}; must be an array or a tensor [n, ...], or a dict, tuple or "
        "list of these"
    )


def inputs_fit(trained: keras.Model, inputs: structures.Structure) -> None:
    """Checks that the arrays are those that the model's graph takes, where it has one.

    Raises:
      ValueError: they differ in number, name or shape.
    """
    is_sequential = isinstance(trained, keras.Sequential)
    taken = trained.inputs[0] if is_sequential else getattr(trained, "_inputs_struct", None)
    if taken is None:  # of your own class
        return
    specs, given = tf.nest.flatten(taken), tf.nest.flatten(inputs)
    several = structures.is_of_several(inputs)
    same_kind = structures.is_of_several(taken) == several or len(specs) == 1 and not several
    by_name = isinstance(inputs, Mapping)
    names = set(taken) if isinstance(taken, Mapping) else {spec.name for spec in specs}
    if (
        not same_kind
        or len(specs) != len(given)
        or by_name
        and names != set(inputs)
        or several
        and not by_name
        and isinstance(taken, Mapping)
    ):
        raise ValueError(f"inputs: {described(inputs)}; the model takes {_shown(taken)}")
    if by_name and not isinstance(taken, Mapping):
        given = [inputs[spec.name] for spec in specs]
    for spec, tensor in zip(specs, given, strict=True):
        if not _fits(spec.shape[1:], tensor.shape[1:]):
            raise ValueError(
                f"inputs: {described(tensor)}; the model takes "
                f"[n, {', '.join('any' if d is None else str(d) for d in spec.shape[1:])}]"
                + (f" for {spec.name!r}" if len(specs) > 1 else "")
            )


def _fits(taken: Sequence[int | None], given: Sequence[int | None]) -> bool:
    """As Keras fits them: an axis of length 1 at the end may be missing or one too many."""
    for own in (given, [*given, 1], given[:-1] if given[-1:] == [1] else given):
        if len(own) == len(taken) and all(a in (None, b) for a, b in zip(taken, own, strict=True)):
            return True
    return False


def _shown(taken: structures.Structure) -> str:
    if isinstance(taken, Mapping):
        return f"a dict with the keys {', '.join(map(repr, taken))}"
    return f"a list of {len(taken)}" if structures.is_of_several(taken) else "one array"


def by_output(given: Mapping | Sequence) -> dict:
    """What is given for each output, by its name or by its place."""
    return dict(given) if isinstance(given, Mapping) else dict(enumerate(given))


def outputs_by_name(trained: keras.Model, outputs: structures.Structure) -> dict[str, tf.Tensor]:
    """A model's outputs by name: the keys of a dict, else what Keras calls them."""
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    else:
        several = list(outputs) if structures.is_of_several(outputs) else [outputs]
        if isinstance(trained, keras.Sequential):
            names = [trained.layers[-1].name]
        else:
            names = getattr(trained, "output_names", None) or []
        if len(set(names)) != len(several):
            names = [f"output_{place}" for place in range(len(several))]
        named = dict(zip(names, several, strict=True))
    if nested := [name for name, one in named.items() if structures.is_of_several(one)]:
        raise ValueError(
            f"the model's output {nested[0]!r} is {described(named[nested[0]])}: a loss by output "
            "needs one tensor each; give one function of all labels and outputs"
        )
    return named


def by_output_s_name(name: str, given, outputs: structures.Structure, names: Sequence[str]) -> dict:
    """What was given for the outputs, by their names.

    Args:
      name: of the argument.
      given: a dict by name, or a list in the order of the outputs; labels may be one tensor.
      outputs: of the model.
      names: of the outputs, in order.

    Raises:
      ValueError: a list is longer or shorter, or the outputs have no order, as those in a dict.
    """
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (tuple, list)):
        if isinstance(outputs, Mapping) and len(names) > 1:
            raise ValueError(
                f"{name} is {described(given)}, and the model's outputs a dict with the keys "
                f"{', '.join(map(repr, names))}: give a dict, too"
            )
        if len(given) != len(names):
            raise ValueError(
                f"{name} is {described(given)}, and the model has "
                f"{len(names)} output{'s' * (len(names) > 1)}, {', '.join(map(repr, names))}"
            )
        return dict(zip(names, given, strict=True))
    return {names[0]: given} if len(names) == 1 else {}


def labels_of(labels: structures.Structure, outputs, names: Sequence[str], name: str) -> tf.Tensor:
    """The labels of the output called `name`; the other arguments as in `by_output_s_name`."""
    found = by_output_s_name("labels", labels, outputs, names).get(name)
    if found is None or structures.is_of_several(found):
        raise ValueError(
            f"labels: {described(labels)}; there are none for the model's output {name!r}"
        )
    return found


class LabelsOfOneKind:
    """Checks that labels stay what they were in the first batch: what is built depends on it."""

    def __init__(self):
        self._kind = self._shown = None

    def check(self, labels: structures.Structure) -> None:
        """Raises a ValueError if they are of another type, structure or number of axes."""
        kind = tf.nest.map_structure(
            lambda own: (
                own.dtype.is_integer or own.dtype.name,
                own.shape.rank,
                own.shape.rank > 1 and own.shape[-1] == 1,
            ),
            labels,
        )
        if self._kind is None:
            self._kind, self._shown = kind, described(labels)
        if kind != self._kind:
            raise ValueError(
                f"labels: {described(labels)}, and they were {self._shown} before: a Trainer "
                "evaluates labels of one kind"
            )


def number(name: str, value, below: float = math.inf) -> None:
    """Checks a finite number that is at least 0, and below another."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {described(value)}: must be a number")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value}: must be finite and at least 0")
    if value >= below:
        raise ValueError(f"{name}={value}: must be below {below}")


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


def without_weight_0(labels: structures.Structure, weight=None) -> structures.Structure:
    """The labels, with 0 in place of those of weight 0: what stands there leaves no trace.

    Args:
      labels: [n, ...], or a structure of these.
      weight: [n], as `weights` takes them; None for no weights.
    """
    if weight is None or (weight := weights(weight, structures.num_examples(labels), bool)).all():
        return labels

    def counted(own: tf.Tensor) -> tf.Tensor:
        is_counted = tf.reshape(weight, [-1] + [1] * (len(own.shape) - 1))
        return tf.where(is_counted, own, tf.zeros_like(own))

    return tf.nest.map_structure(counted, labels)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Makes one sentence of TensorFlow's error for a label without an output, and of XLA's.

    Raises:
      ValueError: a label has no output; found on CPUs.
      UserError: XLA cannot compile something.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if found := _LABEL_OUT_OF_RANGE.search(error.message):
            label, num_classes = found.groups()
            raise ValueError(
                f"a label is {label}: the model has {num_classes} outputs, for labels from 0 to "
                f"{int(num_classes) - 1}"
            ) from error
        if found := _NOT_COMPILED.search(error.message):
            raise errors.UserError(
                "jit_compile=True: XLA cannot compile this model, its loss or its optimizer: "
                f"{found[0].strip()}"
            ) from error
        raise


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


def copy_of(model: keras.Model) -> keras.Model:
    """A copy with weights of its own; a ValueError where Keras cannot make one."""
    try:
        copy = keras.models.clone_model(model)
        if not copy.built:
            copy.build_from_config(model.get_build_config())
    except (NotImplementedError, TypeError, ValueError) as error:
        if type(model).__module__.startswith("keras."):
            raise ValueError(f"Keras cannot copy the model: {error}") from error
        raise ValueError(
            f"Keras cannot copy the model: a subclass such as {type(model).__name__} needs a "
            "get_config with all arguments of its constructor"
        ) from error
    if [v.shape for v in copy.variables] != [v.shape for v in model.variables]:
        raise ValueError(
            f"Keras's copy of the model has other variables: get_config of {type(model).__name__} "
            "must give all arguments of its constructor"
        )
    adapted.copy_vocabularies(model, copy)
    return copy
