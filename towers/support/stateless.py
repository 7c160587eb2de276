"""Keras models called as pure functions."""

import itertools
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from towers.support import adapted

_INSTEAD = (
    "let the layer keep a keras.random.SeedGenerator, and give it to keras.random as seed=, as "
    "Keras's own layers do"
)


def call(
    model: keras.Model,
    weights: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    inputs,
    *,
    training: bool,
    return_losses: bool = False,
):
    """What `model(inputs)` gives for these values of its variables, which stay as they are.

    As in Keras's `fit`, the model's layers learn from its call whether they train, and `training`
    is given where its own `call` takes it. (`model.stateless_call` calls `call` itself: layers that
    get no `training` from it would then not train, and of a layer that is called twice the first
    losses would be lost.)

    Returns:
      As `model.stateless_call`: (outputs, state after the call), and the losses where asked for.

    Raises:
      ValueError: the model draws random numbers that depend on more than `state`, or changes
        something that is neither in `state` nor comes back.
    """
    mode = {"training": training} if model._call_has_training_arg else {}
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = len(graph.get_operations()) if graph else 0
    others = model.non_trainable_variables
    given = [
        *zip(model.trainable_variables, weights, strict=True),
        *zip(others, state, strict=True),
    ]
    with adapted.read_from(model, state), keras.StatelessScope(given, return_losses) as scope:
        values = dict(scope.state_mapping)
        outputs = model(inputs, **mode)
        model_losses = model.losses if return_losses else None
    if graph:
        of_call = graph.get_operations()[before:]
        _check_draws(model, graph, of_call)
        _check_assigns(model, of_call)
    _check_changes(model, values, scope.state_mapping)
    after = [scope.get_current_value(variable) for variable in others]
    return (outputs, after, model_losses) if return_losses else (outputs, after)


def _check_changes(model: keras.Model, before: Mapping, after: Mapping) -> None:
    """Checks that a call has changed no variable but those that are not trained."""
    for variable in model.trainable_variables:
        if after[id(variable)] is not before[id(variable)]:
            raise ValueError(
                f"the model {model.name} assigns its trainable weight {variable.path} when it is "
                "called, as SpectralNormalization does, and the update would not see that: use a "
                "constraint, or a weight that is not trainable"
            )
    new = [after[key] for key in set(after) - set(before)]
    if any(map(_is_of_generator, new)):
        raise _of_no_layer(model)
    if new:
        stateful = [
            layer.name
            for layer in model._flatten_layers(include_self=False)
            if getattr(layer, "stateful", False)
        ]
        raise ValueError(
            f"the model {model.name} assigns a variable that is not among model.variables, so its "
            "value would be lost after each step: "
            + (
                f"the layer {stateful[0]} is stateful, but examples have an order of their own in "
                "each epoch; give each its whole sequence"
                if stateful
                else "make it with self.add_weight(..., trainable=False)"
            )
        )


def _check_assigns(model: keras.Model, of_call: Sequence[tf.Operation]) -> None:
    """Checks that a call assigns no variable of TensorFlow's, which no checkpoint would have."""
    for operation in of_call:
        if operation.type.startswith("Assign") and operation.type.endswith("VariableOp"):
            raise ValueError(
                f"the model {model.name} assigns a tf.Variable when it is called "
                f"({operation.name}), which is not part of its state: make it with "
                "self.add_weight(..., trainable=False)"
            )


def _check_draws(model: keras.Model, graph: tf.Graph, of_call: Sequence[tf.Operation]) -> None:
    """Checks that each draw of a call's operations is a function of what the call is given."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.AugMix):
            raise ValueError(
                f"the layer {layer.name} is an AugMix, which draws its operations once, when the "
                "graph is built, and keeps them: use keras.layers.RandAugment"
            )
    # A model's own generators are among its variables, which are given to the call and not read.
    if any(map(_reads_generator, of_call)):
        raise _of_no_layer(model)
    functions = [function.node_def for function in graph.as_graph_def().library.function]
    nodes = itertools.chain((operation.node_def for operation in of_call), *functions)
    for node in filter(_draws_by_state, nodes):
        raise ValueError(
            f"the model {model.name} draws random numbers with {node.op} ({node.name}), as "
            "tf.random.normal and tf.random.Generator do: they depend on what was drawn before, "
            f"and so on the number of towers: {_INSTEAD}"
        )


def _of_no_layer(model: keras.Model) -> ValueError:
    return ValueError(
        f"the model {model.name} draws random numbers with a generator that none of its layers "
        f"has, so each step would draw the same: {_INSTEAD}"
    )


def _reads_generator(operation: tf.Operation) -> bool:
    return operation.type == "ReadVariableOp" and _is_of_generator(operation.outputs[0])


def _is_of_generator(value: tf.Tensor) -> bool:
    """Whether it is like the state of a `keras.random.SeedGenerator`: two integers."""
    return value.dtype == tf.int64 and value.shape == [2]


def _draws_by_state(node: tf.compat.v1.NodeDef) -> bool:
    """Whether an operation counts its draws: by two seeds of its own, or in a generator."""
    if node.op.startswith("CudnnRNN") or node.op == "StatefulPartitionedCall":
        return False
    return "seed2" in node.attr or node.op.startswith(("Rng", "Stateful"))
