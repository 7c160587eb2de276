"""The type in which a model's first layers compute, where they all compute in the same one."""

import keras
import tensorflow as tf
from keras.src.models import functional


def inputs_type(model: keras.Model) -> tf.DType | None:
    """bfloat16 or float16, if all layers that read an input convert it to that type.

    Float32 inputs that are converted earlier, before they are copied to a tower, then give the
    same bits. None for any other model: a first layer that computes in float32 or takes its input
    as it is, an operation that is not a layer, an input that is also an output or has another type,
    or a model that does not say what reads its inputs.
    """
    graph = model._functional if type(model) is keras.Sequential else model
    if type(graph) is not functional.Functional:  # a subclass may have a `call` of its own
        return None
    inputs, outputs = tf.nest.flatten(graph.inputs), tf.nest.flatten(graph.outputs)
    given = {id(tensor) for tensor in inputs}
    types = {
        _converted_to(operation)
        for operation in graph.operations
        for node in operation._inbound_nodes
        if given & {id(tensor) for tensor in node.input_tensors}
    }
    only = types.pop() if len(types) == 1 else None
    if only not in (tf.bfloat16, tf.float16) or given & {id(tensor) for tensor in outputs}:
        return None
    return only if all(tensor.dtype in ("float32", only.name) for tensor in inputs) else None


def _converted_to(operation) -> tf.DType | None:
    if isinstance(operation, keras.Model):
        return inputs_type(operation)
    if not isinstance(operation, keras.layers.Layer):
        return None
    # As `Layer.__call__` decides it.
    converts = operation.autocast and operation._convert_input_args
    return tf.as_dtype(operation.input_dtype) if converts else None
