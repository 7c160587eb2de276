"""The model's state that is not trained: batch-norm statistics and random layers' counters.

Every microbatch starts a step from the same state and brings back its own new one. A named policy
says how the new ones become the one state that is kept:

- `mean` averages them; `first` and `last` take one microbatch's and drop the others'.
- `each` keeps them apart as well: every microbatch continues from its own, as k separate replicas
  would, so that their divergence can be watched. The model holds their mean.

Under Keras's MirroredStrategy every replica keeps its own statistics, and reading them shows those
of the first. docs/batch_norm.md has the measurements.
"""

from collections.abc import Sequence

import keras
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
    """The state with each random layer's (seed, counter), int [2], advanced by `draw_index`.

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
        the model left it unchanged.
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
    """The places in `model.non_trainable_variables` of what `each` keeps apart: all floats."""
    return [
        index
        for index, variable in enumerate(model.non_trainable_variables)
        if tf.as_dtype(variable.dtype).is_floating
    ]


def new_apart(model: keras.Model, num_microbatches: int) -> list[tf.Variable]:
    """What the policy `each` keeps beside the model: [num_microbatches, ...] per `kept_apart`."""
    if not num_microbatches:
        return []
    shared = [model.non_trainable_variables[index].value for index in kept_apart(model)]
    return [
        tf.Variable(
            tf.stack([value] * num_microbatches), trainable=False, name="statistics_of_each"
        )
        for value in shared
    ]


def before_step(
    model: keras.Model, apart: Sequence[tf.Variable], num_microbatches: int
) -> list[list[tf.Tensor]]:
    """What each microbatch starts from, [microbatch][variable of the model that is not trained]."""
    shared = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
    states = [list(shared) for _ in range(num_microbatches)]
    for index, variable in zip(kept_apart(model), apart, strict=True) if apart else ():
        for own, value in zip(states, tf.unstack(variable), strict=True):
            own[index] = value
    return states


def after_step(
    model: keras.Model,
    apart: Sequence[tf.Variable],
    tower_states: Sequence[Sequence[tf.Tensor | None]],
    policy: str,
) -> None:
    """Makes the microbatches' states the model's one state; arguments as in `combine`."""
    combined = combine(model, tower_states, policy)
    for variable, value in zip(model.non_trainable_variables, combined, strict=True):
        if value is not None:
            variable.assign(value)
    for index, variable in zip(kept_apart(model), apart, strict=True) if apart else ():
        if combined[index] is not None:
            parts = [states[index] for states in tower_states]
            variable.assign(tf.concat(parts, axis=0))  # [num_microbatches, ...]


def assign_one_of(model: keras.Model, apart: Sequence[tf.Variable], microbatch: int) -> None:
    """Gives the model the statistics that `each` keeps for one microbatch."""
    for index, values in zip(kept_apart(model), apart, strict=True):
        model.non_trainable_variables[index].assign(values[microbatch])
