"""A step of Keras's `fit`, `evaluate` or `predict` on towers: one graph with every tower in it.

    cut_batch -> tower_0 ... tower_{k-1} -> average_gradients -> apply -> state -> metrics

The loop over towers in `_on_towers` runs once, while the graph is built. The graph it leaves has k
towers that depend on nothing but their own inputs, and TensorFlow runs them side by side.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import tree

from towers import (
    cutting,
    devices,
    exchange,
    gradients,
    loss_scale,
    microbatch,
    model_state,
    one_gradient,
    operation_gradients,
    refusals,
    shares,
    updating,
    worker,
)

from keras.src.trainers.data_adapters import data_adapter_utils  # isort: skip


ConcreteFunction: TypeAlias = tf.types.experimental.ConcreteFunction


def parameter_device(model: keras.Model) -> str:
    """Where the weights are, the gradients are averaged and the weights are updated."""
    if not model.variables:
        return devices.HOST
    spec = tf.DeviceSpec.from_string(model.variables[0].value.device)
    return f"/{spec.device_type}:{spec.device_index or 0}"


class Program:
    """Keras's train or test step on towers.

    Attributes:
      model: compiled and built, with its loss, metrics and optimizer.
      tower_devices: one device for each tower.
      training: whether a step updates the weights.
      joined: one loss of the joined outputs, in place of one for each microbatch.
      reason: why it is joined, if towers chose it.
      pass_: the passes of a microbatch.

    `watched` and `after_update` are as `updating.Update` takes them.
    """

    def __init__(
        self,
        model: keras.Model,
        tower_devices: Sequence[str],
        training: bool,
        joined: bool,
        reason: str | None = None,
        watched: bool = False,
        workers: worker.Workers | None = None,
        towers_of_workers: Sequence[int] = (),
        accumulate_gradients: bool = False,
        after_update: Sequence[Callable[[int], None]] = (),
    ):
        self.model, self.tower_devices, self.training = model, tuple(tower_devices), training
        self.joined, self.reason = joined, reason
        self.pass_ = microbatch.Microbatch(model, training, bool(model.jit_compile))
        self._workers = workers or worker.Workers()
        self._towers_of_workers = towers_of_workers or [len(self.tower_devices)]
        self._update = updating.Update(model, training, watched, after_update)
        self._alone = False  # each worker computes the whole batch that is being traced
        self._at_once = 1 if accumulate_gradients else shares.at_once(self.tower_devices)
        self._graphs: dict[str, ConcreteFunction] = {}  # by what a batch is like
        self._shapes: dict[str, list] = {}  # of batches that differ in nothing else
        self._steps: dict[tuple[ConcreteFunction, int], ConcreteFunction] = {}  # so many in a call
        self._variables = self._trained()

    def _trained(self) -> list[int]:
        """What is trained, and by what."""
        return [*map(id, self.model.trainable_variables), id(self.model.optimizer)]

    def trace(self, batch: cutting.Structure, size: int) -> ConcreteFunction:
        """The graph for such batches, [n, ...], in microbatches of `size`; finds out what fails."""
        kind = f"{size} {cutting.signature(batch)}"
        if kind not in self._graphs:
            if self._variables != self._trained():
                raise ValueError(
                    "trainable or the optimizer has changed since the last compile: call compile "
                    "again for it to have effect"
                )
            like = self._relax(batch, size)
            self._graphs[kind] = self._graphs.get(f"{size} {like}") or self._trace(like, size)
            self._graphs[f"{size} {like}"] = self._graphs[kind]
        return self._graphs[kind]

    def _trace(self, batch: cutting.Structure, size: int) -> ConcreteFunction:
        function = tf.function(lambda batch: self._build(batch, size), autograph=False)
        try:
            return function.get_concrete_function(batch)
        except exchange.UnevenRows:  # rare: a last batch of a model with embeddings
            self._alone = True
        try:
            function = tf.function(lambda batch: self._build(batch, size), autograph=False)
            return function.get_concrete_function(batch)
        finally:
            self._alone = False

    def _relax(self, batch, size: int):
        """What a graph for such batches is traced with: tensors like the batch.

        From the third shape on that differs only beside the examples, as the lengths of padded
        texts do, one graph takes them all. XLA and several workers need each shape.
        """
        tensors = [tensor for tensor in tree.flatten(batch) if tensor is not None]
        group = f"{size} {len(batch)} {[(t.dtype, t.shape[0], t.shape.rank) for t in tensors]}"
        seen = self._shapes.setdefault(group, [])
        seen.append([tuple(tensor.shape) for tensor in tensors])
        is_fixed = len(seen) < 3 or self.pass_.jit_compile or self._workers.count > 1
        axes = [  # of each tensor, from its shapes in all batches
            [
                last if is_fixed or {last} == set(others) else None
                for *others, last in zip(*shapes, strict=True)
            ]
            for shapes in zip(*seen, strict=True)
        ]
        specs = iter(
            tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(axes, tensors, strict=True)
        )
        return tree.map_structure(lambda t: None if t is None else next(specs), batch)

    def __call__(self, batch: cutting.Structure, size: int) -> Any:
        """Makes a step.

        Returns:
          The metrics after it, as from Keras's `train_step`; and the `Watched` if `watched`.

        Raises:
          InvalidArgumentError: from `not_finite.check`, if `watched`; nothing was updated.
        """
        return self.trace(batch, size)(batch)

    def make_steps(self, batches: Sequence[cutting.Structure], size: int) -> Any:
        """Makes a step of each batch, one after the other; returns what the last gives.

        Of batches that are alike it is one call of TensorFlow. Several workers make a call for
        each: collectives of one call may not meet twice.
        """
        graphs = [self.trace(batch, size) for batch in batches]
        if len(set(graphs)) > 1 or len(batches) == 1 or self._workers.count > 1:
            return [graph(batch) for graph, batch in zip(graphs, batches, strict=True)][-1]
        step = graphs[0]
        if (step, len(batches)) not in self._steps:
            function = tf.function(lambda batches: [*map(step, batches)][-1], autograph=False)
            (like,), _ = step.structured_input_signature
            traced = function.get_concrete_function([like] * len(batches))
            self._steps[step, len(batches)] = traced
        return self._steps[step, len(batches)](list(batches))

    def _build(self, batch, size: int):
        in_towers = operation_gradients.corrected(self.pass_.jit_compile)
        with in_towers, tf.device(parameter_device(self.model)):  # of all but the towers
            return (self._joined if self.joined else self._separate)(batch, size)

    def _separate(self, batch, size: int):
        """Each microbatch has a loss of its own; they are averaged, and so are the gradients."""
        model, training = self.model, self.training
        scale = loss_scale.of(model.optimizer) if training else None

        def compute(own: Sequence[tf.Tensor], state, m: int, part):
            if training:
                return self.pass_.backward(own, state, _number(m), part, scale)
            loss, forward = self.pass_.loss(own, state, _number(m), part)
            return microbatch.Backward([], loss, forward)

        parts, results = self._on_towers(batch, size, compute)
        weights, among = _weights(parts, size), self._among(len(parts))
        with tf.name_scope("average_gradients") as in_average:
            sums = self._sums({m: one.gradients for m, one in results.items()}, weights)
            own = [(one.loss, one.forward) for one in results.values()]
            total, everything = among(sums, own, list(map(cutting.num_examples, parts)))
            total = [_merge_equal_rows(value, parts) for value in total]
            losses, forwards = zip(*everything, strict=True)

        def average() -> updating.Averages:
            with tf.name_scope(in_average):
                mean = total
                if len(parts) > 1:
                    mean = [one_gradient.over(value, sum(weights)) for value in total]
                loss = _mean(losses, weights)
            return updating.Averages(loss, losses, mean, self._changes(forwards, weights))

        return self._update(batch, forwards, total, average)

    def _joined(self, batch, size: int):
        """The towers' outputs are joined for one loss, whose gradients go back to the towers."""
        model, training = self.model, self.training
        tapes: dict[int, tuple[tf.GradientTape, Sequence[tf.Tensor], list[tf.Tensor]]] = {}

        def compute(own: Sequence[tf.Tensor], state, m: int, part):
            x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(part)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(own)
                forward = self.pass_.forward(own, state, _number(m), x)
            tapes[m] = tape, own, _floating([*tree.flatten(forward.outputs), *forward.losses])
            return forward

        parts, results = self._on_towers(batch, size, compute)
        weights, among = _weights(parts, size), self._among(len(parts))
        sizes = list(map(cutting.num_examples, parts))
        nothing = self._sums({m: [] for m in results}, weights)
        own = [(tf.zeros(()), forward) for forward in results.values()]
        forwards = [forward for _, forward in among(nothing, own, sizes)[1]]
        sources = [_floating([*tree.flatten(one.outputs), *one.losses]) for one in forwards]
        values = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        changes = self._changes(forwards, weights)
        with tf.name_scope("joined_loss"), tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch([sources, values])
            loss, changes = self._loss_of_joined(batch, forwards, weights, values, changes)
            scale = loss_scale.of(model.optimizer) if training else None
            scaled = loss if scale is None else keras.ops.multiply(loss, scale)
        mean = []
        if training:
            direct, upstream = outer.gradient(scaled, [values, sources])
            leaves: dict[int, list[gradients.Gradient]] = {}
            for tower, own_runs in self._runs(len(parts)):
                with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}/backward"):
                    leaves |= {m: _back(*tapes[m], upstream[m]) for m in own_runs}
            with tf.name_scope("average_gradients"):
                total, _ = among(self._sums(leaves, [1] * len(parts)), own, sizes)
                total = [_merge_equal_rows(value, parts) for value in total]
                mean = gradients.add_weight_by_weight(total, direct)
        averages = updating.Averages(loss, [loss], mean, changes)
        return self._update(batch, forwards, mean, lambda: averages)

    def _loss_of_joined(self, batch, forwards, weights, values, changes: updating.Changes) -> tuple:
        """Keras's loss of the whole batch, and the changes with what the loss assigns itself."""
        model = self.model
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(batch)
        others = [*model.non_trainable_variables, *model.metrics_variables]
        new = {id(variable): value for variable, value in changes}
        before = [
            new[id(variable)] if id(variable) in new else tf.convert_to_tensor(variable.value)
            for variable in others
        ]
        of_layers = [
            _mean(losses, weights)
            for losses in zip(*(forward.losses for forward in forwards), strict=True)
        ]
        mapping = [*zip(model.trainable_variables, values), *zip(others, before)]  # noqa: B905
        scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
        with refusals.no_lost_state(model, scope), scope:
            if of_layers:
                model._losses_override = [*of_layers, *model._get_regularization_losses()]
            try:
                loss = model._compute_loss(
                    x=x,
                    y=y,
                    y_pred=microbatch.join_outputs(forwards),
                    sample_weight=sample_weight,
                    training=self.training,
                )
            finally:
                model._losses_override = []
        after = [scope.get_current_value(variable) for variable in others]
        for variable, old, value in zip(others, before, after, strict=True):
            if value is not old:
                new[id(variable)] = value
        return loss, [(variable, new[id(variable)]) for variable in others if id(variable) in new]

    def _on_towers(self, batch, size: int, compute: Callable) -> tuple[list, dict]:
        """Builds every tower on its device, each with its microbatches; in their order."""
        model = self.model
        with tf.device(devices.HOST), tf.name_scope("cut_batch"):
            parts = cutting.cut(batch, size)  # [M], each [size, ...]
        with tf.name_scope("weights"):
            weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
            states = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
        results: dict[int, Any] = {}  # of this worker's microbatches, in order
        for tower, own in self._runs(len(parts)):
            with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}"):
                copies = [tf.identity(weight) for weight in weights]  # the tower's own
                state = [tf.identity(value) for value in states]
                for m in own:
                    part = parts[m]
                    if self._at_once and m - own.start >= self._at_once:
                        part = _after(results[m - self._at_once], part)
                    with tf.name_scope("microbatch"):
                        results[m] = compute(copies, state, m, part)
        return parts, results

    def _among(self, count: int) -> exchange.Exchange:
        """Who computes which of `count` microbatches."""
        return exchange.Exchange(self._workers, self._towers_of_workers, count, self._alone)

    def _runs(self, count: int) -> list[tuple[int, range]]:
        """(tower, its consecutive microbatches) of `count`, without towers that have none."""
        return [(tower, own) for tower, own in enumerate(self._among(count).own) if own]

    def _sums(self, leaves: dict, weights: Sequence[float]) -> gradients.Sums:
        """The weighted sums over microbatches, along the fixed tree; each tower adds its own.

        Args:
          leaves: `leaves[m][w]`, of microbatch m of this worker with respect to weight w.
          weights: of every microbatch of the batch.
        """
        sums: dict[gradients.Subtree, Sequence[gradients.Gradient]] = {}
        for tower, own in self._runs(len(weights)):
            with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}/sum"):
                weighted = [
                    leaves[m] if weights[m] == 1 else gradients.scale(leaves[m], weights[m])
                    for m in own
                ]
                sums |= gradients.sum_over_share(weighted, own, len(weights))
        return sums

    def _changes(
        self, forwards: Sequence[microbatch.Forward], weights: list[float]
    ) -> updating.Changes:
        """New values of what is not trained, from those of the microbatches.

        Batch statistics are averaged over examples, a random layer's counter moves on, and what
        the passes add to metrics of layers and of single outputs is added.
        """
        changes, model = [], self.model
        with tf.name_scope("state"):
            for index, variable in enumerate(model.non_trainable_variables):
                new = [forward.state[index] for forward in forwards]
                if new[0] is None:
                    continue
                if model_state.is_draw_counter(variable):
                    draws = len(new) * model_state.DRAWS_PER_MICROBATCH
                    value = variable.value + tf.constant([0, draws], variable.dtype)
                elif new[0].dtype.is_floating:
                    value = _mean(new, weights)
                else:
                    value = new[0]
                changes.append((variable, value))
            for index, variable in enumerate(model.metrics_variables):
                added = [forward.metrics[index] for forward in forwards]
                if added[0] is not None:
                    value = variable.value + gradients.pairwise_tree(added, tf.add)
                    changes.append((variable, value))
        return changes


class Prediction(Program):
    """Keras's predict step on towers: the outputs of a batch, in its order."""

    def __init__(self, model: keras.Model, tower_devices: Sequence[str]):
        super().__init__(model, tower_devices, training=False, joined=True)

    def _build(self, batch, size: int):
        def compute(own, state, m: int, part):
            x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(part)
            return self.pass_.forward(own, state, _number(m), x)

        parts, results = self._on_towers(batch, size, compute)
        forwards = list(results.values())
        for variable, value in self._changes(forwards, _weights(parts, size)):
            variable.assign(value)
        return microbatch.join_outputs(forwards)


def _number(m: int) -> tf.Tensor:
    """A microbatch's number in its batch, as a pass takes it."""
    return tf.constant(m, tf.int64)


def _weights(parts: Sequence, size: int) -> list[float]:
    """What each microbatch counts: 1, or less for one that is shorter than the others."""
    if len(parts) == 1:
        return [1.0]
    return [cutting.num_examples(part) / size for part in parts]


def _mean(values: Sequence[tf.Tensor], weights: Sequence[float]) -> tf.Tensor:
    """The mean over examples of the microbatches' means, which their sizes weight."""
    weighted = [
        value if weight == 1 else value * tf.cast(weight, value.dtype)
        for value, weight in zip(values, weights, strict=True)
    ]
    total = gradients.pairwise_tree(weighted, tf.add)
    return total if len(values) == 1 else total / tf.cast(sum(weights), total.dtype)


def _merge_equal_rows(value: gradients.Gradient, parts: Sequence) -> gradients.Gradient:
    """The rows of an embedding as Keras's `fit` gives them to the optimizer.

    The rows of all examples, in their order, are the batch's own: optimizers square them one by
    one. But where all microbatches have the same rows, as those of positions, the batch has them
    once, summed over its examples. Where all examples have the same rows, as a token that begins
    each of them, microbatches have them, too; these stay.
    """
    count, examples = len(parts), sum(map(cutting.num_examples, parts))
    if not isinstance(value, tf.IndexedSlices) or count == 1:
        return value
    total = tf.shape(value.indices)[0]
    rows = total // count

    def are_of_examples():
        each = total // examples
        of_each = tf.reshape(value.indices[: each * examples], [examples, each])
        return tf.reduce_all(of_each == of_each[:1])

    def merged():
        indices = tf.reshape(value.indices[: rows * count], [count, rows])
        same = tf.reduce_all(indices == indices[:1])
        if examples > count:
            of_examples = tf.cond(total % examples == 0, are_of_examples, lambda: False)
            same &= ~of_examples
        values = tf.reshape(value.values[: rows * count], [count, rows, *value.values.shape[1:]])
        summed = gradients.pairwise_tree(tf.unstack(values, num=count), tf.add)
        return tf.cond(same, lambda: (summed, indices[0]), lambda: (value.values, value.indices))

    values, indices = tf.cond(total == rows * count, merged, lambda: (value.values, value.indices))
    return tf.IndexedSlices(values, indices, value.dense_shape)


def _back(tape, weights, outputs, incoming) -> list[gradients.Gradient]:
    """From the gradients with respect to the outputs of a microbatch to those of the weights."""
    known = [
        tf.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, incoming, strict=True)
    ]
    return tape.gradient(outputs, list(weights), output_gradients=known)


def _floating(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _after(result, part):
    """The inputs of a microbatch, once an earlier one is done: this bounds what is in memory."""
    # Identities, because inlining drops a control edge from a call.
    values = tf.nest.flatten(result, expand_composites=True)
    done = [tf.identity(value) for value in values if value is not None]
    with tf.control_dependencies(done):
        return tree.map_structure(lambda t: None if t is None else tf.identity(t), part)
