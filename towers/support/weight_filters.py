"""Which of a model's weights decay."""

from collections.abc import Callable

import keras


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


def layer_name(variable: keras.Variable) -> str:
    """The name of a variable's layer: `cifarnet/local3/kernel` gives `local3`.

    Of a variable that a layer made in its constructor, Keras knows only the variable's own name.
    """
    return variable.path.split("/")[-2:][0]


def places(model: keras.Model, decayed: list[keras.Variable]) -> dict[str, int]:
    """The name of each weight's layer to its place in `model.trainable_variables`."""
    index_of = {id(weight): index for index, weight in enumerate(model.trainable_variables)}
    names = [layer_name(weight) for weight in decayed]
    indices = [index_of[id(weight)] for weight in decayed]
    # Layers of different submodels may share a name; each still decays, under a name of its own.
    return {
        name if names.count(name) == 1 else f"{name}/{index}": index
        for name, index in zip(names, indices, strict=True)
    }
