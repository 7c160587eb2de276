"""Whether what layers add to a loss, count and remember depends on how a batch is cut.

Two microbatches are compared with one batch of both: a mean over examples passes, a sum over the
batch or a running total does not. Batch norm is left out: that each microbatch is normalized by
itself is what is wanted.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from towers import cutting, microbatch, model_state

# Relative: rounding is far below, a sum in the place of a mean far above.
_TOLERANCE, _TOLERANCE_OF_16_BITS, _TOLERANCE_OF_DRAWS = 1e-3, 2e-2, 0.2
_DRAWS = 16  # whose mean is taken; of two microbatches, a sum is off by half
_ENOUGH_DRAWS = 8  # examples of a microbatch


class _Value(NamedTuple):
    """A value that a pass gives: what it is, its place in the pass, and how it is combined."""

    name: str
    of_pass: str  # the attribute of `microbatch.Forward`
    place: int
    is_count: bool = False  # added over microbatches, not averaged


def check(pass_: microbatch.Microbatch, batch: cutting.Structure, size: int) -> None:
    """Checks a model with two microbatches of a batch, before its first step.

    Args:
      pass_: the passes of the model, of which one was traced.
      batch: any of the data, as Keras's adapters yield it.
      size: of a microbatch.

    Raises:
      ValueError: names what depends on the cut.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    parts = cutting.cut(x, size)[:2]
    if len(parts) < 2:
        parts = cutting.cut(x, -(-cutting.num_examples(x) // 2))
    if len(parts) < 2:
        return  # one example
    model, sizes = pass_.model, [cutting.num_examples(part) for part in parts]
    both = keras.tree.map_structure(
        lambda *tensors: None if tensors[0] is None else tf.concat(tensors, axis=0), *parts
    )
    if not (values := list(_values(model, pass_.traced[-1]))):
        return
    first = _forward(pass_, parts[0])
    if _changes_of_random_layers_and_batch_norm(model, first):
        # They differ between cuts, and rightly so: look without them.
        pass_ = microbatch.Microbatch(model, training=False, jit_compile=False)
        first = _forward(pass_, parts[0])
    tolerance, draws = _TOLERANCE, 1
    if any(layer.compute_dtype in ("bfloat16", "float16") for layer in model._flatten_layers()):
        tolerance = _TOLERANCE_OF_16_BITS
    if any(map(model_state.is_draw_counter, _changed(model, first))):  # in evaluation, too
        if min(sizes) < _ENOUGH_DRAWS:
            return
        tolerance, draws = _TOLERANCE_OF_DRAWS, _DRAWS
    passes = [[_forward(pass_, one, draw) for draw in range(draws)] for one in (both, *parts)]
    for value in values:
        of_whole, *of_parts = (tf.stack([_read(model, o, value) for o in each]) for each in passes)
        weights = [1, 1] if value.is_count else [n / sum(sizes) for n in sizes]
        off = sum(w * part for w, part in zip(weights, of_parts, strict=True)) - of_whole
        by_chance = 4 * tf.math.reduce_std(off, axis=0) / draws**0.5
        largest = tf.reduce_max(tf.abs(tf.reduce_mean(of_whole, axis=0)))
        allowed = tolerance * largest + by_chance + 1e-6
        if not bool(tf.reduce_all(tf.abs(tf.reduce_mean(off, axis=0)) <= allowed)):
            raise ValueError(
                f"{type(model).__name__}: {value.name} depends on how a batch is cut, as a sum "
                "over the batch or a running total does: make it a mean over examples"
            )


def _forward(pass_: microbatch.Microbatch, x, draw: int = 0) -> microbatch.Forward:
    model = pass_.model
    weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    state = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
    return pass_.forward(weights, state, tf.constant(draw, tf.int64), x)


def _changed(model: keras.Model, forward: microbatch.Forward) -> list[keras.Variable]:
    """The variables that are not trained and that a pass has changed."""
    both = zip(model.non_trainable_variables, forward.state, strict=True)
    return [variable for variable, value in both if value is not None]


def _of_batch_norm(model: keras.Model) -> set[int]:
    return {
        id(weight)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        for weight in layer.non_trainable_variables
    }


def _changes_of_random_layers_and_batch_norm(model, forward: microbatch.Forward) -> bool:
    normalized = _of_batch_norm(model)
    return any(
        id(variable) in normalized or model_state.is_draw_counter(variable)
        for variable in _changed(model, forward)
    )


def _values(model: keras.Model, forward: microbatch.Forward) -> Iterator[_Value]:
    """What has to be looked at; most models have none of it."""
    for place in range(len(forward.losses)):
        yield _Value("a value that a layer gives to add_loss", "losses", place)
    normalized = _of_batch_norm(model)
    for place, variable in enumerate(model.non_trainable_variables):
        is_known = id(variable) in normalized or model_state.is_draw_counter(variable)
        if forward.state[place] is not None and not is_known:
            yield _Value(f"the weight {variable.path}", "state", place)
    for place, variable in enumerate(model.metrics_variables):
        if forward.metrics[place] is not None:
            yield _Value(f"the metric {variable.path}", "metrics", place, is_count=True)


def _read(model: keras.Model, forward: microbatch.Forward, value: _Value) -> tf.Tensor:
    """A value of a pass, float64; where the pass leaves it alone, what there was before."""
    found: Sequence = getattr(forward, value.of_pass)
    read = found[value.place] if value.place < len(found) else tf.zeros(())
    if read is None:
        before = model.non_trainable_variables if value.of_pass == "state" else None
        read = tf.zeros(()) if before is None else before[value.place].value
    read = tf.cast(read, tf.float64)
    return tf.reduce_sum(read) if value.of_pass == "losses" else read
