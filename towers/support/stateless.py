"""Keras models called as pure functions."""

import itertools
from collections.abc import Sequence

import keras
import tensorflow as tf

from towers.support import adapted, structures

_INSTEAD = (
    "let the layer keep a keras.random.SeedGenerator, and give it to keras.random as seed=, as "
    "Keras's own layers do"
)


def call(
    model: keras.Model,
    weights: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    inputs: structures.Structure,
    *,
    training: bool,
    return_losses: bool = False,
):
    """`model.stateless_call`, with `training` where the model's own `call` takes it.

    Keras's `fit` does the same: a model without that argument decides by itself.

    Raises:
      ValueError: the model draws random numbers that depend on more than `state`.
    """
    mode = {"training": training} if model._call_has_training_arg else {}
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = len(graph.get_operations()) if graph else 0
    with adapted.read_from(model, state):
        found = model.stateless_call(weights, state, inputs, return_losses=return_losses, **mode)
    if graph:
        _check_draws(model, graph, graph.get_operations()[before:])
    return found


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
        raise ValueError(
            f"the model {model.name} draws random numbers with a generator that none of its layers "
            f"has, so each step would draw the same: {_INSTEAD}"
        )
    functions = [function.node_def for function in graph.as_graph_def().library.function]
    nodes = itertools.chain((operation.node_def for operation in of_call), *functions)
    for node in filter(_draws_by_state, nodes):
        raise ValueError(
            f"the model {model.name} draws random numbers with {node.op} ({node.name}), as "
            "tf.random.normal and tf.random.Generator do: they depend on what was drawn before, "
            f"and so on the number of towers: {_INSTEAD}"
        )


def _reads_generator(operation: tf.Operation) -> bool:
    """Whether it reads a variable like that of a `keras.random.SeedGenerator`: two integers."""
    if operation.type != "ReadVariableOp":
        return False
    [value] = operation.outputs
    return value.dtype == tf.int64 and value.shape == [2]


def _draws_by_state(node: tf.compat.v1.NodeDef) -> bool:
    """Whether an operation counts its draws: by two seeds of its own, or in a generator."""
    if node.op.startswith("CudnnRNN") or node.op == "StatefulPartitionedCall":
        return False
    return "seed2" in node.attr or node.op.startswith(("Rng", "Stateful"))
