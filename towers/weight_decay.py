"""Weight decay as a term of the loss: which weights decay, and a Keras regularizer for each."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf


def kernels(model: keras.Model) -> list[keras.Variable]:
    """All weights that Keras calls a kernel: not biases, batch norm's scales or embeddings."""
    return [v for v in model.trainable_variables if v.name.endswith("kernel")]


def hidden_dense_kernels(model: keras.Model) -> list[keras.Variable]:
    """The kernels of all dense layers but the last, as in the tutorial, unless they are frozen."""
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    trained = {id(weight) for weight in model.trainable_variables}
    return [layer.kernel for layer in dense[:-1] if id(layer.kernel) in trained]


# Which weights decay. Biases and batch-norm scales never do.
FILTERS: dict[str, Callable[[keras.Model], list[keras.Variable]]] = {
    "kernels": kernels,
    "hidden_dense_kernels": hidden_dense_kernels,
}


@keras.saving.register_keras_serializable(package="towers")
class Decay(keras.regularizers.Regularizer):
    """The term `coefficient * sum(w ** 2) / 2` of the loss, whose gradient is `coefficient * w`.

    That is `keras.regularizers.L2(coefficient / 2)` by an operation of its own, which reads a
    weight once forward and once backward.
    """

    def __init__(self, coefficient: float, added_to: keras.regularizers.Regularizer | None = None):
        """
        Args:
          coefficient: at least 0.
          added_to: another regularizer of the weight.
        """
        self.coefficient, self._added_to = coefficient, added_to

    def __call__(self, weight):
        """The term for a weight of any shape, a scalar of its type."""
        weight = keras.ops.convert_to_tensor(weight)
        term = tf.cast(self.coefficient, weight.dtype) * tf.nn.l2_loss(weight)
        return term if self._added_to is None else self._added_to(weight) + term

    def get_config(self) -> dict:
        """What Keras makes it from."""
        return {"coefficient": self.coefficient, "added_to": self._added_to}


def regularize(decayed: Sequence[keras.Variable], coefficient: float) -> None:
    """Gives weights a `Decay`, beside what they have.

    `model.losses` then holds the terms, as the collection `losses` did in TensorFlow's tutorial.

    Args:
      decayed: weights of a model that is not compiled yet.
      coefficient: at least 0; with 0 nothing changes.
    """
    for weight in decayed if coefficient else ():
        weight.regularizer = Decay(coefficient, added_to=weight.regularizer)
