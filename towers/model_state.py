"""What a pass reads beside weights: counters of random layers, and what layers were fitted to."""

import contextlib
from collections.abc import Iterator, Sequence

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

    def advanced(value: tf.Tensor) -> tf.Tensor:
        first = tf.cast(draw_index, value.dtype) * DRAWS_PER_MICROBATCH
        return value + tf.stack([tf.zeros_like(first), first])

    return [
        advanced(value) if is_draw_counter(variable) else value
        for variable, value in zip(model.non_trainable_variables, state, strict=True)
    ]


def refresh(model: keras.Model) -> None:
    """Gives normalization layers their variables' values, after these were assigned.

    They keep what they were fitted to twice: as variables, which a checkpoint and a copy have, and
    as constants, which a call reads.
    """
    for layer in _normalizations(model):
        layer.finalize_state()


@contextlib.contextmanager
def read_from(model: keras.Model, state: Sequence[tf.Tensor]) -> Iterator[None]:
    """While entered, calls of normalization layers read the given state, and no constants.

    `state` has the values of the model's `non_trainable_variables`.
    """
    values = {id(v): value for v, value in zip(model.non_trainable_variables, state, strict=True)}
    constants = [(layer, layer.mean, layer.variance) for layer in _normalizations(model)]
    try:
        for layer, *both in constants:
            layer.mean, layer.variance = (
                keras.ops.cast(keras.ops.reshape(values[id(v)], constant.shape), constant.dtype)
                for v, constant in zip((layer.adapt_mean, layer.adapt_variance), both, strict=True)
            )
        yield
    finally:
        for layer, mean, variance in constants:
            layer.mean, layer.variance = mean, variance


def _normalizations(model: keras.Model) -> list[keras.layers.Normalization]:
    # Also those within your own layers; Keras has no public way to them.
    layers = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Normalization)]
    return [one for one in layers if one.built and one.input_mean is None]  # else: no variables
