"""How far the microbatches' batch-norm statistics are apart, where each keeps its own."""

import itertools
from collections.abc import Sequence

import keras
import numpy as np

from towers import model_state


def divergence(model: keras.Model, statistics: Sequence) -> dict[str, dict[str, float]]:
    """How far apart the statistics are that `each` keeps for every microbatch.

    For a layer's moving means m and variances v, [M, features], averaged over the features, with
    the standard deviation s and the mean over the M microbatches:

        moving_mean:     sqrt(mean(s(m) ** 2 / mean(v)))        in standard deviations of a feature
        moving_variance: sqrt(mean(s(v) ** 2 / mean(v) ** 2))   relative

    Args:
      model: its batch-norm layers.
      statistics: [M, ...] for each variable of `model_state.kept_apart`; none but for `each`.

    Returns:
      Batch-norm layer to its two figures; 0 where the microbatches agree.
    """
    if not statistics:
        return {}
    variables = [model.non_trainable_variables[index] for index in model_state.kept_apart(model)]
    kept = [
        (v.path, np.asarray(values, np.float64))
        for v, values in zip(variables, statistics, strict=True)
    ]
    figures = {}
    # Keras keeps a layer's variance next to its mean.
    for (path, means), (next_path, variances) in itertools.pairwise(kept):
        layer = path.removesuffix("/moving_mean")
        if (path, next_path) != (f"{layer}/moving_mean", f"{layer}/moving_variance"):
            continue
        scale = variances.mean(axis=0)  # [features]
        name = layer if layer not in figures else f"{layer}_{len(figures)}"  # of another submodel
        figures[name] = {
            "moving_mean": _root_mean(means.var(axis=0), scale),
            "moving_variance": _root_mean(variances.var(axis=0), scale**2),
        }
    return figures


def _root_mean(spread: np.ndarray, scale: np.ndarray) -> float:
    """`sqrt(mean(spread / scale))`; a feature that does not vary counts as 0."""
    ratio = np.divide(spread, scale, out=np.zeros_like(spread), where=scale > 0)
    return float(np.sqrt(np.mean(ratio)))
