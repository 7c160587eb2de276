"""Keras metrics over examples that are spread over towers and workers.

A metric's state is a sum over examples: of values, of counts, of a confusion matrix. So that of
each microbatch is computed from nothing, the states are added in the order of the microbatches, and
the metric's result is computed once, from their sum. It depends neither on towers nor on workers,
and no example is counted twice. A metric whose state is no such sum is refused.
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


class _Named(NamedTuple):
    name: str
    output: str
    metric: keras.metrics.Metric


class Metrics:
    """The metrics of a model's outputs."""

    def __init__(self, given: Sequence[Metric] | Mapping[str, Metric | Sequence[Metric]]):
        """
        Args:
          given: a list of the one output's metrics; or a dict of them by the names of outputs.

        Raises:
          TypeError, ValueError: one is no metric.
        """
        if isinstance(given, Mapping):
            by_output = {
                key: list(own) if isinstance(own, (list, tuple)) else [own]
                for key, own in given.items()
            }
        elif isinstance(given, (list, tuple)):
            by_output = {None: list(given)}
        else:
            raise TypeError(
                f"metrics is {checks.described(given)}: must be a list of metrics, or for several "
                "outputs a dict of them"
            )
        self._given = {key: [_checked(one) for one in own] for key, own in by_output.items()}
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
          labels: [n, ...], or a structure of such.
          outputs: of the model, likewise.
          weight: float32 [n]; what has weight 0 leaves no trace.
        """
        of_model = checks.outputs_by_name(model, outputs)
        masked = [n for n, t in of_model.items() if getattr(t, "_keras_mask", None) is not None]
        if masked:
            raise ValueError(
                f"the model's output {masked[0]!r} has a Keras mask, which metrics would not heed: "
                "leave them out"
            )
        counted = weight > 0
        if self._named is None:
            with tf.init_scope():
                self._named = self._resolved(of_model, labels)
        states = []
        for named in self._named:
            own = checks.labels_of(labels, named.output, list(of_model).index(named.output))
            states.append(
                named.metric.stateless_update_state(
                    [tf.zeros(v.shape, v.dtype) for v in named.metric.variables],
                    _where(counted, own),
                    _where(counted, of_model[named.output]),
                    sample_weight=_spread(weight, of_model[named.output]),
                )
            )
        return states

    def results(self, of_workers: Sequence[Sequence[np.ndarray]]) -> dict[str, float | list]:
        """The metrics by name, from the states of all microbatches.

        Args:
          of_workers: for each worker, [batches, microbatches of the worker, ...] for each variable
            of each metric.
        """
        # [batches, microbatches, ...]: in the same order on any number of workers.
        variables = iter(zip(*of_workers, strict=True))
        results = {}
        for named in self._named:
            sums = []
            for variable in named.metric.variables:
                states = np.concatenate(next(variables), axis=1)
                total = np.zeros(states.shape[2:], np.float64)
                for state in states.reshape(-1, *total.shape):
                    total += state
                sums.append(tf.cast(total, variable.dtype))
            result = named.metric.stateless_result(sums)
            if isinstance(result, Mapping):
                results |= {key: _plain(value) for key, value in result.items()}
            else:
                results[named.name] = _plain(result)
        return results

    def _resolved(self, of_model: Mapping[str, tf.Tensor], labels) -> list[_Named]:
        """Metrics as objects with variables; `accuracy` as what labels and outputs make it."""
        if None in self._given and len(of_model) > 1:
            raise ValueError(
                f"metrics is a list, and the model has the outputs "
                f"{', '.join(map(repr, of_model))}: give a dict with each one's metrics"
            )
        found = []
        for key, own in self._given.items():
            output = next(iter(of_model)) if key is None else key
            if output not in of_model:
                raise ValueError(
                    f"metrics has {key!r}, and the model the outputs "
                    f"{', '.join(map(repr, of_model))}"
                )
            answers = checks.labels_of(labels, output, list(of_model).index(output))
            for given in own:
                metric = _as_metric(given, answers, of_model[output])
                name = given if isinstance(given, str) else metric.name
                _build(metric, name, answers, of_model[output])
                found.append(_Named(name if key is None else f"{key}_{name}", output, metric))
        names = [named.name for named in found]
        if twice := [name for name in names if names.count(name) > 1 or name in ("loss", "count")]:
            raise ValueError(
                f"metrics: the name {twice[0]!r} is taken already; give one a name of its own"
            )
        return found


def _where(counted: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    is_counted = tf.reshape(counted, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(is_counted, values, tf.zeros_like(values))


def _spread(weight: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """The weight of each value, where an example has several: [n, ...] for outputs [n, ..., k].

    Some of Keras's metrics, such as MeanIoU, do not spread it themselves.
    """
    shape = outputs.shape[:-1] if outputs.shape.rank > 2 else outputs.shape[:1]
    return tf.broadcast_to(tf.reshape(weight, [-1] + [1] * (len(shape) - 1)), shape)


def _plain(value) -> float | list:
    return np.asarray(value).tolist()


def _checked(given: Metric) -> Metric:
    if isinstance(given, str):
        try:
            keras.metrics.get(given)
        except ValueError as error:
            raise ValueError(
                f"metrics: Keras has no metric {given!r}; it has names such as 'accuracy' and "
                "'mean_absolute_error'"
            ) from error
    elif isinstance(given, type) or not (
        isinstance(given, keras.metrics.Metric) or callable(given)
    ):
        raise TypeError(
            f"metrics has {checks.described(given)}: must be Keras's name of a metric, an object "
            "of keras.metrics, or a function (labels, outputs) to one value per example"
        )
    return given


def _as_metric(given: Metric, labels: tf.Tensor, outputs: tf.Tensor) -> keras.metrics.Metric:
    if given in ("accuracy", "acc"):
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


def _build(metric: keras.metrics.Metric, name: str, labels: tf.Tensor, outputs: tf.Tensor) -> None:
    """Lets a metric make its variables, and checks that its state is a sum over examples."""
    if "sample_weight" not in inspect.signature(metric.update_state).parameters:
        raise ValueError(
            f"metrics: {name!r} takes no sample_weight in update_state, by which the last "
            "batch's filling is left out"
        )
    rng = np.random.default_rng(0)

    def some(like: tf.Tensor, n: int) -> tf.Tensor:
        shape = [n, *like.shape[1:]]
        if like.dtype.is_floating:
            return tf.constant(rng.uniform(size=shape), like.dtype)
        return tf.cast(tf.constant(rng.integers(2, size=shape)), like.dtype)

    def weight(part) -> tf.Tensor:
        return _spread(tf.ones([part[1].shape[0]]), part[1])

    def after(state, part):
        return metric.stateless_update_state(state, *part, sample_weight=weight(part))

    # Two shares of unlike sizes, for shapes that only fit by chance.
    examples = (some(labels, 11), some(outputs, 11))
    shares = [tuple(part[own] for part in examples) for own in (slice(0, 4), slice(4, 11))]
    try:
        metric.update_state(
            *examples, sample_weight=weight(examples)
        )  # makes what is still to make
        metric.reset_state()
        nothing = [variable.numpy() for variable in metric.variables]
        start = [tf.constant(value) for value in nothing]
        whole, first, second = (after(start, part) for part in (examples, *shares))
        on = after(first, shares[1])
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise ValueError(
            f"metrics: {name!r} cannot be computed of labels {checks.described(labels)} and "
            f"outputs {checks.described(outputs)}: {noise.reason(error)}"
        ) from error
    is_sum = not any(np.any(value) for value in nothing) and all(
        np.allclose(a, w, rtol=1e-3, atol=1e-6) and np.allclose(b + c, w, rtol=1e-3, atol=1e-6)
        for a, w, b, c in zip(on, whole, first, second, strict=True)
    )
    if not is_sum:
        raise ValueError(
            f"metrics: the state of {name!r} is no sum over examples, and towers could not "
            "add theirs"
        )
