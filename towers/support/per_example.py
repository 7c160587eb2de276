"""Any loss function as one loss per example, which is what towers weigh and average.

Only then does the weight of an example multiply its own loss and nothing else, and is the mean over
the towers the mean over the global batch.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from towers.support import checks, structures

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_EXPECTED = "it must give one loss per example, [n] or [n, ...]"


def of(loss_fn: Loss, name: str = "loss") -> "PerExample":
    """A `PerExample` of a loss function, which may be one already."""
    return loss_fn if isinstance(loss_fn, PerExample) else PerExample(loss_fn, name)


class PerExample:
    """A loss function that gives one loss per example, [n]; every other one is refused.

    What has more axes than examples, such as [n, height, width], becomes its mean over these.

    Attributes:
      is_keras_s: whether it is a loss of Keras's, which takes the labels and outputs of one output.
    """

    def __init__(self, loss_fn: Loss, name: str = "loss"):
        """
        Args:
          loss_fn: (labels [n, ...], outputs [n, ...]) to [n, ...], or a `keras.losses.Loss`, whose
            reduction is left to towers.
          name: what messages call it.

        Raises:
          TypeError: it is no such function.
          ValueError: it is a Keras loss that sums over examples.
        """
        if isinstance(loss_fn, type) or not callable(loss_fn):
            raise TypeError(
                f"{name} is {checks.described(loss_fn)}: must be a function (labels, outputs) to "
                "one loss per example, such as towers.losses.cross_entropy, an object of "
                "keras.losses.Loss, or Keras's name of one"
            )
        self._name = name
        self._is_loss = isinstance(loss_fn, keras.losses.Loss)
        of_keras = getattr(loss_fn, "__module__", "").startswith("keras.")
        self.is_keras_s = self._is_loss or (of_keras and hasattr(loss_fn, "__name__"))
        self._loss_fn = self._unreduced(loss_fn) if self._is_loss else loss_fn
        self._checked = set()  # types and shapes

    def _unreduced(self, loss: keras.losses.Loss) -> keras.losses.Loss:
        if loss.reduction == "sum":
            raise ValueError(
                f"{self._name} is a Keras loss with reduction='sum', and towers average over "
                "examples: leave the reduction out"
            )
        # Not copy.copy, for which Keras saves and loads the loss.
        own = object.__new__(type(loss))
        vars(own).update(vars(loss), reduction="none")
        return own

    def __call__(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """The losses of n examples, floating [n].

        Args:
          labels: [n, ...], or a structure of such.
          outputs: of the model, likewise.

        Raises:
          ValueError: there is not one loss per example, or outputs have a mask that is not heeded.
        """
        losses = self._losses(labels, outputs)
        self._check(labels, outputs, losses)
        if losses.shape.rank == 1:
            return losses
        if losses.dtype in (tf.bfloat16, tf.float16):
            losses = tf.cast(losses, tf.float32)
        return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))

    def _losses(self, labels, outputs) -> tf.Tensor:
        losses = self._loss_fn(labels, outputs)
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
            raise ValueError(f"{self._name} gives {losses.dtype.name}: losses must be floating")
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
        self._check_mask(outputs, losses)
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
                f"{self._name} takes {n} examples and fails for {2 * n}: it must take any number"
            ) from error

    def _check_mask(self, outputs, losses: tf.Tensor) -> None:
        masked = any(getattr(t, "_keras_mask", None) is not None for t in tf.nest.flatten(outputs))
        if masked and (self.is_keras_s or losses.shape.rank > 1):
            raise ValueError(
                f"the model's outputs have a Keras mask, which {self._name} would not heed: give a "
                "function that takes the mean over an example's own unmasked places, [n]"
            )


def _shown(outputs) -> str:
    return ", ".join(str(tensor.shape) for tensor in tf.nest.flatten(outputs))
