"""A step of Keras's `fit`, `evaluate` or `predict` on towers: one graph with every tower in it.

    cut_batch -> tower_0 ... tower_{k-1} -> average_gradients -> apply -> state -> metrics

The loop over towers in `_on_towers` runs once, while the graph is built. The graph it leaves has k
towers that depend on nothing but their own inputs, and TensorFlow runs them side by side.
"""

import dataclasses
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
    machine,
    microbatch,
    model_state,
    operation_gradients,
    packing,
    refusals,
    shares,
    updating,
    worker,
)

ConcreteFunction: TypeAlias = tf.types.experimental.ConcreteFunction


def parameter_device(model: keras.Model) -> str:
    """Where the weights are, the gradients are averaged and the weights are updated."""
    if not model.variables:
        return devices.HOST
    spec = tf.DeviceSpec.from_string(model.variables[0].value.device)
    return f"/{spec.device_type}:{spec.device_index or 0}"


@dataclasses.dataclass(eq=False)
class Program:
    """Keras's train or test step on towers.

    Attributes:
      model: compiled and built, with its loss, metrics and optimizer.
      tower_devices: one device for each tower.
      training: whether a step updates the weights.
      joined: one loss of the joined outputs, in place of one for each microbatch.
      reason: why it is joined, if towers chose it.
      watched, after_update: as `updating.Update` takes them.
      workers, towers_of_workers: that make a step together, and how many towers each has.
      accumulate_gradients: a tower computes its microbatches one after the other.
      pass_: the passes of a microbatch.
    """

    model: keras.Model
    tower_devices: Sequence[str]
    training: bool
    joined: bool
    reason: str | None = None
    watched: bool = False
    after_update: Sequence[Callable[[int], None]] = ()
    workers: worker.Workers = dataclasses.field(default_factory=worker.Workers)
    towers_of_workers: Sequence[int] = ()
    accumulate_gradients: bool = False

    def __post_init__(self):
        self.pass_ = microbatch.Microbatch(self.model, self.training, bool(self.model.jit_compile))
        self._update = updating.Update(self.model, self.training, self.watched, self.after_update)
        self._at_once = 1 if self.accumulate_gradients else shares.at_once(self.tower_devices)
        self._graphs: dict[str, ConcreteFunction] = {}  # by what a batch is like
        self._functions: dict[str, Any] = {}  # by that without lengths beside the examples
        self._steps: dict[ConcreteFunction, Any] = {}  # several in a call
        self._trained_at_first = self._trained()

    def _trained(self) -> list:
        compiled = [getattr(self.model, name, None) for name in ("optimizer", "_loss_tracker")]
        return [*self.model.trainable_variables, *compiled]

    def check_trained(self) -> None:
        """Raises ValueError where what is trained, or compiled, is not what it was at first."""
        if self.training and [*map(id, self._trained())] != [*map(id, self._trained_at_first)]:
            raise ValueError(
                "trainable or the optimizer has changed: change it before fit, then call compile"
            )

    def trace(self, batch: cutting.Structure, size: int) -> ConcreteFunction:
        """The graph for such batches, [n, ...], in microbatches of `size`; finds out what fails."""
        exact = f"{size} {cutting.signature(batch)}"
        if exact not in self._graphs:
            self._graphs[exact] = self._trace(batch, size)
            self._compile_on_first_gpu(batch, size)
        return self._graphs[exact]

    def _compile_on_first_gpu(self, batch: cutting.Structure, size: int) -> None:
        """Makes a pass on one GPU before several do, without effect but for XLA's choices.

        XLA chooses kernels by their time, and would choose for each GPU by itself.
        """
        gpus = {device for device in self.tower_devices if not machine.are_cpus([device])}
        if len(gpus) < 2 or self.joined or not self.pass_.jit_compile:
            return
        parts = cutting.cut(batch, size)
        with operation_gradients.corrected(True), tf.device(self.tower_devices[0]):
            scale = updating.loss_scale(self.model.optimizer) if self.training else None
            for part in (parts[0], parts[-1]):  # which may be shorter
                self.pass_.backward(*self.pass_.values(), _number(0), part, scale)

    def _trace(self, batch: cutting.Structure, size: int) -> ConcreteFunction:
        # TensorFlow finds graphs as well, but takes a tenth of a millisecond for it.
        kind = f"{size} {[(t.shape[0], t.shape.rank) for t in cutting.tensors(batch)]}"
        if kind not in self._functions:
            self._functions[kind] = self._function(size, alone=False)
        try:
            return self._functions[kind].get_concrete_function(batch)
        except exchange.UnevenRows:  # rare: a last batch of a model with embeddings
            self._functions[kind] = self._function(size, alone=True)
            return self._functions[kind].get_concrete_function(batch)

    def _function(self, size: int, alone: bool) -> Any:
        """The step; where `alone`, each worker computes the whole batch.

        From the second shape on that differs only beside the examples, as the lengths of padded
        texts do, one graph takes them all. XLA and several workers need each shape.
        """
        is_fixed = self.pass_.jit_compile or self.workers.count > 1
        return tf.function(
            lambda batch: self._build(batch, size, alone),
            autograph=False,
            reduce_retracing=not is_fixed,
        )

    def __call__(self, batch: cutting.Structure, size: int) -> Any:
        """Makes a step.

        Returns:
          The metrics after it, as from Keras's `train_step`; and the `Watched` if `watched`.

        Raises:
          InvalidArgumentError: from `updating.check_finite`, if `watched`; nothing was updated.
        """
        return self.trace(batch, size)(batch)

    def make_steps(self, batches: Sequence[cutting.Structure], size: int) -> Any:
        """Makes a step of each batch, one after the other; returns what the last gives.

        Of batches that are alike it is one call of TensorFlow. Several workers make a call for
        each: collectives of one call may not meet twice.
        """
        graphs = [self.trace(batch, size) for batch in batches]
        if len(set(graphs)) > 1 or len(batches) == 1 or self.workers.count > 1:
            return [graph(batch) for graph, batch in zip(graphs, batches, strict=True)][-1]
        step = graphs[0]
        if step not in self._steps:
            self._steps[step] = tf.function(lambda data: [*map(step, data)][-1], autograph=False)
        return self._steps[step](list(batches))

    def _build(self, batch, size: int, alone: bool):
        self.check_trained()
        parts = len(cutting.sizes(cutting.num_examples(batch), size))
        towers_of_workers = self.towers_of_workers or [len(self.tower_devices)]
        among = exchange.Exchange(self.workers, towers_of_workers, parts, alone)
        in_towers = operation_gradients.corrected(self.pass_.jit_compile)
        with in_towers, tf.device(parameter_device(self.model)):  # of all but the towers
            return self._step(batch, size, among)

    def _step(self, batch, size: int, among: exchange.Exchange):
        return (self._joined if self.joined else self._separate)(batch, size, among)

    def _separate(self, batch, size: int, among: exchange.Exchange):
        """Each microbatch has a loss of its own; they are averaged, and so are the gradients."""
        scale = updating.loss_scale(self.model.optimizer) if self.training else None

        def compute(copies: Sequence[tf.Tensor], state, m: int, part) -> microbatch.Backward:
            return self.pass_.backward(copies, state, _number(m), part, scale)

        sizes, results = self._on_towers(batch, size, among, compute)
        weights = _weights(sizes, size)
        leaves = {m: one.gradients for m, one in results.items()}
        passes = {m: one.forward for m, one in results.items()}
        with tf.name_scope("average_gradients") as in_average:
            total, forwards = among(*self._collect(leaves, passes, weights, among), sizes)
            total = self._merge_same_rows(total, sizes)

        def average() -> updating.Averages:
            losses = [forward.loss for forward in forwards]
            with tf.name_scope(in_average):
                mean = total
                if len(sizes) > 1:
                    mean = [gradients.over(value, sum(weights)) for value in total]
                loss = _mean(losses, weights)
            return updating.Averages(loss, losses, mean, self._changes(forwards, weights))

        return self._update(batch, forwards, total, average)

    def _joined(self, batch, size: int, among: exchange.Exchange):
        """The towers' outputs are joined for one loss, whose gradients go back to the towers."""
        model = self.model
        tapes: dict[int, tuple[tf.GradientTape, Sequence[tf.Tensor], list[tf.Tensor]]] = {}

        def compute(copies: Sequence[tf.Tensor], state, m: int, part) -> microbatch.Forward:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(part)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(copies)
                forward = self.pass_.forward(copies, state, _number(m), x)
            tapes[m] = tape, copies, _floating(forward)
            return forward

        sizes, results = self._on_towers(batch, size, among, compute)
        weights = _weights(sizes, size)
        nothing: dict[int, list] = {m: [] for m in results}
        _, forwards = among(*self._collect(nothing, results, weights, among), sizes)
        sources = [_floating(forward) for forward in forwards]
        values = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        changes = self._changes(forwards, weights)
        with tf.name_scope("joined_loss"), tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch([sources, values])
            loss, changes = self._loss_of_joined(batch, forwards, weights, values, changes)
            scaled = model.optimizer.scale_loss(loss) if self.training else loss
        mean = []
        if self.training:
            direct, upstream = outer.gradient(scaled, [values, sources])
            leaves: dict[int, list[gradients.Gradient]] = {}
            for tower, share in among.shares:
                with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}/backward"):
                    leaves |= {m: _back(*tapes[m], upstream[m]) for m in share}
            with tf.name_scope("average_gradients"):
                total, _ = among(*self._collect(leaves, {}, [1] * len(sizes), among), sizes)
                total = self._merge_same_rows(total, sizes)
                mean = gradients.add_weight_by_weight(total, direct)
        averages = updating.Averages(loss, [loss], mean, changes)
        return self._update(batch, forwards, mean, lambda: averages)

    def _loss_of_joined(self, batch, forwards, weights, values, changes: updating.Changes) -> tuple:
        """Keras's loss of the whole batch, and the changes with what the loss assigns itself."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        others = [*model.non_trainable_variables, *model.metrics_variables]
        changed = {id(variable): value for variable, value in changes}
        before = [tf.convert_to_tensor(changed.get(id(v), v.value)) for v in others]
        by_layer = zip(*(forward.losses for forward in forwards), strict=True)
        layer_losses = [_mean(losses, weights) for losses in by_layer]
        mapping = [*zip(model.trainable_variables, values), *zip(others, before)]  # noqa: B905
        scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
        with refusals.no_lost_state(model, scope), scope:
            if layer_losses:
                model._losses_override = [*layer_losses, *model._get_regularization_losses()]
            try:
                loss = model._compute_loss(
                    x, y, microbatch.join_outputs(forwards), sample_weight, training=self.training
                )
            finally:
                model._losses_override = []
        after = [scope.get_current_value(variable) for variable in others]
        return loss, [
            (variable, value)
            for variable, old, value in zip(others, before, after, strict=True)
            if value is not old or id(variable) in changed
        ]

    def _on_towers(self, batch, size: int, among, compute: Callable) -> tuple[list, dict]:
        """Builds every tower on its device, each with its microbatches; in their order.

        Returns:
          The sizes of all microbatches, and what `compute` gives for those of this worker.
        """
        with tf.device(devices.HOST), tf.name_scope("cut_batch"):
            batches = {  # one copy of each tensor for a GPU
                tower: cutting.share(batch, share.start * size, share.stop * size)
                for tower, share in among.shares
            }
        with tf.name_scope("weights"):
            values = self.pass_.values()
            if any(self._is_packed(tower) for tower, _ in among.shares):
                packed = packing.Packed(values)
        results: dict[int, Any] = {}  # of this worker's microbatches, in order
        for tower, share in among.shares:
            with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}"):
                tower_values = packed.unpacked() if self._is_packed(tower) else values
                copies, state = tf.nest.map_structure(tf.identity, tower_values)  # the tower's own
                for m, part in zip(share, cutting.cut(batches[tower], size), strict=True):
                    if self._at_once and m - share.start >= self._at_once:
                        part = _after(results[m - self._at_once], part)
                    with tf.name_scope("microbatch"):
                        results[m] = compute(copies, state, m, part)
        return cutting.sizes(cutting.num_examples(batch), size), results

    def _is_packed(self, tower: int) -> bool:
        """Whether what a tower gets and gives is copied, to or from a GPU; else it is shared."""
        places = [self.tower_devices[tower], parameter_device(self.model)]
        return len(set(places)) == 2 and not machine.are_cpus(places)

    def _collect(
        self, leaves: dict, passes: dict, weights: Sequence[float], among
    ) -> tuple[gradients.Sums, list[microbatch.Forward]]:
        """What the towers have computed, where it is averaged: sums of gradients, and the passes.

        Each tower adds up `leaves[microbatch][weight]` of its own microbatches along the fixed
        tree. Each of them counts as `weights` says.
        """
        sums: dict[gradients.Subtree, Sequence[gradients.Gradient]] = {}
        forwards: list[microbatch.Forward] = []
        for tower, share in among.shares:
            with tf.device(self.tower_devices[tower]), tf.name_scope(f"tower_{tower}/sum"):
                weighted = [
                    [g if weights[m] == 1 else gradients.times(g, weights[m]) for g in leaves[m]]
                    for m in share
                ]
                tower_sums = gradients.sum_over_share(weighted, share, len(weights))
                values = list(tower_sums.values()), [passes[m] for m in share if passes]
                packed = packing.Packed(values) if self._is_packed(tower) else None
            summed, tower_passes = packed.unpacked() if packed else values
            sums |= dict(zip(tower_sums, summed, strict=True))
            forwards += tower_passes
        return sums, forwards

    def _merge_same_rows(self, total: Sequence[gradients.Gradient], sizes: Sequence[int]) -> list:
        """The rows of embeddings as Keras's `fit` gives them to the optimizer.

        The rows of all examples, in their order, are the batch's own: optimizers square them one by
        one. But the rows of positions, which all microbatches take, the batch has once, summed over
        its examples; one for each example, as of a token that begins all of them, stay.
        """

        def merged(value: tf.IndexedSlices) -> tf.IndexedSlices:
            rows = tf.shape(value.indices)[0] // len(sizes)
            parts = tf.reshape(value.values, [len(sizes), rows, *value.values.shape[1:]])
            summed = gradients.pairwise_tree(tf.unstack(parts, num=len(sizes)), tf.add)
            return tf.IndexedSlices(summed, value.indices[:rows], value.dense_shape)

        return [
            merged(value) if isinstance(value, tf.IndexedSlices) and is_same else value
            for value, is_same in zip(total, self.pass_.has_same_rows, strict=True)
        ]

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
                value = _mean(new, weights) if new[0].dtype.is_floating else new[0]
                if model_state.is_draw_counter(variable):
                    draws = len(new) * model_state.DRAWS_PER_MICROBATCH
                    value = variable.value + tf.constant([0, draws], variable.dtype)
                changes.append((variable, value))
            for index, variable in enumerate(model.metrics_variables):
                added = [forward.metrics[index] for forward in forwards]
                if added[0] is not None:
                    value = variable.value + gradients.pairwise_tree(added, tf.add)
                    changes.append((variable, value))
        return changes


@dataclasses.dataclass(eq=False)
class Prediction(Program):
    """Keras's predict step on towers: the outputs of a batch, in its order."""

    training: bool = False
    joined: bool = True

    def _step(self, batch, size: int, among: exchange.Exchange):
        def compute(copies, state, m: int, part) -> microbatch.Forward:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(part)
            return self.pass_.forward(copies, state, _number(m), x)

        sizes, results = self._on_towers(batch, size, among, compute)
        forwards = list(results.values())
        for variable, value in self._changes(forwards, _weights(sizes, size)):
            variable.assign(value)
        return microbatch.join_outputs(forwards)


def _number(m: int) -> tf.Tensor:
    """A microbatch's number in its batch, as a pass takes it."""
    return tf.constant(m, tf.int64)


def _weights(sizes: Sequence[int], size: int) -> list[float]:
    """What each microbatch counts: 1, or less for one that is shorter than the others."""
    return [1.0] if len(sizes) == 1 else [one / size for one in sizes]


def _mean(values: Sequence[tf.Tensor], weights: Sequence[float]) -> tf.Tensor:
    """The mean over examples of the microbatches' means, which their sizes weight."""
    weighted = [
        value if weight == 1 else value * tf.cast(weight, value.dtype)
        for value, weight in zip(values, weights, strict=True)
    ]
    total = gradients.pairwise_tree(weighted, tf.add)
    return total if len(values) == 1 else total / tf.cast(sum(weights), total.dtype)


def _back(tape, weights, outputs, incoming) -> list[gradients.Gradient]:
    """From the gradients with respect to the outputs of a microbatch to those of the weights."""
    known = [
        tf.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, incoming, strict=True)
    ]
    return tape.gradient(outputs, list(weights), output_gradients=known)


def _floating(forward: microbatch.Forward) -> list[tf.Tensor]:
    """What of a pass a joined loss may depend on."""
    tensors = [*tree.flatten(forward.outputs), *forward.losses]
    return [t for t in tensors if t is not None and (t.dtype.is_floating or t.dtype.is_complex)]


def _after(result, part):
    """The inputs of a microbatch, once an earlier one is done: this bounds what is in memory."""
    # Identities, because inlining drops a control edge from a call.
    values = tf.nest.flatten(result, expand_composites=True)
    done = [tf.identity(value) for value in values if value is not None]
    with tf.control_dependencies(done):
        return tree.map_structure(lambda t: None if t is None else tf.identity(t), part)
