"""The state of random layers: a draw depends on a layer, its step and its microbatch alone."""

from collections.abc import Sequence

import keras
import tensorflow as tf

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
