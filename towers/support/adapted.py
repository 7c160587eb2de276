"""Normalization layers, which keep what they learned of data twice: as variables and as constants.

Graphs have the constants, and checkpoints and copies the variables.
"""

from collections.abc import Iterator

import keras
import numpy as np


def _layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Normalization]:
    adapts = isinstance(layer, keras.layers.Normalization) and layer.input_mean is None
    if adapts and layer.built:
        yield layer
    for inner in getattr(layer, "layers", ()):
        yield from _layers(inner)


def refresh(model: keras.Model) -> None:
    """Makes the constants anew from the variables, which were assigned; before a graph is built."""
    for layer in _layers(model):
        layer.finalize_state()


def stale(model: keras.Model) -> list[str]:
    """Names of the layers whose constants, which a graph may have, are not their variables'."""
    return [layer.name for layer in _layers(model) if not _agree(layer)]


def _agree(layer: keras.layers.Normalization) -> bool:
    pairs = ((layer.mean, layer.adapt_mean), (layer.variance, layer.adapt_variance))
    return all(
        np.array_equal(np.ravel(constant), np.ravel(keras.ops.cast(variable, constant.dtype)))
        for constant, variable in pairs
    )
