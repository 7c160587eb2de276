"""One of several branches of a graph, chosen when it runs."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def run_one(place: tf.Tensor, branches: Sequence[Callable], *inputs: tf.Tensor) -> tf.Tensor:
    """What one of the branches makes of the inputs. To be called in a graph.

    As `tf.switch_case`, of which TensorFlow makes one graph with all branches. Each time, it visits
    every operation of those that are not taken, which for a small image takes longer than the one
    that is.

    Args:
      place: int32 [], of the branch.
      branches: functions of tensors to a tensor of one type. They have no state and read no tensors
        but the inputs.
      inputs: what they get.

    Returns:
      The tensor. It has the shape that all branches agree on.
    """
    graphs = [
        tf.function(branch, autograph=False).get_concrete_function(
            *map(tf.TensorSpec.from_tensor, inputs)
        )
        for branch in branches
    ]
    [found] = tf.raw_ops.StatelessCase(
        branch_index=place,
        input=list(inputs),
        Tout=[graphs[0].structured_outputs.dtype],
        branches=graphs,
        output_shapes=[],
    )
    shape, *others = (graph.structured_outputs.shape for graph in graphs)
    found.set_shape(shape.most_specific_common_supertype(others))
    return found
