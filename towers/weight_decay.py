"""Weight decay as a term of the loss: which weights decay, and Keras's regularizer for each."""

from collections.abc import Sequence

import keras


def kernels(model: keras.Model) -> list[keras.Variable]:
    """All weights that Keras calls a kernel: not biases, batch norm's scales or embeddings."""
    return [v for v in model.trainable_variables if v.name.endswith("kernel")]


def hidden_dense_kernels(model: keras.Model) -> list[keras.Variable]:
    """The kernels of all dense layers but the last, as in the tutorial, unless they are frozen."""
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    trained = {id(weight) for weight in model.trainable_variables}
    return [layer.kernel for layer in dense[:-1] if id(layer.kernel) in trained]


def regularize(decayed: Sequence[keras.Variable], coefficient: float) -> None:
    """Adds `coefficient * sum(w ** 2) / 2` of each weight to the loss.

    The gradient of this term is `coefficient * w`.
    `model.losses` then holds the terms, as the collection `losses` did in TensorFlow's tutorial.

    Args:
      decayed: weights of a model that is not compiled yet.
      coefficient: at least 0; with 0 nothing changes.

    Raises:
      ValueError: a weight has a regularizer already.
    """
    for weight in decayed if coefficient else ():
        if weight.regularizer is not None:
            raise ValueError(
                f"weight_decay={coefficient}: {weight.path} has a regularizer of its own; must be 0"
            )
        weight.regularizer = keras.regularizers.L2(coefficient / 2)
