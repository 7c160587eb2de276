"""What TensorBoard shows of a run.

All summaries are written outside the training step's graph, from tensors it returns at every step:
the graph is then the same whatever is watched, and its picture keeps the towers in the middle.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.scalar import summary
from tensorflow.python.framework import convert_to_constants

from towers import errors
from towers.runs import figures, run_folder

MAX_IMAGES = 8
BY_EXAMPLES = "by_examples_seen/"  # with the examples seen in place of the step

# These are about files, whatever their message.
_OF_FILES = (
    tf.errors.AlreadyExistsError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


def file_writer(folder: Path) -> tf.summary.SummaryWriter:
    """A writer of event files in `folder`, which is made if it does not exist.

    Raises:
      RunFolderError: they cannot be written.
    """
    # TensorFlow's name has the second, the machine and the process. In a container that was started
    # again, all three may be those of an existing file, which would be overwritten.
    there = len(list(folder.glob("events.out.tfevents.*")))
    with _on_disk():
        return tf.summary.create_file_writer(str(folder), filename_suffix=f".{there}.v2")


@contextlib.contextmanager
def events(writer: tf.summary.SummaryWriter, at_step: int) -> Iterator[None]:
    """While entered, summaries are of a step, or of so many examples seen.

    Raises:
      RunFolderError: they cannot be written.
    """
    # As an array: TensorFlow 2.21 keeps every Python number forever (tensorflow#68196).
    with _on_disk(), writer.as_default(step=tf.constant(np.int64(at_step))):
        yield


def scalars(values: Mapping[str, float]) -> None:
    """Writes numbers by their tags, all at once: an operation for each takes 0.5 ms."""
    event = summary_pb2.Summary()
    for tag, value in values.items():
        event.MergeFrom(summary.scalar_pb(tag, float(value)))
    tf.summary.experimental.write_raw_pb(event.SerializeToString(), name="scalars")


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    """Turns TensorFlow's error about files that cannot be written into a RunFolderError."""
    try:
        yield
    except tf.errors.OpError as error:
        # Errors of other kinds are about files where they end with the system's words; the rest are
        # about the tensors to be shown.
        words = tuple(f"; {os.strerror(number)}" for number in (0, *errno.errorcode))
        if not isinstance(error, _OF_FILES) and not errors.reason(error).endswith(words):
            raise
        raise run_folder.RunFolderError(
            f"TensorBoard's files cannot be written: {errors.reason(error)}"
        ) from error


def write_confusion(counts: np.ndarray, class_names: Sequence[str]) -> None:
    """Writes an evaluation's confusion matrix as an image, and the accuracy of each class.

    Args:
      counts: [num_classes, num_classes], examples by (label, predicted class).
      class_names: one per class.
    """
    tf.summary.image("confusion_matrix", figures.confusion_matrix(counts, tuple(class_names))[None])
    each = zip(class_names, counts.diagonal(), counts.sum(axis=1), strict=True)
    scalars({f"accuracy_per_class/{name}": right / count for name, right, count in each if count})


def graph_with_calls_inlined(
    function: tf.types.experimental.ConcreteFunction,
) -> tf.compat.v1.GraphDef:
    """The graph of a step as TensorFlow runs it, and TensorBoard draws it.

    A microbatch is traced once and called for each one; here the scope of each call holds the
    operations that run in its place, on the tower's device. What XLA compiles stays a call. What
    only passes tensors into and out of a function is left out.

    Args:
      function: a ConcreteFunction, such as `step.Program.trace` gives.
    """
    inlined = convert_to_constants._run_inline_graph_optimization(
        function, lower_control_flow=False, aggressive_inlining=True
    )
    passes = {node.name: node for node in inlined.node if node.name.startswith("Func/")}
    drawn = tf.compat.v1.GraphDef()

    def sources(name: str) -> list[str]:
        """What an operation reads in the place of an input that was only passed on."""
        mark, of_output = ("^" if name.startswith("^") else ""), name.lstrip("^").split(":")[0]
        if of_output not in passes:
            return [name]
        read = [one for given in passes[of_output].input for one in sources(given)]
        return [f"^{one.lstrip('^').split(':')[0]}" for one in read] if mark else read[:1]

    for node in inlined.node:
        is_result = node.op in ("Identity", "NoOp") and "/" not in node.name
        if node.name not in passes and not is_result:
            copy = drawn.node.add()
            copy.CopyFrom(node)
            copy.input[:] = [one for name in node.input for one in sources(name)]
    return drawn


@contextlib.contextmanager
def profile(folder: run_folder.RunFolder) -> Iterator[None]:
    """Records a profile for TensorBoard's Profile tab (needs the `profile` extra to be shown)."""
    with _on_disk(), tf.profiler.experimental.Profile(str(folder.train_events)):
        yield


def markdown_table(values: Mapping) -> str:
    """Names and values, for a page of TensorBoard's text tab."""
    rows = [f"| {name} | {json.dumps(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])
