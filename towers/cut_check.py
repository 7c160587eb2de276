"""Whether what layers add to a loss, count and remember depends on how a batch is cut.

Two microbatches are compared with one batch of both: a mean over examples passes, a sum over the
batch or a running total does not. Batch norm is left out: that each microbatch is normalized by
itself is what is wanted.
"""

import keras
import tensorflow as tf

from towers import cutting, microbatch, model_state

# Relative: rounding is far below, a sum in the place of a mean far above.
_TOLERANCE, _TOLERANCE_OF_16_BITS, _TOLERANCE_OF_DRAWS = 1e-3, 2e-2, 0.2
_DRAWS = 16  # whose mean is taken; of two microbatches, a sum is off by half
_ENOUGH_DRAWS = 8  # examples of a microbatch


def check(pass_: microbatch.Microbatch, batch: cutting.Structure, size: int) -> None:
    """Checks a model with two microbatches of a batch, before its first step.

    Args:
      pass_: the passes of the model, of which one was traced.
      batch: any of the data.
      size: of a microbatch.

    Raises:
      ValueError: names what depends on the cut.
    """
    model, traced = pass_.model, pass_.traced[-1]
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    parts = cutting.cut(x, min(size, -(-cutting.num_examples(x) // 2)))[:2]
    changed = {id(variable) for variable in _changed(model, traced)}
    may_depend = _may_depend(model)
    looked_at = changed - may_depend
    if not (traced.losses or looked_at) or len(parts) < 2:  # one example
        return
    tolerance, draws = _TOLERANCE, 1
    if any(layer.compute_dtype in ("bfloat16", "float16") for layer in model._flatten_layers()):
        tolerance = _TOLERANCE_OF_16_BITS
    if may_depend & changed:
        # Random layers and batch norm differ between cuts, and rightly so: look without them, or
        # less closely at what is there in training alone.
        evaluation = microbatch.Microbatch(model, training=False, jit_compile=False)
        without = _forward(evaluation, parts[0])
        shows_all = looked_at <= set(map(id, _changed(model, without)))
        if shows_all and len(without.losses) == len(traced.losses):
            pass_ = evaluation
        else:
            tolerance = _TOLERANCE_OF_DRAWS
    sizes = [cutting.num_examples(part) for part in parts]
    if any(map(model_state.is_draw_counter, _changed(model, _forward(pass_, parts[0])))):
        if min(sizes) < _ENOUGH_DRAWS:
            return
        tolerance, draws = _TOLERANCE_OF_DRAWS, _DRAWS
    whole = cutting.join(parts)
    passes = [
        [_values(model, _forward(pass_, one, draw), looked_at) for draw in range(draws)]
        for one in (whole, *parts)
    ]
    for place, (name, _) in enumerate(passes[0][0]):
        total, *pieces = (tf.stack([values[place][1] for values in one]) for one in passes)
        # What metrics count is added over microbatches, all else averaged over examples.
        weights = [1, 1] if name.startswith("metric") else [n / sum(sizes) for n in sizes]
        off = sum(w * part for w, part in zip(weights, pieces, strict=True)) - total
        by_chance = 4 * tf.math.reduce_std(off, axis=0) / draws**0.5
        largest = tf.reduce_max(tf.abs(tf.reduce_mean(total, axis=0)))
        allowed = tolerance * largest + by_chance + 1e-6
        if not bool(tf.reduce_all(tf.abs(tf.reduce_mean(off, axis=0)) <= allowed)):
            raise ValueError(
                f"{type(model).__name__}: the {name} depends on how a batch is cut, as a sum over "
                "the batch or a running total does: make it a mean over examples"
            )


def _forward(pass_: microbatch.Microbatch, x, draw: int = 0) -> microbatch.Forward:
    return pass_.forward(*pass_.values(), tf.constant(draw, tf.int64), x)


def _changed(model: keras.Model, forward: microbatch.Forward) -> list[keras.Variable]:
    """The variables of the state and of metrics that a pass has changed."""
    variables = [*model.non_trainable_variables, *model.metrics_variables]
    both = zip(variables, [*forward.state, *forward.metrics], strict=True)
    return [variable for variable, value in both if value is not None]


def _may_depend(model: keras.Model) -> set[int]:
    """The variables of batch norm and of random layers, by their identity."""
    norms = [n for n in model._flatten_layers() if isinstance(n, keras.layers.BatchNormalization)]
    variables = [variable for norm in norms for variable in norm.non_trainable_variables]
    variables += filter(model_state.is_draw_counter, model.non_trainable_variables)
    return set(map(id, variables))


def _values(
    model: keras.Model, forward: microbatch.Forward, looked_at: set[int]
) -> list[tuple[str, tf.Tensor]]:
    """What must not depend on the cut, float64, with its name; of a loss its sum."""
    state = zip(model.non_trainable_variables, forward.state, strict=True)
    metrics = zip(model.metrics_variables, forward.metrics, strict=True)
    values = [("value given to add_loss", tf.reduce_sum(loss)) for loss in forward.losses]
    for variable, value in state:
        if id(variable) in looked_at:
            values.append((f"weight {variable.path}", variable if value is None else value))
    for variable, value in metrics:
        if id(variable) in looked_at:
            added = tf.zeros_like(variable) if value is None else value
            values.append((f"metric {variable.path}", added))
    return [(name, tf.cast(value, tf.float64)) for name, value in values]
