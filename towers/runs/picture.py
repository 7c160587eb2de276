"""The graph of a step as TensorBoard draws it: each tower a box that only shared weights join."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

Node: TypeAlias = tf.compat.v1.NodeDef


def of_graph(graph: tf.Graph) -> tf.compat.v1.GraphDef:
    """The graph with its calls written out, as TensorFlow runs it.

    A microbatch is traced once and called for each one; here the scope of each call holds the
    operations that run in its place, on the tower's device. What XLA compiles stays a call, and so
    does a call within a call. What tf.function adds to return its results (identities, and a NoOp
    that waits for every update) is left out.
    """
    whole = graph.as_graph_def()
    bodies = {body.signature.name: body for body in whole.library.function}
    within = collections.Counter(
        scope for node in whole.node for scope in itertools.accumulate(_scopes(node.name))
    )
    nodes: list[Node] = []
    moved: dict[str, list[str]] = {}  # what reads a call to what it reads now
    for node in whole.node:
        if node.op in ("Identity", "NoOp") and "/" not in node.name:
            continue
        body = bodies.get(node.attr["f"].func.name) if "f" in node.attr else None
        if body is None or "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b:
            nodes.append(node)
        else:
            scope = "".join(_scopes(node.name))
            alone = within[scope] == 1
            call = _Call(node, body, scope if alone else f"{node.name}/", _places(body, graph))
            nodes += call.operations()
            moved |= call.results()
    drawn = tf.compat.v1.GraphDef()
    for node in nodes:
        copy = drawn.node.add()
        copy.CopyFrom(node)
        inputs = [moved.get(name, [name]) for name in node.input]
        copy.input[:] = itertools.chain.from_iterable(inputs)
    return drawn


def _scopes(name: str) -> list[str]:
    """The scopes around an operation `a/b/c`: `a/`, `b/`."""
    return [f"{scope}/" for scope in name.split("/")[:-1]]


def _places(body, graph: tf.Graph) -> Mapping[str, int]:
    """`node:output`, as functions name a result, to its place among all results of the node."""
    places = {}
    for node in body.node_def:
        place = 0
        for output in graph.op_def_for_type(node.op).output_arg:
            places[f"{node.name}:{output.name}"] = place
            if output.number_attr:
                place += node.attr[output.number_attr].i
            elif output.type_list_attr:
                place += len(node.attr[output.type_list_attr].list.type)
            else:
                place += 1
    return places


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a function in a graph, to be replaced by the operations of the function."""

    node: Node
    body: Any  # a FunctionDef
    scope: str
    places: Mapping[str, int]

    def operations(self) -> Iterator[Node]:
        given = [name for name in self.node.input if not name.startswith("^")]
        names = [argument.name for argument in self.body.signature.input_arg]
        arguments = dict(zip(names, given, strict=True))
        for node in self.body.node_def:
            operation = Node()
            operation.CopyFrom(node)
            operation.name = self.scope + node.name
            operation.device = node.device or self.node.device
            operation.input[:] = [
                arguments[name] if name in arguments else self._source(name) for name in node.input
            ]
            yield operation

    def results(self) -> dict[str, list[str]]:
        """By the name under which other operations read a result: what they read instead."""
        results = {
            f"^{self.node.name}": [f"^{self.scope}{n}" for n in self.body.control_ret.values()]
        }
        for place, output in enumerate(self.body.signature.output_arg):
            name = f"{self.node.name}:{place}" if place else self.node.name
            results[name] = [self._source(self.body.ret[output.name])]
        return results

    def _source(self, name: str) -> str:
        if name.startswith("^"):
            return f"^{self.scope}{name[1:]}"
        output, _, index = name.rpartition(":")
        place = self.places[output] + int(index)
        source = self.scope + output.partition(":")[0]
        return f"{source}:{place}" if place else source
