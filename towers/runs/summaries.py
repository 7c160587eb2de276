"""What TensorBoard shows of a run.

All summaries are written outside the training step's graph, from tensors it returns at every step:
the graph is then the same whatever is watched, and its picture keeps the towers in the middle. A
file that cannot be written raises a RunFolderError.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.scalar import summary
from tensorflow.python.framework import convert_to_constants

from towers import errors
from towers.runs import run_folder

MAX_IMAGES = 8
BY_EXAMPLES = "by_examples_seen/"  # with the examples seen in place of the step


def file_writer(folder: Path) -> tf.summary.SummaryWriter:
    """A writer of event files in `folder`."""
    with _on_disk():
        return tf.summary.create_file_writer(str(folder))


@contextlib.contextmanager
def events(writer: tf.summary.SummaryWriter, at_step: int) -> Iterator[None]:
    """While entered, summaries are of a step, or of so many examples seen; then on the disk."""
    # As an array: TensorFlow 2.21 keeps every Python number forever (tensorflow#68196).
    with _on_disk(), writer.as_default(step=tf.constant(np.int64(at_step))):
        yield
        writer.flush()


def scalars(values: Mapping[str, float]) -> None:
    """Writes numbers by their tags, all at once: an operation for each takes 0.5 ms."""
    event = summary_pb2.Summary()
    for tag, value in values.items():
        event.MergeFrom(summary.scalar_pb(tag, float(value)))
    tf.summary.experimental.write_raw_pb(event.SerializeToString(), name="scalars")


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    """Turns TensorFlow's error into a RunFolderError, which says which file or tensor it is of."""
    try:
        yield
    except tf.errors.OpError as error:
        raise run_folder.RunFolderError(
            f"TensorBoard's files cannot be written: {errors.reason(error)}"
        ) from error


def stretched(images: np.ndarray) -> np.ndarray:
    """Maps the range of each image, floating [n, height, width, channels], to [0, 1]."""
    low = images.min(axis=(1, 2, 3), keepdims=True)
    high = images.max(axis=(1, 2, 3), keepdims=True)
    return (images - low) / np.maximum(high - low, 1e-6)


def with_activations(model: keras.Model) -> keras.Model | None:
    """The model with the activation of each nonlinear layer as an output, beside its own.

    None for a subclassed model, which has no graph of layers to look into.
    """
    if not getattr(model, "inputs", None):
        return None
    outputs = {  # of an LSTM with its states, the sequence or the last output
        layer.name: tf.nest.flatten(layer.output)[0]
        for layer in model.layers
        if isinstance(layer, keras.layers.ReLU)
        or getattr(layer, "activation", None) not in (None, keras.activations.linear)
    }
    model_outputs = {output._keras_history.operation.name: output for output in model.outputs}
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    try:
        return keras.Model(inputs, outputs | model_outputs)
    except ValueError:
        # A layer that was first called in another model has its `output` there.
        return keras.Model(inputs, model_outputs)


def graph_with_calls_inlined(
    function: tf.types.experimental.ConcreteFunction,
) -> tf.compat.v1.GraphDef:
    """The graph of a step as TensorFlow runs it, and TensorBoard draws it.

    A microbatch is traced once and called for each one; here the scope of each call holds the
    operations that run in its place, on the tower's device, and what passes tensors into and out
    of the function. What XLA compiles stays a call.
    """
    inlined = convert_to_constants._run_inline_graph_optimization(
        function, lower_control_flow=False, aggressive_inlining=True
    )
    drawn = tf.compat.v1.GraphDef()
    for node in inlined.node:
        if "/" in node.name or node.op not in ("Identity", "NoOp"):  # but for the results
            node.name = node.name.removeprefix("Func/")
            node.input[:] = [re.sub(r"^(\^?)Func/", r"\1", name) for name in node.input]
            drawn.node.append(node)
    return drawn
