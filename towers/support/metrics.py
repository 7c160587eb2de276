"""Keras metrics over examples that are spread over towers and workers.

A metric's state is a sum over examples: of values, of counts, of a confusion matrix. So each
microbatch's is computed from nothing, the states are added in the order of the microbatches, and
the metric's result is computed once, from their sum. It depends neither on towers nor on workers,
and no example is counted twice. A metric whose state is not such a sum is refused.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towers.support import checks, noise, structures

# Keras's name of a metric, an object, or a function (labels, outputs) to one value per example.
Metric = str | keras.metrics.Metric | Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


# Names that a log uses for what an evaluation has beside its metrics.
_TAKEN = ("count", "epoch", "loss", "split", "step")

_ACCURACY = ("accuracy", "acc")  # Keras chooses it by the shapes of labels and outputs


class _Named(NamedTuple):
    name: str
    prefix: str  # of the names of several values: that of the output
    output: str
    metric: keras.metrics.Metric
    is_spread: bool  # weights [n, ...], one for each value of an example, in place of [n]
    takes_fractions: bool  # of weights; else it would round them


class Metrics:
    """The metrics of a model's outputs."""

    def __init__(self, given: Sequence[Metric] | Mapping[str, Metric | Sequence[Metric]]):
        """
        Args:
          given: a list of the one output's metrics; or several, as a dict by the names of outputs
            or as a list of lists in their order, with None for an output without any.

        Raises:
          TypeError, ValueError: one is not a metric.
        """
        if isinstance(given, Mapping):
            self._given = {key: _checked_list(own) for key, own in given.items()}
        elif not isinstance(given, (list, tuple)):
            raise TypeError(
                f"metrics is {checks.described(given)}: must be a list of metrics, or for several "
                "outputs a dict of them"
            )
        elif any(isinstance(one, (list, tuple)) for one in given):
            self._given = [_checked_list(own) for own in given]
        else:
            self._given = _OfOne(_checked_list(given))
        self._named: list[_Named] | None = None

    def states(
        self,
        model: keras.Model,
        labels: structures.Structure,
        outputs: structures.Structure,
        weight: tf.Tensor,
    ) -> list[list[tf.Tensor]]:
        """Each metric's state after these examples alone. Called while a graph is built.

        Args:
          model: names its outputs.
          labels: [n, ...], or a structure of these.
          outputs: of the model, likewise.
          weight: float32 [n]; what has weight 0 leaves no trace.
        """
        of_model = checks.outputs_by_name(model, outputs)
        masked = [n for n, t in of_model.items() if getattr(t, "_keras_mask", None) is not None]
        if masked:
            raise ValueError(
                f"the model's output {masked[0]!r} has a Keras mask, which metrics would ignore: "
                "leave them out"
            )
        names = list(of_model)
        if self._named is None:
            with tf.init_scope():
                self._named = self._resolved(of_model, outputs, labels)
        # A counted example replaces each one of weight 0: 0 times NaN would be NaN.
        is_counted = weight > 0
        every = tf.range(tf.size(weight))
        rows = tf.where(is_counted, every, tf.reduce_max(tf.where(is_counted, every, 0)))
        states = []
        for named in self._named:
            answers, own = checks.labels_of(labels, outputs, names, named.output), named.output
            after = named.metric.stateless_update_state(
                [tf.zeros(v.shape, v.dtype) for v in named.metric.variables],
                tf.gather(answers, rows),
                tf.gather(of_model[own], rows),
                sample_weight=_weight_for(named.metric, weight, of_model[own], named.is_spread),
            )
            none = tf.reduce_all(~is_counted)
            states.append([tf.where(none, tf.zeros_like(value), value) for value in after])
        return states

    def check_weights(self, weight: np.ndarray) -> None:
        """Checks the weights [n] of examples; called after `states`.

        Raises:
          ValueError: a metric counts in whole numbers, and a weight is not one.
        """
        whole = [named.name for named in self._named if not named.takes_fractions]
        if whole and (weight != np.round(weight)).any():
            raise ValueError(
                f"sample_weight has {weight[weight != np.round(weight)][0]:g}, but the metric "
                f"{whole[0]!r} counts in whole numbers: give these"
            )

    def results(self, of_workers: Sequence[Sequence[np.ndarray]]) -> dict[str, float | list]:
        """The metrics by name, from the states of all microbatches.

        Args:
          of_workers: for each worker, [microbatches of the worker, batches, ...] for each variable
            of each metric.
        """
        variables = iter(zip(*of_workers, strict=True))
        results = {}
        for named in self._named:
            sums = []
            for variable in named.metric.variables:
                # [batches, microbatches, ...]: in the same order on any number of workers.
                states = np.concatenate(next(variables), axis=0).swapaxes(0, 1)
                total = np.zeros(states.shape[2:], np.float64)
                for state in states.reshape(-1, *total.shape):
                    total += state
                sums.append(tf.cast(total, variable.dtype))
            result = _result(named.metric, sums)
            if isinstance(result, Mapping):
                of_metric = {named.prefix + key: value.tolist() for key, value in result.items()}
            else:
                of_metric = {named.name: result.tolist()}
            _check_free([*results, *of_metric])
            results |= of_metric
        return results

    def _resolved(self, of_model: Mapping[str, tf.Tensor], outputs, labels) -> list[_Named]:
        """Metrics as objects with variables; `accuracy` as what labels and outputs make it."""
        names, given = list(of_model), self._given
        is_of_one = isinstance(given, _OfOne)
        if is_of_one:
            if len(names) > 1:
                raise ValueError(
                    f"metrics is a list, and the model has the outputs "
                    f"{', '.join(map(repr, names))}: give a dict with metrics for each"
                )
            given = {names[0]: given}
        given = checks.by_output_s_name("metrics", given, outputs, names)
        if unknown := [key for key in given if key not in names]:
            raise ValueError(
                f"metrics has {unknown[0]!r}: must be one of the model's outputs, "
                f"{', '.join(map(repr, names))}"
            )
        found = []
        for output, own in given.items():
            prefix = "" if is_of_one else f"{output}_"
            for one in own:
                answers = checks.labels_of(labels, outputs, names, output)
                metric = _as_metric(one, answers, of_model[output])
                name = one if isinstance(one, str) else metric.name
                kind = _tried(metric, name, answers, of_model[output])
                found.append(_Named(prefix + name, prefix, output, metric, *kind))
        _check_free([named.name for named in found])
        return found


class _OfOne(list):
    """The metrics of the one output."""


def _check_free(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1 or name in _TAKEN]:
        raise ValueError(
            f"metrics: the name {twice[0]!r} is already taken; give the metric another name"
        )


def _weight_for(
    metric: keras.metrics.Metric, weight: tf.Tensor, outputs: tf.Tensor, is_spread: bool
) -> tf.Tensor:
    """The weights [n] of examples as a metric takes them.

    Spread, they are [n, ...] for outputs [n, ..., k]: MeanIoU and its like do not do that
    themselves.
    """
    if "int" in str(metric.dtype):
        weight = tf.cast(weight, tf.int64)
    if not is_spread:
        return weight
    shape = [weight.shape[0], *outputs.shape[1:-1]]
    return tf.broadcast_to(tf.reshape(weight, [-1] + [1] * (len(shape) - 1)), shape)


def _result(metric: keras.metrics.Metric, state: Sequence) -> np.ndarray | dict[str, np.ndarray]:
    """As `stateless_result`, which may hand back a variable, and with it another state's value."""
    with keras.StatelessScope(list(zip(metric.variables, state, strict=True))):
        return tf.nest.map_structure(np.asarray, metric.result())


def _checked_list(given: Metric | Sequence[Metric] | None) -> list[Metric]:
    if given is None:
        return []
    return [_checked(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _checked(given: Metric) -> Metric:
    if isinstance(given, str) and given not in _ACCURACY:
        try:
            keras.metrics.get(given)
        except ValueError as error:
            raise ValueError(
                f"metrics: Keras has no metric {given!r}; it has names such as 'accuracy' and "
                "'mean_absolute_error'"
            ) from error
    elif isinstance(given, type) or not (
        isinstance(given, (str, keras.metrics.Metric)) or callable(given)
    ):
        raise TypeError(
            f"metrics has {checks.described(given)}: must be Keras's name of a metric, an object "
            "of keras.metrics, or a function (labels, outputs) to one value per example"
        )
    return given


def _as_metric(given: Metric, labels: tf.Tensor, outputs: tf.Tensor) -> keras.metrics.Metric:
    if isinstance(given, str) and given in _ACCURACY:
        return _accuracy(labels, outputs, given)
    found = keras.metrics.get(given) if isinstance(given, str) else given
    if isinstance(found, keras.metrics.Metric):
        return found
    name = given if isinstance(given, str) else getattr(given, "__name__", "metric")
    return keras.metrics.MeanMetricWrapper(found, name=name)


def _accuracy(labels: tf.Tensor, outputs: tf.Tensor, name: str) -> keras.metrics.Metric:
    """As Keras's `compile` chooses it by the shapes of labels and outputs."""
    if outputs.shape[-1] == 1 or outputs.shape.rank == 1:
        return keras.metrics.BinaryAccuracy(name=name)
    if labels.shape.rank < outputs.shape.rank or labels.shape[-1] == 1:
        return keras.metrics.SparseCategoricalAccuracy(name=name)
    return keras.metrics.CategoricalAccuracy(name=name)


def _tried(
    metric: keras.metrics.Metric, name: str, labels: tf.Tensor, outputs: tf.Tensor
) -> tuple[bool, bool]:
    """Lets a metric make its variables, and checks that its state is a sum over examples.

    Returns:
      `is_spread` and `takes_fractions` of `_Named`.
    """
    if "sample_weight" not in inspect.signature(metric.update_state).parameters:
        raise ValueError(
            f"metrics: {name!r} must take sample_weight in update_state, which leaves out the "
            "filling of the last batch"
        )
    if labels.dtype == tf.string:
        raise ValueError(f"metrics: {name!r} cannot be computed from labels that are strings")
    rng = np.random.default_rng(0)

    def some(like: tf.Tensor) -> tf.Tensor:
        shape = [11, *like.shape[1:]]
        if like.dtype.is_floating:
            return tf.constant(rng.uniform(size=shape), like.dtype)
        return tf.cast(tf.constant(rng.integers(2, size=shape)), like.dtype)

    examples, reason = (some(labels), some(outputs)), None
    for is_spread in (False, True)[: outputs.shape.rank - 1]:
        try:
            return is_spread, _trial(metric, name, examples, is_spread)
        except (_NoSum, ValueError, TypeError, tf.errors.OpError) as error:
            reason = reason or error
    if isinstance(reason, _NoSum):
        raise ValueError(f"metrics: {reason}") from reason
    raise ValueError(
        f"metrics: {name!r} cannot be computed from labels {checks.described(labels)} and "
        f"outputs {checks.described(outputs)}: {noise.reason(reason)}"
    ) from reason


class _NoSum(Exception):
    """A metric's state is not a sum over examples, each times its weight."""


def _trial(
    metric: keras.metrics.Metric,
    name: str,
    examples: tuple[tf.Tensor, tf.Tensor],
    is_spread: bool,
) -> bool:
    """Whether a metric takes fractions as weights.

    Args:
      metric: becomes built.
      name: for messages.
      examples: 11 made-up labels and outputs.
      is_spread: as in `_Named`.

    Raises:
      _NoSum: as it says.
      Exception: others, of the metric.
    """

    def after(state, own: slice, weight: list[float]) -> list[np.ndarray]:
        labels, outputs = (part[own] for part in examples)
        weight = _weight_for(metric, tf.constant(weight), outputs, is_spread)
        state = metric.stateless_update_state(state, labels, outputs, sample_weight=weight)
        return [value.numpy() for value in state]

    def equal(ones, others) -> bool:
        pairs = zip(ones, others, strict=True)
        return all(np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True) for a, b in pairs)

    every, one, two = slice(None), slice(0, 4), slice(4, 11)  # unlike sizes: none fits by chance
    labels, outputs = examples
    weight = _weight_for(metric, tf.ones([11]), outputs, is_spread)
    metric.update_state(labels, outputs, sample_weight=weight)  # makes what is still to make
    metric.reset_state()
    nothing = [variable.numpy() for variable in metric.variables]
    start = [tf.constant(value) for value in nothing]
    whole, first = after(start, every, [1.0] * 11), after(start, one, [1.0] * 4)
    second, on = after(start, two, [1.0] * 7), after(first, two, [1.0] * 7)
    together = [a + b for a, b in zip(first, second, strict=True)]
    if any(map(np.any, nothing)) or not (equal(on, whole) and equal(together, whole)):
        raise _NoSum(
            f"the state of {name!r} is not a sum over examples, so towers could not add theirs"
        )
    without = after(start, every, [1.0] * 4 + [0.0] * 7)
    if not equal(*(tf.nest.flatten(_result(metric, state)) for state in (without, first))):
        raise _NoSum(
            f"{name!r} counts examples of sample_weight 0, and with them the last batch's filling"
        )
    return equal([2 * value for value in after(start, every, [0.5] * 11)], whole)
