"""Any loss function as one loss per example, which is what towers weigh and average.

Only then does the weight of an example multiply its own loss and nothing else, and only then is the
mean over the towers the mean over the global batch.
"""

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from towers.support import checks, noise, structures

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_EXPECTED = "it must give one loss per example, [n] or [n, ...]"
# Keras's LossFunctionWrapper, which it does not export.
_OfFunction = keras.losses.MeanSquaredError.__base__


def of(loss_fn: Loss, name: str = "loss") -> "PerExample":
    """A `PerExample` of a loss function, which may be one already."""
    return loss_fn if isinstance(loss_fn, PerExample) else PerExample(loss_fn, name)


class PerExample:
    """A loss function that gives one loss per example, [n]; all others are refused.

    Further axes, as in [n, height, width], are averaged over.

    Attributes:
      name: of the loss; empty where it has none.
      described: its name with its arguments, as far as they are known; empty likewise.
      is_keras_s: whether it is a loss of Keras's, which takes the labels and outputs of one output.
    """

    def __init__(self, loss_fn: Loss, name: str = "loss"):
        """
        Args:
          loss_fn: (labels [n, ...], outputs [n, ...]) to [n, ...], or a `keras.losses.Loss`, whose
            reduction is left to towers.
          name: what messages call it.

        Raises:
          TypeError: it is not such a function.
          ValueError: it is a Keras loss that sums over examples.
        """
        if isinstance(loss_fn, type) or not callable(loss_fn):
            raise TypeError(
                f"{name} is {checks.described(loss_fn)}: must be a function (labels, outputs) to "
                "one loss per example, such as towers.losses.cross_entropy, an object of "
                "keras.losses.Loss, or Keras's name of one"
            )
        self.name = self.described = ""
        self._name = name
        if not isinstance(loss_fn, keras.losses.Loss) and is_keras_s(loss_fn):
            loss_fn = _OfFunction(loss_fn)  # as `compile` does: with types and axes that fit
        self.is_keras_s = isinstance(loss_fn, keras.losses.Loss)
        self._loss_fn = self._unreduced(loss_fn) if self.is_keras_s else loss_fn
        self._checked = set()  # types and shapes

    def _unreduced(self, loss: keras.losses.Loss) -> keras.losses.Loss:
        if loss.reduction == "sum":
            raise ValueError(
                f"{self._name} is a Keras loss with reduction='sum', but towers average over "
                "examples: leave the reduction out"
            )
        # Not copy.copy, for which Keras saves and loads the loss.
        own = object.__new__(type(loss))
        vars(own).update(vars(loss), reduction="none")
        return own

    def __call__(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """The losses of n examples, float32 or float64 [n].

        Args:
          labels: [n, ...], or a structure of these.
          outputs: of the model, likewise.

        Raises:
          ValueError: there is not one loss per example, or outputs have a mask that it ignores.
        """
        losses = self._losses(labels, outputs)
        self._check(labels, outputs, losses)
        if losses.dtype in (tf.bfloat16, tf.float16):  # whose sums would be rounded
            losses = tf.cast(losses, tf.float32)
        if losses.shape.rank == 1:
            return losses
        return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))

    def _losses(self, labels, outputs) -> tf.Tensor:
        try:
            losses = self._loss_fn(labels, outputs)
        except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
            if self.is_keras_s:
                raise ValueError(
                    f"{self._name} cannot be computed from labels {_shown(labels)} and outputs "
                    f"{_shown(outputs)}: {noise.reason(error)}"
                ) from error
            narrow = _as_narrow(labels, outputs)
            if narrow is None:  # its own traceback says more
                raise
            losses = self._loss_fn(narrow, outputs)
        try:
            return tf.convert_to_tensor(losses)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"{self._name} gives {checks.described(losses)}: {_EXPECTED}"
            ) from error

    def _check(self, labels, outputs, losses: tf.Tensor) -> None:
        """Once for each kind of batch. Called while the step is traced."""
        kind = str([(t.dtype, t.shape) for t in tf.nest.flatten((labels, outputs))])
        if kind in self._checked:
            return
        n = structures.num_examples(labels)
        if not losses.dtype.is_floating:
            raise ValueError(f"{self._name} gives {losses.dtype.name}: losses must be floats")
        if losses.shape.rank is None:
            raise ValueError(f"{self._name} gives a tensor of unknown shape: {_EXPECTED}")
        if losses.shape.rank == 0:
            raise ValueError(f"{self._name} gives one number for {n} examples: {_EXPECTED}")
        shapes = [losses.shape, self._shape_for_twice_as_many(n, labels, outputs)]
        # Of n labels and outputs [n, 1] the difference is [n, n]: its second axis is examples too.
        if [[m * n, *losses.shape[1:]] for m in (1, 2)] != [shape.as_list() for shape in shapes]:
            raise ValueError(
                f"{self._name} gives {shapes[0]} for n={n} and {shapes[1]} for n={2 * n}: "
                f"{_EXPECTED}. Labels are {_shown(labels)}, outputs {_shown(outputs)}: do they "
                "broadcast?"
            )
        self._check_mask(labels, outputs, losses)
        self._check_alone(labels, outputs)
        self._checked.add(kind)

    def _shape_for_twice_as_many(self, n: int, labels, outputs) -> tf.TensorShape:
        def doubled(tensor):
            first, *others = tensor.shape
            return tf.TensorSpec([2 * first, *others], tensor.dtype)

        specs = tf.nest.map_structure(doubled, (labels, outputs))
        traced = tf.function(self._losses, autograph=False)
        try:
            return traced.get_concrete_function(*specs).structured_outputs.shape
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ValueError(
                f"{self._name} takes {n} examples but fails for {2 * n}: it must take any number"
            ) from error

    def _check_mask(self, labels, outputs, losses: tf.Tensor) -> None:
        masked = any(_mask(t) is not None for t in tf.nest.flatten(outputs))
        if masked and (self.is_keras_s or losses.shape.rank > 1):
            raise ValueError(
                f"the model's outputs have a Keras mask, which {self._name} would ignore: give a "
                "function that takes the mean over an example's own unmasked places, [n]"
            )
        if self.is_keras_s:
            dtype = self._loss_fn.dtype
            own = tf.nest.map_structure(lambda t: keras.ops.cast(t, dtype), (labels, outputs))
            losses = self._loss_fn.call(*own)
        if _mask(losses) is not None:
            raise ValueError(
                f"{self._name} leaves places out, as ignore_class does, and Keras then divides by "
                "those of the whole batch that are left: give a function that takes the mean over "
                "an example's own places, [n], or sample_weight 0 to an example"
            )

    def _check_alone(self, labels, outputs) -> None:
        """Refuses a loss of one example that changes with another, as one hidden by a mean does.

        It is computed from made-up examples, where it can be.
        """
        rng = np.random.default_rng(0)

        def made_up(tensor):
            drawn = rng.uniform(0.1, 0.9, [4, *tensor.shape[1:]])
            return np.round(drawn) if tensor.dtype.is_integer else drawn

        like = tf.nest.flatten((labels, outputs))
        values = [made_up(tensor) for tensor in like]
        others = [np.concatenate([value[:3], 1 - value[3:]]) for value in values]

        def of(arrays) -> np.ndarray:
            with tf.init_scope():
                given = [tf.cast(array, t.dtype) for array, t in zip(arrays, like, strict=True)]
                return self._losses(*tf.nest.pack_sequence_as((labels, outputs), given)).numpy()

        try:
            found = of(values), of(others)
        except Exception:  # for such values it may raise anything
            return
        alone, beside_another = (losses[:3].astype(np.float64) for losses in found)
        if not np.allclose(alone, beside_another, rtol=0.02, atol=1e-6, equal_nan=True):
            raise ValueError(
                f"{self._name} gives an example another loss beside other examples: {_EXPECTED}, "
                f"which depends on no other. Labels are {_shown(labels)}, outputs "
                f"{_shown(outputs)}: do they broadcast?"
            )


def plain(function: Loss) -> Loss:
    """The function behind partials of it."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_keras_s(function: Loss) -> bool:
    """Whether it is a function of `keras.losses`, or a partial of one."""
    return (getattr(plain(function), "__module__", None) or "").startswith("keras.")


def _mask(tensor: tf.Tensor):
    return getattr(tensor, "_keras_mask", None)


def _shown(outputs) -> str:
    return ", ".join(str(tensor.shape) for tensor in tf.nest.flatten(outputs))


def _as_narrow(labels: structures.Structure, outputs: structures.Structure):
    """float64 labels, NumPy's default, as float32; None where that would change nothing."""
    types = [{t.dtype for t in tf.nest.flatten(each)} for each in (labels, outputs)]
    if tf.float64 not in types[0] or tf.float64 in types[1]:
        return None
    return tf.nest.map_structure(
        lambda label: tf.cast(label, tf.float32) if label.dtype == tf.float64 else label, labels
    )
