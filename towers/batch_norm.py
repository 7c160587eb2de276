"""The model's state that is not trained: batch-norm statistics and random layers' counters.

Every microbatch starts a step from the same state and brings back its own new one. A named policy
says how the new ones become the one state that is kept:

- `mean` averages them; `first` and `last` take one microbatch's and forget the others'.
- `each` keeps them apart as well: every microbatch goes on from its own, as k independent replicas
  would, so that their divergence can be watched. The model holds their mean.

Under Keras's MirroredStrategy every replica keeps its own statistics, and reading them shows those
of the first. docs/batch_norm.md has what was measured.
"""

import itertools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from towers import gradients

POLICIES = ("mean", "first", "last", "each")
DRAWS_PER_MICROBATCH = 2**16  # more than the calls of a random layer in one forward pass


def is_draw_counter(variable: keras.Variable) -> bool:
    """Whether a variable is the seed and counter of a random layer such as Dropout."""
    return variable.name == "seed_generator_state"


def with_draw_index(
    model: keras.Model, state: Sequence[tf.Tensor], draw_index: tf.Tensor
) -> list[tf.Tensor]:
    """The state with each random layer's (seed, counter), int [2], moved on by `draw_index`.

    The counter moves, not the seed: layers of seeds 1 and 2 would share their draws otherwise. A
    draw is then a function of the layer's seed, the step and the microbatch, and of nothing else.
    """
    return [
        value + tf.stack([tf.zeros_like(value[0]), _first_count(draw_index, value.dtype)])
        if is_draw_counter(variable)
        else value
        for variable, value in zip(model.non_trainable_variables, state, strict=True)
    ]


def _first_count(draw_index: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(draw_index, dtype) * DRAWS_PER_MICROBATCH


def combine(
    model: keras.Model, tower_states: Sequence[Sequence[tf.Tensor | None]], policy: str
) -> list[tf.Tensor | None]:
    """Makes one state of the microbatches' states.

    Args:
      model: names the state's variables.
      tower_states: `tower_states[t][v]`, [microbatches of tower t, ...], for variable v; None where
        the model left it alone.
      policy: one of POLICIES; `mean` and `each` average over all microbatches along the fixed
        tree. Integer variables take the first microbatch's, or with `last` the last's.

    Returns:
      The new value of each variable; None for one that stays as it is, as a random layer's seed
      always does.

    Raises:
      ValueError: `policy` is unknown.
    """
    if policy not in POLICIES:
        raise ValueError(f"batch_norm_statistics={policy!r}: must be one of {', '.join(POLICIES)}")
    return [
        None if is_draw_counter(variable) or parts[0] is None else _combine_one(parts, policy)
        for variable, parts in zip(
            model.non_trainable_variables, zip(*tower_states, strict=True), strict=True
        )
    ]


def _combine_one(tower_parts: Sequence[tf.Tensor], policy: str) -> tf.Tensor:
    values = [value for part in tower_parts for value in tf.unstack(part)]
    if policy == "last":
        return values[-1]
    if policy == "first" or not values[0].dtype.is_floating:
        return values[0]
    return gradients.pairwise_tree(values, tf.add) / len(values)


def kept_apart(model: keras.Model) -> list[int]:
    """The places in `model.non_trainable_variables` of what the policy `each` keeps apart.

    All floating variables: batch-norm statistics, and what other layers keep of the kind.
    """
    return [
        index
        for index, variable in enumerate(model.non_trainable_variables)
        if tf.as_dtype(variable.dtype).is_floating
    ]


def divergence(model: keras.Model, statistics: Sequence[tf.Tensor]) -> dict[str, dict[str, float]]:
    """How far apart the statistics are that `each` keeps for every microbatch.

    For a layer's moving means m and variances v, [M, features], averaged over the features, with
    the standard deviation s and the mean over the M microbatches:

        moving_mean:     sqrt(mean(s(m) ** 2 / mean(v)))        in standard deviations of a feature
        moving_variance: sqrt(mean(s(v) ** 2 / mean(v) ** 2))   relative

    Args:
      model: its batch-norm layers.
      statistics: [M, ...] for each variable of `kept_apart(model)`.

    Returns:
      Batch-norm layer to its two figures; 0 where the microbatches agree.
    """
    variables = [model.non_trainable_variables[index] for index in kept_apart(model)]
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
