"""The type in which a model's first layers compute, where they all compute in the same one."""

import keras
import tensorflow as tf
from keras.src.models import functional


def inputs_type(model: keras.Model) -> tf.DType | None:
    """bfloat16 or float16, if every layer that reads an input of the model converts it to that.

    Float32 inputs that are converted earlier, before they are copied to a tower, then give the
    same bits. None for any other model: a first layer that computes in float32, an operation that
    is not a layer, or a model that does not say what reads its inputs.
    """
    types = {_converted_to(operation) for operation in _readers(model)}
    only = types.pop() if len(types) == 1 else None
    return only if only in (tf.bfloat16, tf.float16) else None


def _readers(model: keras.Model) -> list:
    """What reads an input of a Sequential or functional model; of other models nothing is known."""
    if type(model) is keras.Sequential:
        return model.layers[:1]
    if type(model) is not functional.Functional:  # a subclass may have a `call` of its own
        return []
    given = {id(tensor) for tensor in tf.nest.flatten(model.inputs)}
    return [
        operation
        for operation in model.operations
        for node in operation._inbound_nodes
        if given & {id(tensor) for tensor in node.input_tensors}
    ]


def _converted_to(operation) -> tf.DType | None:
    if isinstance(operation, keras.Model):
        return inputs_type(operation)
    if not isinstance(operation, keras.layers.Layer):
        return None
    # As `Layer.__call__` decides it.
    converts = operation.autocast and operation._convert_input_args
    return tf.as_dtype(operation.input_dtype) if converts else None
